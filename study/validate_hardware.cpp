#include "study/validate_hardware.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "study/validate_words.hpp"

namespace wt::study {
namespace {

/// The `cluster` of a job without its network, or why there is none.
YAML::Node find_gpu(const Case& row, const YAML::Node& table, std::string& skip) {
  for (const YAML::Node& entry : table["gpus"]) {
    const auto all_in = [](const std::string& text, const std::vector<std::string>& words) {
      return std::all_of(words.begin(), words.end(), [&](const std::string& w) { return has(text, w); });
    };
    if (!all_in(row.gpu, texts(entry["words"])) || !all_in(row.inter, texts(entry["inter"]))) continue;
    if (entry["skip"].IsDefined()) {
      skip = entry["skip"].Scalar();
      return {};
    }
    return YAML::Clone(entry["cluster"]);
  }
  skip = fmt::format("GPU '{}' is not in data/validate/clusters.yaml", row.gpu);
  return {};
}

/// Networks that the row may have had; empty: that of the built-in cluster.
std::vector<YAML::Node> find_fabrics(const Case& row, const YAML::Node& table, int64_t gpus_per_node,
                                     std::vector<std::string>& assumptions) {
  if (row.inter.empty() || lower(row.inter) == "none") {
    assumptions.push_back("network not given: that of the built-in cluster");
    return {};
  }
  for (const YAML::Node& entry : table["fabrics"]) {
    const std::vector<std::string> words = texts(entry["words"]);
    if (!std::all_of(words.begin(), words.end(), [&](const std::string& w) { return has(row.inter, w); })) continue;
    if (entry["fabric"].IsDefined()) return {YAML::Clone(entry["fabric"])};
    std::vector<YAML::Node> plausible;
    for (const YAML::Node& fabric : entry["plausible"]) plausible.push_back(YAML::Clone(fabric));
    assumptions.push_back(fmt::format("network '{}': {} plausible ones tried", row.inter, plausible.size()));
    return plausible;
  }
  const auto nics = parse_nics(row.inter, gpus_per_node);
  std::string kind;
  for (const YAML::Node& entry : table["kinds"]) {
    if (!kind.empty()) break;
    const std::vector<std::string> words = texts(entry["words"]);
    if (std::all_of(words.begin(), words.end(), [&](const std::string& w) { return contains_words(row.inter, w); }))
      kind = text_of(entry, "kind");
  }
  if (!nics || kind.empty()) {
    assumptions.push_back(fmt::format("network '{}' not understood: that of the built-in cluster", row.inter));
    return {};
  }
  for (const char* doubt : {"assumed", "not stated", "class", "default", "not verified", "?"})
    if (has(row.inter, doubt)) {
      assumptions.push_back(fmt::format("network is not from the source: '{}'", row.inter));
      break;
    }
  YAML::Node fabric;
  fabric["kind"] = kind;
  fabric["nics_per_node"] = nics->nics_per_node;
  fabric["nic_bandwidth"] = fmt::format("{} Gb/s", nics->gigabits);
  return {fabric};
}

/// Nodes of a job of several NVLink domains are placed in equal segments, each inside one domain: as many as divide them
/// (Megatron-Bridge scripts/performance/utils/executors.py, slurm_executor: --segment).
int64_t segment_of(int64_t nodes, int64_t most) {
  int64_t segment = std::max<int64_t>(1, most);
  while (nodes % segment != 0) --segment;
  return segment;
}

}  // namespace

std::optional<NicPhrase> parse_nics(std::string_view phrase, int64_t gpus_per_node) {
  // Bytes to bits before case is lost, terabits to gigabits.
  std::string text = std::regex_replace(std::string(phrase), std::regex("GB/s"), "gigabyte");
  text = lower(text);
  std::smatch match;
  const std::string unit = "(?:gb/s|gbps|gbit/s|gbe|g\\b)";
  if (std::regex_search(text, match, std::regex("(\\d+)\\s*x\\s*(?:[a-z0-9-]*[a-z][a-z0-9-]*\\s+)*(\\d+)\\s*" + unit)))
    return NicPhrase{std::stoll(match[1]), std::stod(match[2])};
  if (std::regex_search(text, match, std::regex("(\\d+)\\s*x\\s*(?:cx-?\\d\\s+)?(edr|hdr|ndr|xdr)(\\d*)"))) {
    const double port = match[3].length()   ? std::stod(match[3])
                        : match[2] == "edr" ? 100
                        : match[2] == "hdr" ? 200
                        : match[2] == "ndr" ? 400
                                            : 800;
    return NicPhrase{std::stoll(match[1]), port};
  }
  if (std::regex_search(text, match, std::regex("(\\d+)\\s*" + unit + "[^,;]*per gpu")))
    return NicPhrase{gpus_per_node, std::stod(match[1])};
  if (std::regex_search(text, match, std::regex("(\\d+(?:\\.\\d+)?)\\s*(gb/s|gbps|gbit/s|tb/s|tbps)[^,;]*per node"))) {
    const double total = std::stod(match[1]) * (match[2].str().starts_with("t") ? 1000 : 1);
    const int64_t nics = total > 800 ? 8 : 4;  // no node carries eight NICs below 100 Gb/s
    return NicPhrase{nics, total / static_cast<double>(nics)};
  }
  return std::nullopt;
}

RowCluster cluster_of(const Case& row, const YAML::Node& table, std::vector<std::string>& assumptions) {
  RowCluster out;
  const YAML::Node gpu = find_gpu(row, table, out.skip);
  if (!out.skip.empty()) return out;
  const int64_t per_node = std::min(row.gpus_per_node.value_or(8), *row.gpus);
  if (*row.gpus % per_node != 0) {
    out.skip = fmt::format("{} GPUs do not fill nodes of {}", *row.gpus, per_node);
    return out;
  }
  const int64_t nodes = *row.gpus / per_node;
  if (nodes > 1 && *row.gpus > row.nvlink_domain.value_or(0))
    out.fabrics = find_fabrics(row, table, row.gpus_per_node.value_or(8), assumptions);
  out.cluster.reset(gpu);
  out.cluster["nodes"] = nodes;
  out.cluster["node"]["devices"] = per_node;
  if (out.fabrics.size() == 1) out.cluster["fabric"] = out.fabrics.front();
  if (const int64_t whole = row.nvlink_domain.value_or(0); whole > per_node && *row.gpus > whole) {
    const int64_t segment = segment_of(nodes, whole / per_node);
    out.cluster["node"]["scale_up"]["domain"] = segment * per_node;
    assumptions.push_back(fmt::format("placed in segments of {} nodes, each in one NVLink domain", segment));
  }
  return out;
}

}  // namespace wt::study
