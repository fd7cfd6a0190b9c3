// accelerate's configuration (accelerate config): FSDP, DeepSpeed inline or by file, Megatron-LM, plain DDP. Batch sizes,
// sequence length and model are in the script.
#include <fmt/format.h>

#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/hf_trainer.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml) return 0;
  return f.has("distributed_type") ? 7 : 0;
}

void read_deepspeed_section(Keys& root) {
  Draft& d = root.draft();
  auto s = root.section("deepspeed_config");
  if (!s)
    return d.missing("the DeepSpeed configuration",
                     "deepspeed_config: a section with zero_stage, or deepspeed_config_file");
  if (const auto file = s->text("deepspeed_config_file")) {
    d.note(
        fmt::format("{}: the configuration is in {}: give that file too", s->at("deepspeed_config_file").where, *file));
    d.later([&d, file = *file] {
      if (!d.has("strategy.data_parallel")) d.missing("the DeepSpeed file", fmt::format("{} as a further FILE", file));
    });
    for (const char* key :
         {"gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
          "offload_param_device", "zero3_save_16bit_model", "mixed_precision"})
      if (s->has(key))
        d.error(s->at(key), "stands beside deepspeed_config_file",
                "accelerate refuses it: the value belongs into that file");
  } else {
    take_zero_stage(d, s->at("zero_stage"), s->has("zero_stage") ? s->said("zero_stage") : "(absent)",
                    s->integer("zero_stage").value_or(2));
    const int64_t stage = s->integer("zero_stage").value_or(2);
    if (!s->take_integer("gradient_accumulation_steps", "batch.accumulation"))
      d.fall_back("batch.accumulation", "1", "gradient_accumulation_steps: 1");
    if (const auto clip = s->number("gradient_clipping"))
      d.take(s->at("gradient_clipping"), s->said("gradient_clipping"), "training.gradient_clipping",
             fmt::format("{}", *clip));
    for (const auto& [key, to] : {std::pair{"offload_optimizer_device", "strategy.offload.optimizer"},
                                  {"offload_param_device", "strategy.offload.parameters"}})
      if (const auto device = s->text(key)) {
        if (*device == "none")
          d.ignore(s->at(key), "none", "no offload");
        else
          d.take(s->at(key), *device, to, *device);
      }
    d.later([&d, stage] {
      if (stage >= 2)
        d.fall_back("strategy.overlap_grad_reduce", stage == 3 ? "true" : "false",
                    "overlap_comm: off, but on at stage 3");
      d.fall_back("training.host_profile", "eager", "PyTorch modules, one operator at a time (data/hosts.csv)");
      d.fall_back("training.vocab_multiple", "1", "nothing pads the vocabulary");
    });
  }
  s->ignore_all({"zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile",
                 "deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "offload_optimizer_nvme_path",
                 "offload_param_nvme_path", "deepspeed_moe_layer_cls_names"},
                "loading, checkpoints, or which hosts");
  s->finish("accelerate");
}

void read_parallelism(Keys& root) {
  auto s = root.section("parallelism_config");
  if (!s) return;
  Draft& d = root.draft();
  const auto size = [&](const char* name) -> std::pair<std::string, std::optional<int64_t>> {
    const std::string with = fmt::format("parallelism_config_{}", name);
    const std::string key = s->has(with) ? with : name;
    return {key, s->integer(key)};
  };
  const auto [rep_key, replicate] = size("dp_replicate_size");
  const auto [shard_key, shard] = size("dp_shard_size");
  if (replicate && *replicate > 1) {
    d.take(s->at(rep_key), s->said(rep_key), "strategy.fsdp.sharding", "hybrid_shard");
    if (shard && *shard > 0) d.take(s->at(shard_key), s->said(shard_key), "strategy.fsdp.shard_size", *shard);
  }
  for (const auto& [name, to] : {std::pair{"tp_size", "strategy.tensor"}, {"cp_size", "strategy.context"}}) {
    const auto [key, n] = size(name);
    if (n) d.take(s->at(key), s->said(key), to, *n);
  }
  const auto [sp_key, sp] = size("sp_size");
  if (sp && *sp > 1) {
    d.take(s->at(sp_key), s->said(sp_key), "strategy.context", *sp, "Ulysses");
    d.take(s->at(sp_key), s->said(sp_key), "strategy.context_exchange", "all_to_all");
  }
  for (const char* k :
       {"cp_comm_strategy", "parallelism_config_cp_comm_strategy", "sp_backend", "parallelism_config_sp_backend"})
    s->not_carried(k, "how these ranks exchange");
  s->finish("accelerate");
}

