#include "import/deepspeed.hpp"

#include <fmt/format.h>

#include <memory>

#include "core/base/text.hpp"

namespace wt::import {

namespace {

constexpr std::string_view kAuto = "auto";

/// Batch sizes; of `auto` nothing is known here.
void read_batch(Keys& root) {
  Draft& d = root.draft();
  for (const auto& [key, to] : {std::pair{"train_batch_size", "training.global_batch"},
                                {"train_micro_batch_size_per_gpu", "training.micro_batch"},
                                {"gradient_accumulation_steps", "batch.accumulation"}})
    root.take_integer(key, to);
  const bool automatic = root.is("train_micro_batch_size_per_gpu", kAuto) || root.is("train_batch_size", kAuto) ||
                         root.is("gradient_accumulation_steps", kAuto);
  d.later([&d, automatic] {
    const bool two = d.has("training.micro_batch") && d.has("training.global_batch");
    if (automatic && !d.has("training.micro_batch"))
      d.missing("training.micro_batch",
                "auto is per_device_train_batch_size of TrainingArguments: --set training.micro_batch=N");
    if (automatic && !two)
      d.fall_back("batch.accumulation", "1", "auto is gradient_accumulation_steps of TrainingArguments, which is 1");
    if (!automatic && !d.has("training.micro_batch") && !d.has("training.global_batch") && d.has("batch.accumulation"))
      d.missing("training.micro_batch",
                "DeepSpeed refuses gradient_accumulation_steps alone: --set training.micro_batch=N");
  });
}

void ignore_loss_scale(Keys& section) {
  section.ignore_all({"loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "consecutive_hysteresis",
                      "min_loss_scale", "fp16", "type"},
                     "loss scale");
  section.ignore("auto_cast", "inputs are cast, nothing else");
}

void read_precision(Keys& root) {
  Draft& d = root.draft();
  bool on[2] = {false, false}, automatic = false;
  const char* const names[2] = {"fp16", "bf16"};
  for (int i = 0; i < 2; ++i) {
    auto section = root.section(names[i]);
    if (!section) continue;
    automatic = automatic || section->is("enabled", kAuto);
    on[i] = section->flag("enabled").value_or(false);
    if (on[i]) d.take(section->at("enabled"), "true", "training.precision", names[i]);
    ignore_loss_scale(*section);
    section->ignore_all({"check_grad_overflow", "immediate_grad_update"}, "no effect on sizes");
    if (section->flag("bf16_optimizer_states").value_or(false))
      d.take(section->at("bf16_optimizer_states"), "true", "training.moment_dtype", "bf16");
    section->not_carried_if_on("fp16_master_weights_and_grads", "16-bit master weights are not built yet");
    section->not_carried_if_on("bf16_master_weights_and_grads", "16-bit master weights are not built yet");
    section->finish("DeepSpeed");
  }
  if (on[0] && on[1])
    d.error(root.at("bf16"), "fp16 and bf16 are both enabled",
            "DeepSpeed refuses: \"fp16 and bf16 modes cannot be simultaneously enabled\"; keep one");
  root.not_carried_if_on("torch_autocast", "autocast of fp32 weights is not carried: --set training.param_dtype=fp32");
  d.later([&d, automatic] {
    if (d.has("training.precision") || d.has("training.compute_dtype")) return;
    if (automatic)
      d.missing("training.precision", "auto is fp16 or bf16 of TrainingArguments: --set training.precision=bf16");
    else
      d.fall_back("training.precision", "fp32", "neither fp16 nor bf16 is enabled: DeepSpeed trains in fp32");
  });
}

/// What a limit is: written, auto (HF: from the hidden size) or the default.
void read_limit(Keys& zero, std::string_view key, std::string_view to, double per_h2, double per_h) {
  Draft& d = zero.draft();
  if (zero.take_integer(key, to) || !zero.is(key, kAuto)) return;
  const Origin from = zero.at(key);
  d.later([&d, from, to = std::string(to), per_h2, per_h] {
    const auto h = d.model_size("hidden");
    if (!h) return;  // the missing model is named anyway
    const double x = static_cast<double>(*h);
    d.take(from, kAuto, to, static_cast<int64_t>(per_h2 * x * x + per_h * x),
           fmt::format("Hugging Face: {} with hidden size {}",
                       per_h2 == 0   ? "10 h"
                       : per_h2 == 1 ? "h^2"
                                     : fmt::format("{:g} h^2", per_h2),
                       *h));
  });
}

void read_offload(Keys& zero, std::string_view key, int64_t stage) {
  auto section = zero.section(key);
  if (!section) return;
  Draft& d = zero.draft();
  const std::string device = section->text("device").value_or("none");
  const bool param = key == "offload_param";
  if (device == "none")
    d.ignore(section->at("device"), device, "no offload");
  else if (param && stage < 3)
    d.ignore(zero.at(key), section->said("device"),
             fmt::format("DeepSpeed offloads weights at stage 3 only, this is {}", stage));
  else
    d.take(section->at("device"), device, param ? "strategy.offload.parameters" : "strategy.offload.optimizer", device);
  if (const auto ratio = section->number("ratio"); ratio && *ratio < 1 && stage < 3)
    d.error(section->at("ratio"), fmt::format("{} with stage {}", *ratio, stage),
            "DeepSpeed offloads a part of the optimizer at stage 3 only; legal: 1.0");
  else if (ratio && *ratio < 1)
    d.take(section->at("ratio"), section->said("ratio"), "strategy.offload.ratio", fmt::format("{}", *ratio));
  if (const auto pinned = section->flag("pin_memory")) {
    if (device == "none")
      d.ignore(section->at("pin_memory"), section->said("pin_memory"), "no offload");
    else
      d.take(section->at("pin_memory"), section->said("pin_memory"), "strategy.offload.pinned",
             *pinned ? "true" : "false");
  }
  const char* const pipelined = "pipeline_write";
  if (section->flag(pipelined).value_or(false))
    d.take(section->at(pipelined), "true", "strategy.offload.overlap", "true",
           "files are written beside the next update");
  section->not_carried_if_on("pipeline_read", "files are planned as read when their update needs them");
  section->not_carried_if_on("super_offload", "SuperOffload's asynchronous update is not built yet");
  section->ignore_all(
      {"nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline", "fast_init", "cpuadam_cores_perc"},
      "the plan has one buffer for each module that is moved; cores and drives are the cluster's");
  section->finish("DeepSpeed");
}

void read_zero_3(Keys& zero, int64_t stage) {
  if (stage == 3) {
    read_limit(zero, "stage3_prefetch_bucket_size", "strategy.zero.prefetch_elements", 0.9, 0);
    read_limit(zero, "stage3_param_persistence_threshold", "strategy.zero.persistence_threshold", 0, 10);
    zero.take_integer("stage3_max_live_parameters", "strategy.zero.max_live_parameters");
    zero.take_integer("stage3_max_reuse_distance", "strategy.zero.max_reuse_distance");
    zero.draft().later([&d = zero.draft()] {
      d.fall_back("strategy.zero.prefetch_elements", "50000000",
                  "stage3_prefetch_bucket_size: the code's default; the documentation says 5e8");
    });
  }
  zero.ignore_all({"stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
                   "stage3_max_reuse_distance", "stage3_model_persistence_threshold"},
                  stage == 3 ? "" : "of stage 3 only");
  zero.ignore_all({"stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"},
                  "at checkpoints only: all weights come together on rank 0");
  zero.ignore_all({"stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params",
                   "stage3_allgather_sequential", "memory_efficient_linear", "module_granularity_threshold"},
                  "not modelled");
  if (stage == 3)
    zero.not_carried("sub_group_size",
                     "the update is planned as one group: its passing fp32 gradients are smaller with sub-groups");
  else
    zero.ignore("sub_group_size", "of stage 3 only");
}

void read_zero(Keys& root) {
  Draft& d = root.draft();
  auto zero = root.section("zero_optimization");
  if (!zero) {
    take_zero_stage(d, root.at("zero_optimization"), "(absent)", 0);
    return;
  }
  const int64_t stage = zero->integer("stage").value_or(0);
  if (stage < 0 || stage > 3)
    return d.error(zero->at("stage"), fmt::format("no ZeRO stage {}", stage), "legal: 0, 1, 2, 3");
  take_zero_stage(d, zero->at("stage"), zero->has("stage") ? zero->said("stage") : "(absent)", stage);
  const auto overlap = zero->flag("overlap_comm");
  if (stage >= 2) {
    if (overlap)
      d.take(zero->at("overlap_comm"), zero->said("overlap_comm"), "strategy.overlap_grad_reduce",
             *overlap ? "true" : "false");
    else
      d.fall_back("strategy.overlap_grad_reduce", stage == 3 ? "true" : "false",
                  "overlap_comm: off, but on at stage 3");
  } else if (overlap) {
    if (*overlap && stage == 1)
      d.not_carried(zero->at("overlap_comm"), "true", "stage 1 is planned with its reduction after the backward");
    else
      d.ignore(zero->at("overlap_comm"), zero->said("overlap_comm"),
               stage == 0 ? "stage 0 reduces after the backward, without overlap" : "off");
  }
  if (stage > 0) read_limit(*zero, "reduce_bucket_size", "strategy.bucket_elements", 1, 0);
  if (stage == 0) zero->ignore("reduce_bucket_size", "stage 0 reduces in pieces of 5e8 elements whatever this says");
  zero->ignore("allgather_bucket_size", "ignored by DeepSpeed with NCCL: one all-gather for each parameter group");
  zero->ignore("reduce_scatter", "stages 1 and 2 all-reduce their buckets either way, stage 3 reduce-scatters");
  zero->ignore_all(
      {"allgather_partitions", "round_robin_gradients", "load_from_fp32_weights", "elastic_checkpoint",
       "ignore_unused_parameters", "use_multi_rank_bucket_allreduce", "legacy_stage1", "log_trace_cache_warnings",
       "leaf_module", "use_all_reduce_for_fetch_params", "override_module_apply"},
      "no effect on volumes, times or sizes that are modelled");
  if (const auto contiguous = zero->flag("contiguous_gradients")) {
    if (*contiguous)
      d.ignore(zero->at("contiguous_gradients"), "true", "as planned");
    else
      d.not_carried(zero->at("contiguous_gradients"), "false", "buckets are planned as contiguous");
  }
  read_zero_3(*zero, stage);
  read_offload(*zero, "offload_optimizer", stage);
  read_offload(*zero, "offload_param", stage);
  for (const auto& [key, to] :
       {std::pair{"cpu_offload", "strategy.offload.optimizer"}, {"cpu_offload_params", "strategy.offload.parameters"}})
    if (zero->flag(key).value_or(false))
      d.take(zero->at(key), "true", to, "cpu", "the old name of offload_optimizer and offload_param");
  if (const auto pinned = zero->flag("cpu_offload_use_pin_memory"))
    d.take(zero->at("cpu_offload_use_pin_memory"), zero->said("cpu_offload_use_pin_memory"), "strategy.offload.pinned",
           *pinned ? "true" : "false");
  if (const auto n = zero->integer("zero_hpz_partition_size")) {
    if (*n > 1 && stage == 3)
      d.take(zero->at("zero_hpz_partition_size"), zero->said("zero_hpz_partition_size"),
             "strategy.zero.secondary_shard", *n, "ZeRO++ (hpZ)");
    else if (*n > 1)
      d.ignore(zero->at("zero_hpz_partition_size"), zero->said("zero_hpz_partition_size"), "of stage 3 only");
    else
      d.ignore(zero->at("zero_hpz_partition_size"), zero->said("zero_hpz_partition_size"), "off");
  }
  if (zero->flag("zero_quantized_weights").value_or(false)) {
    if (stage == 3)
      d.take(zero->at("zero_quantized_weights"), "true", "strategy.zero.quantized_weights", "true", "ZeRO++ (qwZ)");
    else
      d.ignore(zero->at("zero_quantized_weights"), "true", "of stage 3 only");
  }
  for (const char* key : {"zero_quantized_gradients", "zero_quantized_nontrainable_weights", "zeropp_loco_param",
                          "mics_hierarchical_params_gather"})
    zero->not_carried_if_on(key, "quantised collectives of ZeRO++ and MiCS are not built yet");
  if (const auto n = zero->integer("mics_shard_size"); n && *n > 0)
    d.not_carried(zero->at("mics_shard_size"), zero->said("mics_shard_size"), "MiCS shard groups are not built yet");
  zero->finish("DeepSpeed");
}

void read_optimizer(Keys& root) {
  Draft& d = root.draft();
  auto section = root.section("optimizer");
  if (section) {
    const std::string type = section->text("type").value_or("");
    const std::string low = [&] {
      std::string out = type;
      for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      return out;
    }();
    if (low == "adam" || low == "adamw" || low == "fusedadam")
      d.take(section->at("type"), type, "training.optimizer", "adam");
    else if (low == "sgd")
      d.take(section->at("type"), type, "training.optimizer", "sgd");
    else
      d.not_carried(section->at("type"), type, "only adam and sgd are built; planned as adam");
    section->ignore_all({"params", "legacy_fusion"}, "learning rate, betas, weight decay: no effect on time or memory");
    section->finish("DeepSpeed");
  }
  d.later([&d, has = section.has_value()] {
    if (!has)
      d.fall_back("training.optimizer", "adam",
                  "no optimizer section: it comes from the script; Hugging Face's default is AdamW");
  });
  root.ignore("scheduler", "learning rate");
  if (const auto clip = root.number("gradient_clipping")) {
    d.take(root.at("gradient_clipping"), root.said("gradient_clipping"), "training.gradient_clipping",
           fmt::format("{}", *clip));
  } else {
    const bool automatic = root.is("gradient_clipping", kAuto);
    d.later([&d, automatic] {
      d.fall_back(
          "training.gradient_clipping", "1",
          automatic ? "auto is max_grad_norm of TrainingArguments, which is 1.0"
                    : "gradient_clipping: 1.0 since 2026-06-23, before that off (--set training.gradient_clipping=0)");
    });
  }
}

void read_rest(Keys& root) {
  Draft& d = root.draft();
  if (auto tp = root.section("tensor_parallel")) {
    tp->take_integer("autotp_size", "strategy.tensor", "AutoTP");
    tp->not_carried_if_on("tp_overlap_comm", "not built yet");
    tp->ignore_all(
        {"tp", "tp_grain_size", "injection_policy_tuple", "keep_module_on_host", "replace_with_kernel_inject"},
        "no effect on the plan");
    tp->finish("DeepSpeed");
  }
  if (const auto n = root.integer("sequence_parallel_size"); n && *n > 1) {
    d.take(root.at("sequence_parallel_size"), root.said("sequence_parallel_size"), "strategy.context", *n,
           "Ulysses, which is not Megatron's sequence parallelism");
    d.take(root.at("sequence_parallel_size"), root.said("sequence_parallel_size"), "strategy.context_exchange",
           "all_to_all");
  }
  if (auto ac = root.section("activation_checkpointing")) {
    for (const char* key : {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization"})
      ac->not_carried_if_on(key, "acts where the model calls DeepSpeed's checkpoint function; not built yet");
    ac->ignore_all({"number_checkpoints", "synchronize_checkpoint_boundary", "profile"},
                   "acts only where the model calls DeepSpeed's checkpoint function");
    ac->finish("DeepSpeed");
  }
  if (root.has("pipeline"))
    d.not_carried(root.at("pipeline"), root.said("pipeline"),
                  "the number of stages is in the script (PipelineModule): --set strategy.pipeline=N");
  if (auto elastic = root.section("elasticity"); elastic && elastic->flag("enabled").value_or(false))
    d.not_carried(root.at("elasticity"), root.said("elasticity"),
                  "enabled, it replaces all three batch sizes by its own: give them with --set");
  for (const char* key : {"curriculum_learning", "data_efficiency", "compression_training", "progressive_layer_drop",
                          "eigenvalue", "sparse_attention", "quantize_training"}) {
    if (const tree::Entry* e = root.find(key)) {
      const tree::Entry* on = e->value.find("enabled");
      if (on && truth(on->value.text) == false)
        d.ignore(root.at(key), root.said(key), "off");
      else
        d.not_carried(root.at(key), root.said(key), "changes the work from step to step; not built yet");
    }
  }
  if (const auto type = root.text("communication_data_type"))
    d.take(root.at("communication_data_type"), *type, "strategy.gradient_dtype", dtype_word(*type));
  if (auto types = root.section("data_types")) {
    if (const auto type = types->text("grad_accum_dtype"))
      d.take(types->at("grad_accum_dtype"), *type, "strategy.gradient_dtype", dtype_word(*type));
    types->finish("DeepSpeed");
  }
  root.not_carried_if_on("sparse_gradients", "not built yet");
  root.not_carried_if_on("prescale_gradients", "a kernel more for each bucket is not planned");
  root.ignore_all({"gradient_predivide_factor", "disable_allgather", "zero_allow_untested_optimizer",
                   "zero_force_ds_cpu_optimizer", "seq_parallel_communication_data_type", "checkpoint", "nebula",
                   "use_data_before_expert_parallelism", "dataloader_drop_last", "graph_harvesting"},
                  "no effect on the step");
  root.ignore_all(
      {"steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "comms_logger", "comms_config",
       "flops_profiler", "monitor_config", "tensorboard", "wandb", "csv_monitor", "autotuning"},
      "logging and measuring: synchronises the device where it is on");
  root.ignore("aio", "what the drives of a node reach is the cluster's: node.nvme_read, nvme_write");
}

}  // namespace

std::string dtype_word(std::string_view word) {
  if (word.starts_with("torch.")) word.remove_prefix(6);
  if (word == "fp16" || word == "float16" || word == "half") return "fp16";
  if (word == "bf16" || word == "bfloat16") return "bf16";
  if (word == "fp32" || word == "float32" || word == "float") return "fp32";
  return "";
}

void take_zero_stage(Draft& d, const Origin& from, std::string_view written, int64_t stage) {
  const auto put = [&d, from, said = std::string(written)](std::string_view to, std::string value, std::string why) {
    if (said == "(absent)")
      d.fall_back(to, std::move(value), std::move(why));
    else
      d.take(from, said, to, std::move(value), std::move(why));
  };
  if (stage > 0) put("strategy.data_parallel", fmt::format("zero{}", stage), "");
  d.later([&d, put, stage] {
    const std::string precision = d.value("training.precision").value_or("");
    if (stage == 0 && precision == "bf16") {
      put("strategy.data_parallel", "zero1",
          "bf16 without ZeRO runs DeepSpeed's BF16_Optimizer: fp32 gradients, sharded update");
      d.fall_back("strategy.gradient_dtype", "fp32", "BF16_Optimizer accumulates in fp32");
    } else if (stage == 0) {
      put("strategy.data_parallel", "megatron", "stage 0: all-reduce after the backward, without overlap");
      if (precision == "fp16")
        d.fall_back("strategy.gradient_copies", "flat_step",
                    "DeepSpeed's FP16_Optimizer copies the gradients for the update");
    }
    if (!precision.empty())
      d.fall_back("strategy.gradient_dtype", precision, "communication_data_type: that of the model");
  });
}

void read_deepspeed(Keys& root) {
  root.draft().framework("deepspeed");
  read_batch(root);
  read_precision(root);
  read_zero(root);
  read_optimizer(root);
  read_rest(root);
  Draft& d = root.draft();
  d.later([&d] {
    d.fall_back("training.vocab_multiple", "1", "DeepSpeed pads no vocabulary");
    if (!d.has("strategy.recompute") && !d.has("strategy.recompute.kind") && !d.has("model.layers"))
      d.note(
          "recompute is in the model's code (gradient_checkpointing), not in a DeepSpeed file: planned as none; "
          "--set strategy.recompute=full");
  });
}

}  // namespace wt::import
