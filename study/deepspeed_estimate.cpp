#include "study/deepspeed_estimate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/report/print.hpp"
#include "core/spec/names.hpp"

namespace wt::study {

namespace {

constexpr double kGib = 1073741824.0;
constexpr double kBuffers = 1.5;  // additional_buffer_factor, their default

int stage_of(const JobSpec& j) {
  return j.strategy.data_parallel == DataParallel::zero3 ? 3 : j.strategy.data_parallel == DataParallel::zero2 ? 2 : 0;
}

std::string gib(double bytes) { return fmt::format("{:.2f}", bytes / kGib); }

}  // namespace

StateCounts state_counts(const JobSpec& j) {
  const ModelSpec& m = j.model;
  // As modules of Hugging Face's models hold them: q, gate and up are each a module.
  const int64_t largest = std::max({m.vocab * m.hidden, m.hidden * m.ffn_hidden, m.hidden * m.heads * m.head_dim});
  return {count_parameters(m).total(), largest, j.cluster.nodes, j.cluster.node.devices};
}

std::vector<StateEstimate> deepspeed_estimate(int stage, const StateCounts& c) {
  const auto n = static_cast<double>(c.parameters), layer = 4.0 * static_cast<double>(c.largest_layer),
             gpus = static_cast<double>(c.nodes * c.devices), devices = static_cast<double>(c.devices),
             nodes = static_cast<double>(c.nodes);
  // 18 bytes: 2 of 16-bit gradients, 4 of fp32 gradients, 4 of fp32 weights, 8 of moments.
  if (stage == 2)
    return {{true, false, false, n * std::max(4 * gpus, 16.0) * kBuffers, 2 * n},
            {false, false, false, n * 4 * devices * kBuffers, 2 * n + 18 * n / gpus}};
  std::vector<StateEstimate> out;
  for (const int offload : {2, 1, 0})  // both, the optimizer alone, nothing
    for (const bool init : {true, false}) {
      StateEstimate e{offload > 0, offload == 2, init, 0, 0};
      const double state = offload == 2 ? 18 : 16;
      if (offload > 0)
        e.host_bytes = n * (init ? state / nodes : std::max(4 * devices, state / nodes)) * kBuffers;
      else
        e.host_bytes = (init ? layer : 4 * n) * devices * kBuffers;
      e.device_bytes = layer + (offload == 2 ? 0 : offload == 1 ? 2 * n / gpus : 18 * n / gpus);
      out.push_back(e);
    }
  return out;
}

std::string print_deepspeed_estimate(const JobSpec& j, const report::MemoryReport& m) {
  const int stage = stage_of(j);
  if (stage == 0)
    return fmt::format("DeepSpeed estimates stages 2 and 3; this job has data_parallel: {}\n",
                       to_text(j.strategy.data_parallel));
  const StateCounts c = state_counts(j);
  std::string out = fmt::format(
      "DeepSpeed's own estimate, stage {}: {} nodes of {} GPUs, {:.0f} M parameters, largest module {:.0f} M; GiB\n",
      stage, c.nodes, c.devices, static_cast<double>(c.parameters) / 1e6, static_cast<double>(c.largest_layer) / 1e6);
  report::Table table({"options", "a node's host", "a GPU"});
  for (const StateEstimate& e : deepspeed_estimate(stage, c)) {
    std::string options = fmt::format("offload_optimizer={}", e.offload_optimizer ? "cpu" : "none");
    if (stage == 3)
      options = fmt::format("offload_param={}, {}, zero_init={}", e.offload_parameters ? "cpu" : "none", options,
                            e.zero_init ? 1 : 0);
    table.add({options, gib(e.host_bytes), gib(e.device_bytes)});
  }
  if (!m.stages.empty()) {
    const report::StageMemory& s = m.stages[m.peak_stage];
    table.add(
        {"here: the job as it is", gib(static_cast<double>(m.host_needed.n)), gib(static_cast<double>(s.reserved.n))});
    out += table.text();
    out += "  Theirs is model states alone. Of the GPU's bytes here:";
    for (const report::MemoryItem& i : s.items)
      out += fmt::format(" {} {},", i.name, gib(static_cast<double>(i.bytes.n)));
    out += fmt::format(" context and communicators {}, allocator {}\n",
                       gib(static_cast<double>(s.context.n + s.communicators.n)),
                       gib(static_cast<double>(s.cached.n + s.fragmentation.n)));
  } else {
    out += table.text();
  }
  return out;
}

}  // namespace wt::study
