// A job as accelerate's YAML for FSDP 1 or 2. Batch sizes, sequence length and recompute go to the script.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/spec/names.hpp"
#include "import/export.hpp"

namespace wt::import {

namespace {

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

Written write(const JobSpec& j) {
  const StrategySpec& s = j.strategy;
  const TrainingSpec& t = j.training;
  const bool fsdp = s.data_parallel == DataParallel::fsdp || s.data_parallel == DataParallel::fsdp2;
  std::string out = "# Written by `windtunnel export`.\ncompute_environment: LOCAL_MACHINE\n";
  out += fmt::format(
      "distributed_type: {}\nmixed_precision: '{}'\nnum_machines: {}\nnum_processes: {}\n", fsdp ? "FSDP" : "MULTI_GPU",
      t.compute_dtype == DType::f32 ? "no" : std::string(spelled(t.compute_dtype)), j.cluster.nodes, j.cluster.ranks());
  if (fsdp) {
    const bool second = s.data_parallel == DataParallel::fsdp2;
    out += fmt::format("fsdp_config:\n  fsdp_version: {}\n  fsdp_auto_wrap_policy: {}\n", second ? 2 : 1,
                       s.fsdp.wrap == WrapKind::model ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP");
    if (second) {
      out += fmt::format("  fsdp_reshard_after_forward: {}\n", s.fsdp.reshard_after_forward == 0 ? "false" : "true");
    } else {
      out += fmt::format("  fsdp_sharding_strategy: {}\n  fsdp_forward_prefetch: {}\n  fsdp_limit_all_gathers: {}\n",
                         upper(to_text(s.fsdp.sharding)), s.fsdp.forward_prefetch, s.fsdp.limit_all_gathers);
      out += fmt::format("  fsdp_backward_prefetch: {}\n",
                         s.fsdp.backward_prefetch == BackwardPrefetch::pre    ? "BACKWARD_PRE"
                         : s.fsdp.backward_prefetch == BackwardPrefetch::post ? "BACKWARD_POST"
                                                                              : "NO_PREFETCH");
    }
    out += fmt::format("  fsdp_activation_checkpointing: {}\n  fsdp_offload_params: {}\n",
                       s.recompute.kind == RecomputeKind::full, s.offload.parameters != OffloadDevice::none);
  }
  if (s.tensor > 1 || s.context > 1)
    out += fmt::format("parallelism_config:\n  parallelism_config_tp_size: {}\n  parallelism_config_cp_size: {}\n",
                       s.tensor, s.context);
  return {out,
          {fmt::format("training.micro_batch={}", t.micro_batch),
           fmt::format("training.global_batch={}", t.global_batch), fmt::format("training.seq_len={}", t.seq_len),
           fmt::format("training.gradient_clipping={}", t.gradient_clipping)}};
}

}  // namespace

extern const Exporter exporters_fsdp;
const Exporter exporters_fsdp = {"fsdp", "accelerate YAML for FSDP", "accelerate.yaml", false, write};

}  // namespace wt::import