void read_megatron_section(Keys& root) {
  auto s = root.section("megatron_lm_config");
  if (!s) return;
  s->take_integer("megatron_lm_tp_degree", "strategy.tensor");
  s->take_integer("megatron_lm_pp_degree", "strategy.pipeline");
  s->take_flag("megatron_lm_sequence_parallelism", "strategy.sequence_parallel");
  s->take_integer("megatron_lm_num_micro_batches", "batch.accumulation");
  Draft& d = root.draft();
  if (s->flag("megatron_lm_use_distributed_optimizer").value_or(false))
    d.take(s->at("megatron_lm_use_distributed_optimizer"), "true", "strategy.data_parallel", "distributed_optimizer");
  else
    d.fall_back("strategy.data_parallel", "megatron", "megatron_lm_use_distributed_optimizer: false");
  if (s->flag("megatron_lm_recompute_activations").value_or(false))
    d.take(s->at("megatron_lm_recompute_activations"), "true", "strategy.recompute.kind", "selective");
  if (const auto clip = s->number("megatron_lm_gradient_clipping"))
    d.take(s->at("megatron_lm_gradient_clipping"), s->said("megatron_lm_gradient_clipping"),
           "training.gradient_clipping", fmt::format("{}", *clip));
  s->finish("accelerate");
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "accelerate YAML", std::string(kAccelerateVersion));
  Keys root(*f.tree, "", d);
  const std::string kind = root.text("distributed_type").value_or("NO");
  root.take_integer("num_processes", "run.world");
  if (const auto machines = root.integer("num_machines")) {
    const auto world = root.integer("num_processes");
    if (world && *machines > 0 && *world % *machines == 0 && *world >= *machines)
      d.take(root.at("num_machines"), root.said("num_machines"), "run.devices", *world / *machines,
             "num_processes / num_machines");
    else if (world)
      d.error(root.at("num_machines"), fmt::format("{} processes do not divide over {} machines", *world, *machines),
              "num_processes counts the GPUs of all machines");
  }
  const std::string precision = root.text("mixed_precision").value_or("");
  const bool fsdp = kind == "FSDP", deepspeed = kind == "DEEPSPEED";
  if (precision == "bf16" || precision == "fp16" || precision == "fp8")
    d.take(root.at("mixed_precision"), precision, "training.precision", precision);
  else if (precision == "no")
    d.take(root.at("mixed_precision"), precision, "training.precision", "fp32");
  else if (!precision.empty())
    d.error(root.at("mixed_precision"), fmt::format("unknown '{}'", precision), "legal: no, fp16, bf16, fp8");
  else if (!deepspeed)
    d.later([&d] { d.fall_back("training.precision", "fp32", "mixed_precision: no"); });
  if (deepspeed) {
    read_deepspeed_section(root);
  } else if (fsdp) {
    if (auto s = root.section("fsdp_config"))
      read_fsdp(*s, root.at("distributed_type"), 1);
    else
      d.missing("fsdp_config", "the section that `accelerate config` writes");
  } else if (kind == "MEGATRON_LM") {
    read_megatron_section(root);
  } else if (kind == "MULTI_GPU" || kind == "NO") {
    fall_back_to_plain_ddp(d, fmt::format("distributed_type {}: DistributedDataParallel", kind));
  } else {
    d.error(root.at("distributed_type"), fmt::format("'{}' is no GPU strategy that can be planned", kind),
            "legal: FSDP, DEEPSPEED, MEGATRON_LM, MULTI_GPU");
  }
  read_parallelism(root);
  if (!root.take_integer("gradient_accumulation_steps", "batch.accumulation") && !deepspeed)
    d.later([&d] {
      if (!d.has("training.global_batch"))
        d.fall_back("batch.accumulation", "1", "gradient_accumulation_steps: 1; it may be in the script");
    });
  d.later([&d] {
    d.fall_back("training.gradient_clipping", "1", "clip_grad_norm_ is the script's: 1.0 in Hugging Face's Trainer");
  });
  root.not_carried_if_on("use_cpu", "a run on processors");
  if (auto dynamo = root.section("dynamo_config"))
    d.not_carried(root.at("dynamo_config"), root.said("dynamo_config"),
                  "torch.compile: --set training.host_profile=compiled");
  root.ignore_all({"compute_environment",
                   "debug",
                   "downcast_bf16",
                   "machine_rank",
                   "main_training_function",
                   "main_process_ip",
                   "main_process_port",
                   "rdzv_backend",
                   "same_network",
                   "tpu_env",
                   "tpu_use_cluster",
                   "tpu_use_sudo",
                   "enable_cpu_affinity",
                   "gpu_ids",
                   "rdzv_conf",
                   "commands",
                   "command_file",
                   "tpu_name",
                   "tpu_zone",
                   "mpirun_config",
                   "fp8_config"},
                  "which machines, not what they do");
  root.finish("accelerate");
}

}  // namespace

extern const Format formats_accelerate_yaml;
const Format formats_accelerate_yaml = {"accelerate_yaml", "accelerate YAML",
                                        "FSDP, DeepSpeed and Megatron-LM sections of `accelerate config`", recognise,
                                        read};

}  // namespace wt::import
