#include "core/spec/foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/text.hpp"

namespace wt {

namespace {

constexpr std::string_view kJob = "a job is a YAML file with the sections model, cluster, strategy, training";
constexpr std::string_view kImport = "; `windtunnel import FILE` makes one of other programs' files";

Diagnostic told(const std::string& file, std::string_view is, std::string hint) {
  return {file, fmt::format("is {}, not a job file", is), std::move(hint)};
}

bool is_key(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '"';
  });
}

/// The first line that is neither blank nor a comment, without the blanks around it.
std::string_view first_line(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    line.remove_prefix(begin);
    return line.substr(0, line.find_last_not_of(" \t\r") + 1);
  }
  return {};
}

/// "[section]", "[[list]]" or "key = value" with the blanks that people write there (dumps of other tools have none).
bool opens_toml(std::string_view line) {
  if (line.starts_with('[')) {
    line = line.substr(0, line.find('#'));
    line = line.substr(0, line.find_last_not_of(" \t") + 1);
    if (!line.ends_with(']')) return false;
    line = line.substr(1, line.size() - 2);
    if (line.starts_with('[') && line.ends_with(']')) line = line.substr(1, line.size() - 2);
    return is_key(line);
  }
  const size_t equals = line.find(" = ");
  return equals != std::string_view::npos && is_key(line.substr(0, line.find(' ')));
}

struct Known {
  std::string_view key, is, hint;
};
// The first that is there decides; `hint` in place of the usual one.
constexpr std::array kKnown = std::to_array<Known>({
    {"pipe-parallel-size", "a configuration of GPT-NeoX", ""},
    {"pipe_parallel_size", "a configuration of GPT-NeoX", ""},
    {"zero_optimization", "a DeepSpeed configuration", ""},
    {"train_micro_batch_size_per_gpu", "a DeepSpeed configuration", ""},
    {"train_batch_size", "a DeepSpeed configuration", ""},
    {"distributed_type", "a configuration of Hugging Face Accelerate", ""},
    {"base_model", "a configuration of Axolotl", ""},
    {"model_name_or_path", "a configuration of LLaMA-Factory", ""},
    {"traceEvents", "a trace in Chrome's format", ""},
    {"apiVersion", "a Kubernetes manifest", ""},
    {"model_type", "the config.json of a Hugging Face model", "a job names it: `model: path/to/config.json`"},
    {"architectures", "the config.json of a Hugging Face model", "a job names it: `model: path/to/config.json`"},
    {"layers", "a model spec", "a job names it: `model: path/to/model.yaml`"},
    {"device", "a cluster spec", "a job names it: `cluster: path/to/cluster.yaml`"},
    {"multiprocessors", "a device spec", "a cluster names it: `device: path/to/device.yaml`"},
    {"rules", "a file of framework rules", ""},
});

}  // namespace

std::optional<Diagnostic> foreign_text(std::string_view text, const std::string& file) {
  const std::string import = fmt::format("{}{}", kJob, kImport);
  if (text.starts_with("wttrace\n"))
    return told(file, "a trace of Windtunnel", "`windtunnel diff` and `windtunnel convert` read it");
  if (text.starts_with("windtunnel plan "))
    return told(file, "a plan of Windtunnel", "`windtunnel plan` makes it from a job");
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd")) return told(file, "compressed", import);
  if (text.starts_with("#!")) return told(file, "a script", import);
  const std::string_view line = first_line(text);
  if (line.starts_with("<")) return told(file, "XML", import);
  if (file.ends_with(".toml") || opens_toml(line)) return told(file, "TOML", import);
  return std::nullopt;
}

std::optional<Diagnostic> foreign_map(const tree::Node& root, const std::string& file) {
  if (!root.is_map() || root.entries.empty()) return std::nullopt;
  for (const char* section : {"model", "cluster", "strategy", "training"})
    if (root.find(section)) return std::nullopt;
  for (const Known& k : kKnown)
    if (root.find(k.key))
      return told(file, k.is, k.hint.empty() ? fmt::format("{}{}", kJob, kImport) : std::string(k.hint));
  // A typing error in the only section is told as such by the reader.
  constexpr std::array<std::string_view, 6> kKeys = {"name", "framework", "model", "cluster", "strategy", "training"};
  for (const tree::Entry& e : root.entries)
    if (std::find(kKeys.begin(), kKeys.end(), e.key) != kKeys.end() || closest(e.key, kKeys)) return std::nullopt;
  return Diagnostic{file, "has no section of a job", fmt::format("{}{}", kJob, kImport)};
}

}  // namespace wt
