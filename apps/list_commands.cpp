// windtunnel models, windtunnel clusters: what is built in, with the numbers that tell one from another.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "core/spec/data_dir.hpp"
#include "core/spec/names.hpp"
#include "core/spec/read.hpp"

namespace wt::apps {

namespace {

using Json = nlohmann::ordered_json;

std::string billions(int64_t n) {
  const double b = static_cast<double>(n) / 1e9;
  return b >= 100 ? fmt::format("{:.0f}", b) : b >= 10 ? fmt::format("{:.1f}", b) : fmt::format("{:.2f}", b);
}

int models(bool json) {
  report::Table table(
      {"model", "parameters, B", "active, B", "layers", "hidden", "ffn", "heads", "kv", "vocab", "context", "kind"});
  Json list = Json::array();
  Diagnostics errors;
  for (const std::string& name : list_models()) {
    auto read = read_model(name);
    if (!read) {
      errors.insert(errors.end(), read.errors().begin(), read.errors().end());
      continue;
    }
    const ModelSpec& m = read.value();
    const int64_t n = count_parameters(m).total(), active = active_parameters(m);
    std::string kind = m.moe ? fmt::format("{} experts, {} chosen", m.moe->experts, m.moe->top_k) : "dense";
    if (m.mla) kind += ", MLA";
    table.add({name, billions(n), m.moe ? billions(active) : "", std::to_string(m.layers), std::to_string(m.hidden),
               std::to_string(m.moe ? m.moe->ffn_hidden : m.ffn_hidden), std::to_string(m.heads),
               std::to_string(m.kv_heads), with_commas(m.vocab), with_commas(m.max_context), kind});
    list.push_back({{"name", name},
                    {"parameters", n},
                    {"active_parameters", active},
                    {"layers", m.layers},
                    {"hidden", m.hidden},
                    {"heads", m.heads},
                    {"kv_heads", m.kv_heads},
                    {"vocab", m.vocab},
                    {"max_context_tokens", m.max_context},
                    {"moe", m.moe.has_value()},
                    {"source", m.source}});
  }
  const int code = write_out(json ? Json{{"schema_version", 1}, {"models", list}}.dump(2) + "\n" : table.text(""));
  return errors.empty() ? code : fail(errors, kBadInput);
}

int clusters(bool json) {
  report::Table table({"cluster", "device", "a node", "memory, GiB", "dense 16-bit, TFLOP/s", "memory, TB/s",
                       "NVLink, GB/s", "NICs", "nodes"});
  Json list = Json::array();
  Diagnostics errors;
  for (const std::string& name : list_clusters()) {
    auto read = read_cluster(name);
    if (!read) {
      errors.insert(errors.end(), read.errors().begin(), read.errors().end());
      continue;
    }
    const ClusterSpec& c = read.value();
    const DeviceSpec& d = c.device;
    auto peak = d.peak.find(DType::bf16);
    if (peak == d.peak.end()) peak = d.peak.find(DType::f16);
    const double tflops = peak == d.peak.end() ? 0 : peak->second.n / 1e12;
    const std::string_view precision = peak == d.peak.end() ? "-" : spelled(peak->first);
    const bool bf16 = peak != d.peak.end() && peak->first == DType::bf16;  // V100 and older have none
    table.add({name, d.name, std::to_string(c.node.devices), fmt::format("{:.1f}", d.memory.gib()),
               fmt::format("{:.0f} {}", tflops, precision), fmt::format("{:.2f}", d.memory_bandwidth.n / 1e12),
               c.node.scale_up.bandwidth.n > 0 ? fmt::format("{:.0f}", c.node.scale_up.bandwidth.n / 1e9) : "-",
               c.fabric.nics_per_node > 0
                   ? fmt::format("{} x {:.0f} Gb/s", c.fabric.nics_per_node, c.fabric.nic_bandwidth.n * 8 / 1e9)
                   : "-",
               std::to_string(c.nodes)});
    list.push_back({{"name", name},
                    {"device", d.name},
                    {"devices_per_node", c.node.devices},
                    {"nodes", c.nodes},
                    {"memory_gib", d.memory.gib()},
                    {"dense_bf16_tflops", bf16 ? Json(tflops) : Json(nullptr)},
                    {"dense_tflops", tflops},
                    {"dense_tflops_precision", precision},
                    {"memory_bandwidth_bytes_per_s", d.memory_bandwidth.n},
                    {"scale_up_bytes_per_s", c.node.scale_up.bandwidth.n},
                    {"nics_per_node", c.fabric.nics_per_node},
                    {"nic_bytes_per_s", c.fabric.nic_bandwidth.n},
                    {"source", c.source}});
  }
  const int code = write_out(json ? Json{{"schema_version", 1}, {"clusters", list}}.dump(2) + "\n" : table.text(""));
  return errors.empty() ? code : fail(errors, kBadInput);
}

const Register models_registration(80, [](CLI::App& parent, int& exit) {
  auto json = std::make_shared<bool>(false);
  CLI::App* app = parent.add_subcommand("models", "list the built-in models");
  app->footer("A job names one: `model: llama3-70b`, or `{from: llama3-70b, layers: 40}`. They lie in models/.");
  app->add_flag("--json", *json, "as JSON");
  app->callback([json, &exit] { exit = models(*json); });
});
const Register clusters_registration(81, [](CLI::App& parent, int& exit) {
  auto json = std::make_shared<bool>(false);
  CLI::App* app = parent.add_subcommand("clusters", "list the built-in clusters; peaks are dense, rates one direction");
  app->footer("A job names one: `cluster: {from: dgx-h100, nodes: 16}`. They lie in cluster_specs/.");
  app->add_flag("--json", *json, "as JSON");
  app->callback([json, &exit] { exit = clusters(*json); });
});

}  // namespace

}  // namespace wt::apps
