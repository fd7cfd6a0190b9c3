// A job as torchtitan's TOML (JobConfig, until 2026-02-23). The model is a flavor in its code.
#include <fmt/format.h>

#include "core/spec/names.hpp"
#include "import/export.hpp"

namespace wt::import {

namespace {

std::string_view spelled_long(DType t) {
  return t == DType::f32 ? "float32" : t == DType::f16 ? "float16" : "bfloat16";
}

std::string_view schedule_of(const std::string& name) {
  return name == "gpipe"         ? "GPipe"
         : name == "interleaved" ? "Interleaved1F1B"
         : name == "looped-bfs"  ? "LoopedBFS"
         : name == "zb-v"        ? "ZBVZeroBubble"
         : name == "dualpipe-v"  ? "DualPipeV"
                                 : "1F1B";
}

Written write(const JobSpec& j) {
  const StrategySpec& s = j.strategy;
  const TrainingSpec& t = j.training;
  const int64_t cut = s.tensor * s.pipeline * s.context;
  const int64_t data = cut > 0 ? j.cluster.ranks() / cut : 1;
  const bool hybrid = s.fsdp.sharding == ShardingKind::hybrid_shard;
  const int64_t shard =
      hybrid ? std::max<int64_t>(1, s.fsdp.shard_size > 0 ? s.fsdp.shard_size : j.cluster.node.devices) : 1;
  std::string out = "# Written by `windtunnel export`. Add [model] name and flavor, data and learning rate.\n";
  const int64_t per_rank = data > 0 ? t.global_batch / data : t.micro_batch;
  out += fmt::format(
      "[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\nmax_norm = "
      "{:.6f}\nmixed_precision_param = \"{}\"\nmixed_precision_reduce = \"{}\"\nseed = {}\n",
      s.pipeline > 1 ? per_rank : t.micro_batch, t.global_batch, t.seq_len, t.gradient_clipping,
      spelled_long(t.param_dtype), spelled_long(s.gradient_dtype), t.seed);
  if (s.offload.parameters != OffloadDevice::none) out += "enable_cpu_offload = true\n";
  out += fmt::format(
      "\n[parallelism]\ntensor_parallel_degree = {}\npipeline_parallel_degree = {}\ncontext_parallel_degree = {}\n",
      s.tensor, s.pipeline, s.context);
  if (s.data_parallel == DataParallel::ddp)
    out += fmt::format("data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = 1\n", data);
  else
    out += fmt::format(
        "data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\nfsdp_reshard_after_forward = \"{}\"\n",
        hybrid ? data / shard : 1, hybrid ? shard : -1, s.fsdp.reshard_after_forward == 0 ? "never" : "always");
  if (s.expert > 1) out += fmt::format("expert_parallel_degree = {}\n", s.expert);
  if (t.loss == LossKind::full_vocabulary) out += "disable_loss_parallel = true\n";
  if (s.tensor_overlap) out += "enable_async_tensor_parallel = true\n";
  if (s.pipeline > 1) {
    out += fmt::format(
        "pipeline_parallel_schedule = \"{}\"\npipeline_parallel_microbatch_size = "
        "{}\npipeline_parallel_first_stage_less_layers = {}\npipeline_parallel_last_stage_less_layers = {}\n",
        schedule_of(s.schedule), t.micro_batch, s.account_for_embedding ? 1 : 0, s.account_for_loss ? 1 : 0);
    const int64_t extra = (s.account_for_embedding ? 1 : 0) + (s.account_for_loss ? 1 : 0),
                  stages = s.pipeline * s.virtual_stages;
    if (stages > 0 && (j.model.layers + extra) % stages == 0)
      out += fmt::format("pipeline_parallel_layers_per_stage = {}\n", (j.model.layers + extra) / stages);
  }
  const bool full = s.recompute.kind == RecomputeKind::full;
  const bool by_op = s.recompute.kind == RecomputeKind::selective && !s.recompute.modules.empty();
  // Of some layers: it has every n-th, so block recompute of a share of the layers becomes as many of them.
  const int64_t every = full && s.recompute.method == RecomputeMethod::block
                            ? std::max<int64_t>(1, j.model.layers / std::max<int64_t>(1, s.recompute.layers))
                            : s.recompute.every;
  out += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", by_op || (full && every > 1) ? "selective"
                                                                   : full                       ? "full"
                                                                                                : "none");
  if (by_op)
    out += "selective_ac_option = \"op\"\n";
  else if (full && every > 1)
    out += fmt::format("selective_ac_option = \"{}\"\n", every);
  if (t.compute_dtype == DType::f8)
    out += fmt::format("\n[model]\nconverters = [\"{}\"]\n", t.fp8_recipe == Fp8Recipe::block ? "mx" : "float8");
  if (t.loop.evaluate_every > 0)
    out += fmt::format("\n[validation]\nenable = true\nfreq = {}\nsteps = {}\n", t.loop.evaluate_every,
                       t.loop.evaluation_batches);
  out += fmt::format("\n[compile]\nenable = {}\n\n[optimizer]\nname = \"{}\"\n",
                     t.host_profile == "compiled" ? "true" : "false", "AdamW");  // it has no SGD
  return {out, {}};
}

}  // namespace

extern const Exporter exporters_torchtitan;
const Exporter exporters_torchtitan = {"torchtitan", "torchtitan TOML", "job.toml", false, write};

}  // namespace wt::import
