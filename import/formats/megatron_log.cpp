// The arguments that Megatron prints at the start of a run ("---- arguments ----"), all resolved, with DeepSpeed's
// configuration behind them where there is one. A log of gigabytes is read once, line by line; what follows is not kept.
#include <fmt/format.h>

#include <memory>

#include "core/base/text.hpp"
#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"
#include "import/megatron.hpp"

namespace wt::import {

namespace {

constexpr std::string_view kBegin = "- arguments -", kEnd = "end of arguments", kJson = "  json = {";

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::text) return 0;
  return f.text.find(kBegin) != f.text.npos && f.text.find(kEnd) != f.text.npos ? 9 : 0;
}

/// "vm-01:   hidden_size ..... 4096" -> hidden_size, 4096. False where a line is something else.
bool split(std::string_view line, std::string& field, std::string& value) {
  const size_t dots = line.find(" ..");
  if (dots == line.npos) return false;
  const size_t begin = line.rfind(' ', dots - 1);
  const size_t from = begin == line.npos ? 0 : begin + 1;
  field = std::string(line.substr(from, dots - from));
  size_t at = dots + 1;
  while (at < line.size() && line[at] == '.') ++at;
  if (field.empty() || at >= line.size() || line[at] != ' ') return false;
  for (char c : field)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  value = std::string(line.substr(at + 1));
  while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back()))) value.pop_back();
  return true;
}

/// Launchers put the host in front of each line.
std::string_view without_host(std::string_view line, std::string_view host) {
  return line.starts_with(host) ? line.substr(host.size()) : line;
}

/// DeepSpeed's print of its configuration, at the lines of the log.
void read_deepspeed_dump(const std::string& json, const std::string& name, int line, Draft& d) {
  std::vector<tree::Duplicate> duplicates;
  auto parsed = tree::parse_json(std::string(static_cast<size_t>(line - 1), '\n') + json,
                                 std::make_shared<const tree::Source>(tree::Source{name, "", false}), duplicates);
  if (!parsed || !parsed.value().is_map()) return;
  const auto kept = std::make_shared<tree::Node>(std::move(parsed.value()));
  d.later([kept] {});  // what resolves later points into it
  d.file(fmt::format("{}:{}", name, line), "DeepSpeed's print of its configuration", std::string(kDeepSpeedVersion));
  Keys keys(*kept, "", d);
  read_deepspeed(keys);
  keys.finish("DeepSpeed");
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "log with Megatron's resolved arguments", "the run itself: every argument is printed");
  MegatronArgs args(d);
  args.complete = true;
  enum class Where : unsigned char { before, inside, behind } where = Where::before;
  std::string host, json, field, value;
  int line_number = 0, json_line = 0;
  bool in_json = false, padded = false;
  std::string_view text = f.text;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    constexpr size_t kMostLine = 65536;
    if (line.size() > kMostLine) continue;
    if (where == Where::before && line.find(kBegin) != line.npos) {
      where = Where::inside;
      host = std::string(line.substr(0, line.find("--")));
    } else if (where == Where::inside && line.find(kEnd) != line.npos) {
      where = Where::behind;
    } else if (where == Where::inside && split(line, field, value)) {
      if (value.size() > 2 && value.front() == '[' && value.back() == ']' &&
          parse_int(std::string_view(value).substr(1, value.size() - 2)))
        value = value.substr(1, value.size() - 2);  // Megatron-DeepSpeed: num_experts is a list, [1]
      args.set(field, value, {fmt::format("{}:{}", f.name, line_number), field});
    } else if (where == Where::behind && !padded && line.find("padded vocab (size: ") != line.npos) {
      const size_t at = line.find("(size: ") + 7;
      if (const auto n = parse_int(line.substr(at, line.find(')', at) - at))) {
        d.take({fmt::format("{}:{}", f.name, line_number), "padded vocab (size: ...)"}, std::to_string(*n),
               "model.vocab", *n, "before padding");
        padded = true;
      }
    } else if (where == Where::behind && !in_json && json.empty() && line.ends_with(kJson)) {
      in_json = true;
      json = "{\n";
      json_line = line_number;
    } else if (in_json) {
      const std::string_view own = without_host(line, host);
      constexpr size_t kMostJson = 1 << 18;
      json += std::string(own) + "\n";
      if (own == "}" || json.size() > kMostJson) in_json = false;
    }
  }
  if (args.size() == 0) return d.error({f.name, ""}, "has no argument between 'arguments' and 'end of arguments'", "");
  if (!json.empty() && args.on("deepspeed")) {
    read_deepspeed_dump(json, f.name, json_line, d);
    args.used("deepspeed_config");
    args.set("deepspeed_config", "None", {});
  }
  if (padded) args.set("padded_vocab_size", "0", {});
  read_megatron(args);
}

}  // namespace

extern const Format formats_megatron_log;
const Format formats_megatron_log = {"megatron_log", "log with Megatron's arguments",
                                     "the resolved arguments that Megatron-LM and Megatron-DeepSpeed print", recognise,
                                     read};

}  // namespace wt::import
