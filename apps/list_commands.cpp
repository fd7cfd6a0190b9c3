// windtunnel models, clusters: what is built in, each with the numbers that tell one from another.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "core/spec/data_dir.hpp"
#include "core/spec/read.hpp"

namespace wt::apps {

namespace {

int models() {
  report::Table table({"model", "parameters", "active", "layers", "hidden", "heads/kv", "vocabulary"});
  for (const std::string& name : list_models()) {
    auto m = read_model(name);
    if (!m) return fail(m.errors(), kOurFault);
    const ModelSpec& s = m.value();
    const auto total = count_parameters(s).total(), active = active_parameters(s);
    table.add({name, fmt::format("{:.2f} B", static_cast<double>(total) * 1e-9),
               active == total ? "" : fmt::format("{:.2f} B", static_cast<double>(active) * 1e-9),
               std::to_string(s.layers), std::to_string(s.hidden), fmt::format("{}/{}", s.heads, s.kv_heads),
               with_commas(s.vocab)});
  }
  return write_out(table.text());
}

int clusters() {
  report::Table table({"cluster", "device", "per node", "memory", "bf16 dense", "scale-up a device", "NICs a node"});
  for (const std::string& name : list_clusters()) {
    auto c = read_cluster(name);
    if (!c) return fail(c.errors(), kOurFault);
    const ClusterSpec& s = c.value();
    const auto& peak = s.device.peak;
    auto p = peak.find(DType::bf16);
    if (p == peak.end()) p = peak.find(DType::f16);
    table.add({name, s.device.name, std::to_string(s.node.devices), to_text(s.device.memory),
               p == peak.end() ? "" : fmt::format("{:.0f} TFLOP/s", p->second.n * 1e-12),
               fmt::format("{:.0f} GB/s", s.node.scale_up.bandwidth.n * 1e-9),
               s.fabric.nics_per_node == 0
                   ? "none"
                   : fmt::format("{} x {:.1f} GB/s", s.fabric.nics_per_node, s.fabric.nic_bandwidth.n * 1e-9)});
  }
  return write_out(table.text());
}

const Register register_models(80, [](CLI::App& parent, int& exit) {
  parent.add_subcommand("models", "list the built-in models")->callback([&exit] { exit = models(); });
});
const Register register_clusters(81, [](CLI::App& parent, int& exit) {
  parent.add_subcommand("clusters", "list the built-in clusters")->callback([&exit] { exit = clusters(); });
});

}  // namespace

}  // namespace wt::apps
