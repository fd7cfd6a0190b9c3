// ds_config.json. What it cannot say is the model, the sequence length and the number of GPUs; pipeline stages, experts
// and recompute are in the script.
#include <fmt/format.h>

#include <cctype>
#include <map>

#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/syntax.hpp"

namespace wt::import {

namespace {

constexpr std::string_view kSigns[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"};

struct Word {
  std::string text;
  size_t begin = 0;
  int line = 0;
};

/// Bare words outside of strings that JSON does not have: what a script is to replace (CONFIG_BATCH_SIZE, {{ zero }}).
std::vector<Word> bare_words(std::string_view text) {
  std::vector<Word> out;
  int line = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"' && text[i] != '\n'; ++i)
        if (text[i] == '\\') ++i;
      if (i < text.size() && text[i] == '\n') ++line;
    } else if (std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$') {
      if (i > 0 && (std::isdigit(static_cast<unsigned char>(text[i - 1])) || text[i - 1] == '.')) continue;  // 5e8
      const size_t begin = i;
      while (i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_' ||
                                 text[i] == '$' || text[i] == '{' || text[i] == '}')) {
        if (text[i] == '}' && text.substr(begin, i - begin).find('{') == std::string_view::npos) break;
        ++i;
      }
      const std::string word(text.substr(begin, i - begin));
      --i;
      if (word != "true" && word != "false" && word != "null" && word != "e" && word != "E")
        out.push_back({word, begin, line});
    }
  }
  return out;
}

std::string plain_name(std::string_view word) {
  std::string out;
  for (char c : word)
    if (c != '$' && c != '{' && c != '}') out += c;
  return out;
}

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::json) return 0;
  if (f.tree) {
    for (std::string_view key : kSigns)
      if (f.has(key)) return 6;
    return (f.has("fp16") || f.has("bf16")) && f.has("gradient_accumulation_steps") ? 5 : 0;
  }
  for (std::string_view key : kSigns)
    if (f.text.find(fmt::format("\"{}\"", key)) != f.text.npos) return 5;
  return 0;
}

void read_tree(const Foreign& f, const tree::Node& root, Draft& d) {
  for (const tree::Duplicate& twice : f.duplicates)
    d.error({fmt::format("{}:{}", f.name, twice.line), twice.path},
            fmt::format("is written twice, first at line {}", twice.first_line),
            "DeepSpeed refuses a key that is there twice; keep one");
  if (f.relaxed)
    d.note(fmt::format("{}: comments or trailing commas: DeepSpeed reads them (hjson), Hugging Face's Trainer does not",
                       f.name));
  Keys keys(root, "", d);
  for (const tree::Entry& e : root.entries)
    if (e.key.starts_with("_")) keys.ignore(e.key, "a comment");
  read_deepspeed(keys);
  keys.finish("DeepSpeed");
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "DeepSpeed JSON", std::string(kDeepSpeedVersion));
  if (f.tree && f.tree->is_map()) return read_tree(f, *f.tree, d);
  if (f.tree) return d.error({f.name, ""}, "is not a DeepSpeed configuration", "an object of keys");
  bool changed = false;
  std::string text = strict_json(f.text, changed);
  const std::vector<Word> words = bare_words(text);
  if (words.empty()) {
    d.errors().insert(d.errors().end(), f.faults.begin(), f.faults.end());
    return;
  }
  std::string filled;
  size_t from = 0;
  std::map<std::string, int> open;
  for (const Word& w : words) {
    const auto var = d.options().vars.find(plain_name(w.text));
    if (var == d.options().vars.end()) {
      open.emplace(w.text, w.line);
      continue;
    }
    filled += text.substr(from, w.begin - from) + var->second;
    from = w.begin + w.text.size();
  }
  filled += text.substr(from);
  for (const auto& [word, line] : open) {
    const bool python = word == "True" || word == "False" || word == "None";
    d.error({fmt::format("{}:{}", f.name, line), word},
            python ? "is Python, not JSON" : "is a blank that a script fills in: this file is a template",
            python ? "write true, false, null"
                   : fmt::format("--var {}=VALUE, or give the file that the script wrote", plain_name(word)));
  }
  if (!open.empty()) return;
  Foreign again = f;
  Parsed parsed = parse_foreign(f.name, filled);
  if (!parsed.tree || !parsed.tree->is_map()) {
    d.errors().insert(d.errors().end(), parsed.faults.begin(), parsed.faults.end());
    return;
  }
  again.duplicates = parsed.duplicates;
  const std::shared_ptr<tree::Node> kept = std::move(parsed.tree);  // what resolves later points into it
  d.later([kept] {});
  read_tree(again, *kept, d);
}

}  // namespace

extern const Format formats_deepspeed_json;
const Format formats_deepspeed_json = {"deepspeed_json", "DeepSpeed JSON", "ds_config.json, with \"auto\" and comments",
                                       recognise, read};

}  // namespace wt::import
