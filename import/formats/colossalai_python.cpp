// A Python script that trains with a plugin of Colossal-AI's booster. Its configuration is the call of the plugin's
// constructor; what argparse gives comes from the launch line beside it, from --var, or from the default in the script.
// The model, the sequence length and recompute are code: named, never guessed.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/base/text.hpp"
#include "import/colossalai.hpp"
#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::text || f.text.find("colossalai") == f.text.npos) return 0;
  const bool calls = std::any_of(std::begin(kColossalPlugins), std::end(kColossalPlugins), [&](std::string_view name) {
    return f.text.find(fmt::format("{}(", name)) != f.text.npos;
  });
  return calls ? (f.base().ends_with(".py") ? 8 : 4) : 0;
}

/// One add_argument of argparse.
struct Option {
  std::vector<std::string> spellings;  // without dashes, underscores inside
  std::string otherwise;               // its default, as an expression; "" where there is none
};

std::string plain(std::string_view flag) {
  std::string out(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::vector<Option> options_of(std::string_view text) {
  constexpr std::string_view kName[] = {"add_argument"};
  const PythonNames none = [](std::string_view) { return std::optional<std::string>(); };
  std::vector<Option> out;
  for (const PythonCall& call : python_calls(text, kName)) {
    Option o;
    for (const PythonArgument& a : call.arguments) {
      std::string open;
      const auto value = python_value(a.text, none, open);
      if (!value) continue;
      if (a.key.empty() && value->starts_with("-")) o.spellings.push_back(plain(*value));
      if (a.key == "dest") o.spellings.push_back(*value);
      if (a.key == "default") o.otherwise = *value;
      if (a.key == "action" && o.otherwise.empty()) o.otherwise = *value == "store_true" ? "False" : "True";
    }
    if (!o.spellings.empty()) out.push_back(std::move(o));
  }
  return out;
}

/// What the names of the script stand for.
class Script {
 public:
  Script(std::string file, std::string text, Draft& d)
      : file_(std::move(file)), text_(std::move(text)), options_(options_of(text_)), draft_(d) {}

  std::optional<std::string> name(std::string_view dotted) const {
    const std::string last(dotted.substr(dotted.rfind('.') == dotted.npos ? 0 : dotted.rfind('.') + 1));
    for (const std::string& key : {std::string(dotted), last})
      if (const auto i = draft_.options().vars.find(key); i != draft_.options().vars.end()) return i->second;
    if (dotted.starts_with("torch.")) return std::nullopt;
    for (const Option& o : options_) {
      if (std::find(o.spellings.begin(), o.spellings.end(), last) == o.spellings.end()) continue;
      for (const std::string& s : o.spellings)
        if (auto given = draft_.program_argument(s)) return *given == "true" ? "True" : *given;
      if (o.otherwise.empty()) return std::nullopt;
      draft_.note(fmt::format(
          "{}: {} is {}, the default of its command line; --var {}=VALUE, or the launch line as a further FILE", file_,
          dotted, o.otherwise, last));
      return o.otherwise;
    }
    if (dotted.find('.') != dotted.npos) return std::nullopt;
    const auto constant = python_constant(text_, dotted);
    std::string open;
    return constant ? python_value(
                          *constant, [](std::string_view) { return std::optional<std::string>(); }, open)
                    : std::nullopt;
  }

  void read() {
    const PythonNames names = [this](std::string_view n) { return name(n); };
    const PythonCall* call = choose();
    if (!call) return;
    read_precision_of_booster(*call, names);
    PluginArguments arguments(*call, file_, names, draft_);
    read_plugin(arguments, batch(names));
    recompute();
    draft_.note(fmt::format("{}: model and sequence length are code: --model NAME, --set training.seq_len=N", file_));
  }

 private:
  /// The one plugin that is made; of several, the one whose branch --var plugin=, the launch line or a default names.
  const PythonCall* choose() {
    calls_ = python_calls(text_, kColossalPlugins);
    if (calls_.empty()) {
      draft_.error({file_, ""}, "calls no plugin", "such as: plugin = GeminiPlugin(precision=\"bf16\")");
      return nullptr;
    }
    if (calls_.size() == 1) return &calls_[0];
    const auto wanted = name("args.plugin");
    std::vector<const PythonCall*> match;
    for (const PythonCall& c : calls_)
      if (wanted &&
          (c.name == *wanted || std::to_string(c.line) == *wanted || (!c.branch.empty() && c.branch[0] == *wanted)))
        match.push_back(&c);
    if (match.size() == 1) return match[0];
    std::string list;
    for (const PythonCall& c : match.empty() ? calls_ : dereferenced(match))
      list += fmt::format("{}line {}: {}{}", list.empty() ? "" : ", ", c.line, c.name,
                          c.branch.empty() ? "" : fmt::format(" ({})", c.branch[0]));
    draft_.missing("which plugin", fmt::format("{} has several; --var plugin=LINE: {}", file_, list));
    return nullptr;
  }
  static std::vector<PythonCall> dereferenced(const std::vector<const PythonCall*>& list) {
    std::vector<PythonCall> out;
    for (const PythonCall* c : list) out.push_back(*c);
    return out;
  }

  /// DDP leaves the precision to Booster(mixed_precision=...).
  void read_precision_of_booster(const PythonCall& plugin, const PythonNames& names) {
    if (plugin.name != "TorchDDPPlugin") return;
    constexpr std::string_view kName[] = {"Booster"};
    for (const PythonCall& c : python_calls(text_, kName)) {
      const PythonArgument* p = c.find("mixed_precision");
      std::string open;
      const auto value = p ? python_value(p->text, names, open) : std::nullopt;
      if (value && !dtype_word(*value).empty())
        draft_.take({fmt::format("{}:{}", file_, p->line), "mixed_precision"}, p->text, "training.precision",
                    dtype_word(*value));
    }
    draft_.fall_back("training.precision", "fp32", "Booster(mixed_precision): none, the precision of the model");
    draft_.fall_back("training.vocab_multiple", "1", "TorchDDPPlugin pads no vocabulary");
  }

  LoaderBatch batch(const PythonNames& names) {
    constexpr std::string_view kName[] = {"prepare_dataloader"};
    for (const PythonCall& c : python_calls(text_, kName)) {
      const PythonArgument* size = c.find("batch_size");
      std::string open;
      const auto value = size ? python_value(size->text, names, open) : std::nullopt;
      const auto n = value ? whole_number(*value) : std::nullopt;
      constexpr int64_t kMost = 1 << 20;
      if (n && *n > 0 && *n < kMost)
        return {*n, {fmt::format("{}:{}", file_, size->line), "prepare_dataloader(batch_size)"}, size->text};
    }
    return {};
  }

  void recompute() {
    constexpr std::string_view kName[] = {"gradient_checkpointing_enable"};
    const auto calls = python_calls(text_, kName);
    if (calls.empty()) return;
    const Origin from{fmt::format("{}:{}", file_, calls[0].line), "gradient_checkpointing_enable"};
    const auto asked = name("args.grad_checkpoint");
    if (!calls[0].conditional || (asked && truth(*asked) == true))
      draft_.take(from, "called", "strategy.recompute", "full");
    else if (!asked || truth(*asked) != false)
      draft_.note(fmt::format("{}: recompute stands under a condition: --set strategy.recompute=full where it holds",
                              from.where));
  }

  std::string file_, text_;
  std::vector<Option> options_;
  std::vector<PythonCall> calls_;
  Draft& draft_;
};

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "script with a plugin of Colossal-AI", std::string(kColossalVersion));
  const auto script = std::make_shared<Script>(f.name, std::string(f.text), d);
  // A launch line may come after this file, and the degrees are needed before ranks are counted.
  d.before_world([script] { script->read(); });
}

}  // namespace

extern const Format formats_colossalai_python;
const Format formats_colossalai_python = {
    "colossalai_python", "Colossal-AI script",
    "Python that calls TorchDDP-, TorchFSDP-, LowLevelZero-, Gemini- or HybridParallelPlugin", recognise, read};

}  // namespace wt::import
