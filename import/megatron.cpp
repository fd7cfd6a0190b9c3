#include "import/megatron.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/text.hpp"
#include "import/deepspeed.hpp"
#include "import/keys.hpp"

namespace wt::import {

namespace {

void read_degrees(MegatronArgs& a) {
  Draft& d = a.draft();
  a.take_integer("tensor_model_parallel_size", "strategy.tensor");
  if (!a.take_integer("pipeline_model_parallel_size", "strategy.pipeline"))
    d.fall_back("strategy.pipeline", "1", "pipeline_model_parallel_size: 1");
  a.take_integer("context_parallel_size", "strategy.context");
  a.take_integer("expert_model_parallel_size", "strategy.expert");
  if (const auto etp = a.integer("expert_tensor_parallel_size")) {
    if (a.integer("num_experts").value_or(0) <= 1)
      d.ignore(a.at("expert_tensor_parallel_size"), a.said("expert_tensor_parallel_size"), "no experts");
    else
      d.take(a.at("expert_tensor_parallel_size"), a.said("expert_tensor_parallel_size"), "strategy.experts.tensor",
             *etp);
  }
  for (const char* old : {"model_parallel_size", "batch_size", "warmup"})
    if (a.text(old))
      a.error(old, "is refused by Megatron-LM",
              std::string_view(old) == "batch_size" ? "it is --micro-batch-size now"
              : std::string_view(old) == "warmup"   ? "it is --lr-warmup-fraction now"
                                                    : "it is --tensor-model-parallel-size now");
  a.take_integer("world_size", "run.world");
  a.used("data_parallel_size");
  const int64_t t = a.integer("tensor_model_parallel_size").value_or(1);
  const bool sp = a.on("sequence_parallel");
  if (sp && t == 1)
    d.note(fmt::format("{}: --sequence-parallel has no effect at tensor 1: Megatron-LM switches it off in silence",
                       a.at("sequence_parallel").where));
  if (sp && t > 1) d.take(a.at("sequence_parallel"), a.said("sequence_parallel"), "strategy.sequence_parallel", "true");
  if (a.on("tp_comm_overlap")) {
    if (!sp)
      a.error("tp_comm_overlap", "needs --sequence-parallel",
              "Megatron-LM asserts: tp_comm_overlap is for sequence parallelism");
    d.take(a.at("tp_comm_overlap"), "True", "strategy.tensor_overlap", "true");
  }
  if (a.has("async_tensor_model_parallel_allreduce"))
    d.take(a.at("async_tensor_model_parallel_allreduce"), a.said("async_tensor_model_parallel_allreduce"),
           "strategy.tensor_async_backward", a.on("async_tensor_model_parallel_allreduce", true) ? "true" : "false");
}

/// Of sail-sg's fork: one or two halves a rank, with the memory of 1F1B, a half or a third of it.
std::string zero_bubble_schedule(MegatronArgs& a) {
  if (!a.on("zero_bubble_v_schedule")) return "zb-h1";
  const std::string memory = a.text("zero_bubble_v_schedule_mem_setup").value_or("zb");
  return memory == "half" ? "v-half" : memory == "min" ? "v-min" : "zb-v";
}

/// --cp-comm-type, in one word or as a list of one for each layer.
void read_context(MegatronArgs& a) {
  Draft& d = a.draft();
  if (const auto n = a.integer("ds_sequence_parallel_size"); n && *n > 1) {
    d.take(a.at("ds_sequence_parallel_size"), a.said("ds_sequence_parallel_size"), "strategy.context", *n,
           "Ulysses, which is not Megatron's sequence parallelism");
    d.take(a.at("ds_sequence_parallel_size"), a.said("ds_sequence_parallel_size"), "strategy.context_exchange",
           "all_to_all");
  }
  a.used("ds_sequence_parallel_size");
  const auto type = a.text("cp_comm_type"), sizes = a.text("hierarchical_context_parallel_sizes");
  if (!type || a.integer("context_parallel_size").value_or(1) <= 1) return;
  std::string word = *type;
  std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == '\'' || c == '"'; });
  const std::string_view ours = word == "p2p" || word == "a2a+p2p" ? "ring"
                                : word == "all_gather"             ? "all_gather"
                                : word == "a2a"                    ? "all_to_all"
                                                                   : "";
  if (ours.empty()) return d.not_carried(a.at("cp_comm_type"), *type, "planned as p2p");
  d.take(a.at("cp_comm_type"), *type, "strategy.context_exchange", std::string(ours));
  if (word != "a2a+p2p" || !sizes) return;
  const auto inner = whole_number(std::string_view(*sizes).substr(0, sizes->find(' ')));
  if (inner) d.take(a.at("hierarchical_context_parallel_sizes"), *sizes, "strategy.context_all_to_all", *inner);
}

void read_pipeline(MegatronArgs& a) {
  Draft& d = a.draft();
  const int64_t p = a.integer("pipeline_model_parallel_size").value_or(1);
  const auto per = a.integer("num_layers_per_virtual_pipeline_stage"),
             count = a.integer("num_virtual_stages_per_pipeline_rank"),
             resolved = a.integer("virtual_pipeline_model_parallel_size");
  if (per && count)
    a.error("num_virtual_stages_per_pipeline_rank", "and --num-layers-per-virtual-pipeline-stage say the same twice",
            "Megatron-LM refuses both; keep one");
  int64_t v = 1;
  if (count && p > 1) {
    v = *count;
    d.take(a.at("num_virtual_stages_per_pipeline_rank"), a.said("num_virtual_stages_per_pipeline_rank"),
           "strategy.virtual_stages", v);
  } else if (resolved && p > 1) {
    v = *resolved;
    d.take(a.at("virtual_pipeline_model_parallel_size"), a.said("virtual_pipeline_model_parallel_size"),
           "strategy.virtual_stages", v);
  } else if (per && p > 1) {
    const auto layers = d.model_size("layers");
    if (layers && *per > 0 && *layers % (p * *per) != 0) {
      a.error("num_layers_per_virtual_pipeline_stage",
              fmt::format("{} layers do not divide over pipeline {} x {} layers a chunk", *layers, p, *per),
              "Megatron-LM asserts this");
    } else if (layers && *per > 0) {
      v = *layers / p / *per;
      d.take(a.at("num_layers_per_virtual_pipeline_stage"), a.said("num_layers_per_virtual_pipeline_stage"),
             "strategy.virtual_stages", v, fmt::format("{} layers / pipeline {} / {}", *layers, p, *per));
    }
  } else if (per || count || resolved) {
    d.note("virtual pipeline stages without a pipeline: Megatron-LM refuses them at pipeline 1");
  }
  if (p > 1)
    d.fall_back("strategy.schedule", v > 1 ? "interleaved" : "1f1b",
                v > 1 ? "virtual stages: interleaved 1F1B" : "1F1B");
  a.take_integer("microbatch_group_size_per_vp_stage", "strategy.group_size");
  if (a.on("enable_zero_bubble"))
    d.take(a.at("enable_zero_bubble"), "True", "strategy.schedule", zero_bubble_schedule(a));
  const auto first = a.integer("decoder_first_pipeline_num_layers"),
             last = a.integer("decoder_last_pipeline_num_layers");
  if (first)
    d.take(a.at("decoder_first_pipeline_num_layers"), a.said("decoder_first_pipeline_num_layers"),
           "strategy.first_stage_layers", *first);
  if (last)
    d.take(a.at("decoder_last_pipeline_num_layers"), a.said("decoder_last_pipeline_num_layers"),
           "strategy.last_stage_layers", *last);
  for (const auto& [field, to] :
       {std::pair{"account_for_embedding_in_pipeline_split", "strategy.account_for_embedding"},
        {"account_for_loss_in_pipeline_split", "strategy.account_for_loss"}})
    if (a.on(field)) d.take(a.at(field), "True", to, "true");
  if (const auto layout = a.text("pipeline_model_parallel_layout"))
    d.take(a.at("pipeline_model_parallel_layout"), *layout, "strategy.pipeline_layout", *layout);
  if (a.has("overlap_p2p_comm") && v > 1)
    d.take(a.at("overlap_p2p_comm"), a.said("overlap_p2p_comm"), "strategy.overlap_p2p",
           a.on("overlap_p2p_comm", true) ? "true" : "false");
  a.used("overlap_p2p_comm");
  // No silent rounding: 30 layers on 4 stages are a fault here too.
  if (a.text("pp_partition_method").value_or("").find("embedding") != std::string::npos && p > 1)
    for (const char* to : {"strategy.account_for_embedding", "strategy.account_for_loss"})
      d.take(a.at("pp_partition_method"), a.said("pp_partition_method"), to, "true",
             "embedding and head count as layers");
  if (const auto layers = d.model_size("layers");
      layers && v == 1 && p > 1 && !a.has("zero_stage") && !first && !last &&
      !a.has("pipeline_model_parallel_layout") &&
      (*layers + a.on("account_for_embedding_in_pipeline_split") + a.on("account_for_loss_in_pipeline_split")) % p != 0)
    a.error("pipeline_model_parallel_size", fmt::format("{} layers do not divide over {} stages", *layers, p),
            "Megatron-LM asserts this (old versions dropped layers); or --decoder-first-pipeline-num-layers, "
            "--decoder-last-pipeline-num-layers");
}

void read_data_parallel(MegatronArgs& a) {
  Draft& d = a.draft();
  if (const auto stage = a.integer("zero_stage"); stage && a.on("deepspeed", true)) {
    a.used("use_distributed_optimizer");
    a.used("overlap_grad_reduce");
    if (*stage < 0 || *stage > 3)
      return a.error("zero_stage", fmt::format("no ZeRO stage {}", *stage), "legal: 0, 1, 2, 3");
    return take_zero_stage(d, a.at("zero_stage"), a.said("zero_stage"), *stage);
  }
  const bool dist = a.on("use_distributed_optimizer"), reduce = a.on("overlap_grad_reduce"),
             gather = a.on("overlap_param_gather");
  if (a.on("use_torch_fsdp2")) {
    d.take(a.at("use_torch_fsdp2"), "True", "strategy.data_parallel", "fsdp2");
    if (a.on("torch_fsdp2_no_reshard_after_forward"))
      d.take(a.at("torch_fsdp2_no_reshard_after_forward"), "True", "strategy.fsdp.reshard_after_forward", "false");
    return;
  }
  for (const char* f : {"use_megatron_fsdp", "use_custom_fsdp"})
    if (a.on(f))
      d.not_carried(a.at(f), "True",
                    "Megatron-FSDP is not built yet; planned as the distributed optimizer: --set "
                    "strategy.data_parallel=fsdp2 is near");
  if (dist)
    d.take(a.at("use_distributed_optimizer"), a.said("use_distributed_optimizer"), "strategy.data_parallel",
           "distributed_optimizer");
  else
    d.fall_back("strategy.data_parallel", "megatron", "no --use-distributed-optimizer");
  if (reduce)
    d.take(a.at("overlap_grad_reduce"), a.said("overlap_grad_reduce"), "strategy.overlap_grad_reduce", "true");
  if (gather && !dist) a.error("overlap_param_gather", "needs --use-distributed-optimizer", "Megatron-LM asserts this");
  if (gather && !reduce) a.error("overlap_param_gather", "needs --overlap-grad-reduce", "Megatron-LM asserts this");
  if (gather)
    d.take(a.at("overlap_param_gather"), a.said("overlap_param_gather"), "strategy.overlap_param_gather", "true");
  a.take_integer("ddp_bucket_size", "strategy.bucket_elements");
  if (const auto n = a.integer("num_distributed_optimizer_instances"); n && *n > 1)
    d.take(a.at("num_distributed_optimizer_instances"), a.said("num_distributed_optimizer_instances"),
           "strategy.optimizer_instances", *n);
}

void read_precision(MegatronArgs& a) {
  Draft& d = a.draft();
  const bool bf16 = a.on("bf16"), fp16 = a.on("fp16"),
             fp8 = a.text("fp8").has_value() || a.on("fp8_hybrid") || a.on("fp8_e4m3");
  if (bf16 && fp16) return a.error("bf16", "and --fp16 are both given", "Megatron-LM asserts: one of them");
  const std::string word = bf16 ? "bf16" : fp16 ? "fp16" : "fp32";
  if (fp8) {
    const char* field = a.has("fp8") ? "fp8" : a.on("fp8_hybrid") ? "fp8_hybrid" : "fp8_e4m3";
    d.take(a.at(field), a.said(field), "training.precision", "fp8");
    a.used("bf16");
  } else if (bf16 || fp16) {
    d.take(a.at(word), a.said(word), "training.precision", word);
  } else {
    d.fall_back("training.precision", "fp32", "neither --bf16 nor --fp16");
  }
  if (a.text("fp4")) d.not_carried(a.at("fp4"), a.said("fp4"), "fp4 is not built yet; planned without");
  if (a.on("fp8_param_gather")) {
    if (fp8)
      d.take(a.at("fp8_param_gather"), a.said("fp8_param_gather"), "training.fp8_params", "true");
    else
      d.ignore(a.at("fp8_param_gather"), "True", "without fp8 products");
  }
  if (const auto recipe = a.text("fp8_recipe"); recipe && fp8) {
    const bool block = *recipe == "mxfp8" || *recipe == "blockwise";
    if (!block && *recipe != "delayed" && *recipe != "tensorwise")
      d.not_carried(a.at("fp8_recipe"), *recipe, "planned as delayed");
    else
      d.take(a.at("fp8_recipe"), *recipe, "training.fp8_recipe",
             block                  ? "block"
             : *recipe == "delayed" ? "delayed"
                                    : "current");
  }
  a.used("fp8_recipe");
  const bool wide = a.on("accumulate_allreduce_grads_in_fp32"), narrow = a.on("grad_reduce_in_bf16");
  if (wide)
    d.take(a.at("accumulate_allreduce_grads_in_fp32"), a.said("accumulate_allreduce_grads_in_fp32"),
           "strategy.gradient_dtype", "fp32");
  else if (narrow)
    d.take(a.at("grad_reduce_in_bf16"), a.said("grad_reduce_in_bf16"), "strategy.gradient_dtype", "bf16");
  else if (a.has("zero_stage"))
    return;  // DeepSpeed's rule
  else
    d.fall_back("strategy.gradient_dtype", fp16 ? "fp16" : "fp32",
                fp16 ? "fp16: gradients in the dtype of the weights"
                     : "bf16: accumulate_allreduce_grads_in_fp32 is switched on");
}

void read_optimizer(MegatronArgs& a) {
  Draft& d = a.draft();
  const std::string kind = a.text("optimizer").value_or("adam");
  if (kind == "adam" || kind == "sgd") {
    if (a.has("optimizer")) d.take(a.at("optimizer"), kind, "training.optimizer", kind);
  } else {
    d.not_carried(a.at("optimizer"), kind, "only adam and sgd are built; planned as adam");
  }
  if (const auto clip = a.number("clip_grad"))
    d.take(a.at("clip_grad"), a.said("clip_grad"), "training.gradient_clipping", fmt::format("{}", *clip));
  else
    d.fall_back("training.gradient_clipping", "1", "clip_grad: 1.0");
  if (a.on("use_precision_aware_optimizer")) {
    const std::string m = dtype_word(a.text("exp_avg_dtype").value_or("fp32")),
                      v = dtype_word(a.text("exp_avg_sq_dtype").value_or("fp32"));
    if (m == v && !m.empty())
      d.take(a.at(a.has("exp_avg_dtype") ? "exp_avg_dtype" : "use_precision_aware_optimizer"), m,
             "training.moment_dtype", m);
    else
      d.not_carried(a.at("exp_avg_dtype"), a.said("exp_avg_dtype"), "moments of two formats, or fp8");
    if (a.text("main_params_dtype").value_or("fp32") != "fp32")
      d.not_carried(a.at("main_params_dtype"), a.said("main_params_dtype"), "planned as fp32");
    if (dtype_word(a.text("main_grads_dtype").value_or("fp32")) == "bf16")
      d.take(a.at("main_grads_dtype"), a.said("main_grads_dtype"), "strategy.gradient_dtype", "bf16");
  }
  for (const char* f : {"exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype", "main_grads_dtype"}) a.used(f);
  if (a.on("optimizer_cpu_offload")) {
    d.take(a.at("optimizer_cpu_offload"), "True", "strategy.offload.optimizer", "cpu");
    if (const auto f = a.number("optimizer_offload_fraction"); f && *f < 1)
      d.take(a.at("optimizer_offload_fraction"), a.said("optimizer_offload_fraction"), "strategy.offload.ratio",
             fmt::format("{}", *f));
  }
  if (a.on("cpu_optimizer"))
    d.take(a.at("cpu_optimizer"), "True", "strategy.offload.optimizer", "cpu", "DeepSpeed's CPU Adam");
  a.used("cpu_optimizer");
  if (a.on("optimizer_cpu_offload") && a.on("overlap_cpu_optimizer_d2h_h2d"))
    d.take(a.at("overlap_cpu_optimizer_d2h_h2d"), "True", "strategy.offload.overlap", "true");
  for (const char* f : {"optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d", "pin_cpu_grads",
                        "pin_cpu_params", "use_torch_optimizer_for_cpu_offload"})
    a.used(f);
  // NeMo has a switch beside the number; Megatron-LM's number is its own switch.
  if (a.has("cpu_offloading") && !a.on("cpu_offloading")) {
    if (a.has("cpu_offloading_num_layers"))
      d.ignore(a.at("cpu_offloading_num_layers"), a.said("cpu_offloading_num_layers"), "cpu_offloading is off");
  } else if (const auto n = a.integer("cpu_offloading_num_layers"); n && *n > 0)
    d.take(a.at("cpu_offloading_num_layers"), a.said("cpu_offloading_num_layers"), "strategy.offload.activation_layers",
           *n, "spread over the chunk's layers");
  a.used("cpu_offloading_num_layers");
  if (const auto f = a.text("gradient_accumulation_fusion"))
    d.take(a.at("gradient_accumulation_fusion"), *f, "training.gradient_fusion",
           a.on("gradient_accumulation_fusion", true) ? "true" : "false");
}

/// Megatron validates in the run by default, where there is a validation set.
void read_evaluation(MegatronArgs& a) {
  Draft& d = a.draft();
  const auto every = a.integer("eval_interval"), batches = a.integer("eval_iters");
  if (every && batches && *every > 0 && *batches > 0) {
    d.take(a.at("eval_interval"), a.said("eval_interval"), "training.loop.evaluate_every", *every);
    d.take(a.at("eval_iters"), a.said("eval_iters"), "training.loop.evaluation_batches", *batches);
    return;
  }
  for (const char* f : {"eval_interval", "eval_iters"})
    if (a.has(f)) d.ignore(a.at(f), a.said(f), "evaluations need both: how often, and how many batches");
}

void read_recompute(MegatronArgs& a) {
  Draft& d = a.draft();
  std::string kind = a.text("recompute_granularity").value_or("");
  const char* field = "recompute_granularity";
  if (kind.empty() && a.on("recompute_activations")) kind = "selective", field = "recompute_activations";
  if (kind.empty() && a.on("checkpoint_activations")) kind = "full", field = "checkpoint_activations";
  const auto method = a.text("recompute_method");
  const auto layers = a.integer("recompute_num_layers");
  a.used("recompute_activations");
  if (kind.empty() && method) kind = "full", field = "recompute_method";  // before 2022-05 the method alone said full
  if (kind.empty()) return;
  if (kind != "full" && kind != "selective")
    return a.error(field, fmt::format("unknown granularity '{}'", kind), "legal: full, selective");
  d.take(a.at(field), a.said(field), "strategy.recompute.kind", kind);
  if (kind == "selective") {
    if (method || layers)
      d.note(
          "recompute method and number of layers have no effect with selective: Megatron-LM asserts that they are "
          "absent");
    const std::string modules = a.text("recompute_modules").value_or("core_attn");
    std::string words;  // as given on a command line, or as a list in a log
    for (const char c : modules)
      if (c != '[' && c != ']' && c != '\'' && c != '"') words += c;
    if (words != "core_attn") d.take(a.at("recompute_modules"), modules, "strategy.recompute.modules", words);
    return;
  }
  if (method && *method != "uniform" && *method != "block")
    return a.error("recompute_method", fmt::format("unknown method '{}'", *method), "legal: uniform, block");
  if (method)
    d.take(a.at("recompute_method"), *method, "strategy.recompute.method", *method);
  else if (std::string_view(field) == "recompute_granularity")
    a.error("recompute_granularity", "full needs --recompute-method",
            "Megatron-LM asserts this; legal: uniform, block");
  if (layers)
    d.take(a.at("recompute_num_layers"), a.said("recompute_num_layers"), "strategy.recompute.layers", *layers);
  else
    d.fall_back("strategy.recompute.layers", "1", "recompute_num_layers: 1");
  if (a.on("distribute_saved_activations"))
    d.not_carried(a.at("distribute_saved_activations"), "True", "saved inputs cut over tensor ranks are not built yet");
}

void read_kernels(MegatronArgs& a) {
  Draft& d = a.draft();
  const bool local = a.text("transformer_impl").value_or("transformer_engine") == "local";
  const std::string backend = a.text("attention_backend").value_or("");
  const char* flash = nullptr;
  for (const char* f : {"use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton"})
    if (a.on(f)) flash = f;
  if (backend.find("unfused") != std::string::npos || backend.find("local") != std::string::npos)
    d.take(a.at("attention_backend"), backend, "strategy.attention", "unfused");
  else if (flash)
    d.take(a.at(flash), "True", "strategy.attention", "flash");
  else if (!backend.empty())
    d.take(a.at("attention_backend"), backend, "strategy.attention", "flash");
  else if (local)
    d.take(a.at("transformer_impl"), "local", "strategy.attention", "unfused", "no --use-flash-attn");
  else if (!a.has("zero_stage"))
    d.fall_back("strategy.attention", "flash", "attention_backend auto: fused attention of Transformer Engine");
  a.used("transformer_impl");
  const double hidden = a.number("hidden_dropout").value_or(0.1),
               attention = a.number("attention_dropout").value_or(0.1);
  const char* field = a.has("hidden_dropout") ? "hidden_dropout" : "attention_dropout";
  if (a.has(field))
    d.take(a.at(field), a.said(field), "training.dropout", hidden > 0 || attention > 0 ? "true" : "false");
  else
    d.fall_back("training.dropout", "true", "hidden_dropout and attention_dropout: 0.1 each");
  const bool fused =
      a.on("masked_softmax_fusion", true) || a.on("bias_gelu_fusion", true) || a.on("bias_dropout_fusion", true);
  if (!fused) d.take(a.at("masked_softmax_fusion"), "False", "training.fused_kernels", "false");
  if (a.on("cross_entropy_loss_fusion")) {
    const std::string impl = a.text("cross_entropy_fusion_impl").value_or("native");
    const Origin from = a.at("cross_entropy_loss_fusion");
    if (impl == "te" || impl == "linear")
      d.take(from, "True", "training.fused_loss", "true");
    else
      d.ignore(from, "True", "native: the logits still have an fp32 copy");
  }
  a.used("cross_entropy_fusion_impl");
  if (!a.has("zero_stage"))
    d.fall_back("training.host_profile", local ? "eager" : "megatron",
                local ? "--transformer-impl local: PyTorch modules (data/hosts.csv)"
                      : "Transformer Engine's modules (data/hosts.csv)");
}

void read_batch(MegatronArgs& a) {
  Draft& d = a.draft();
  a.take_integer("micro_batch_size", "training.micro_batch");
  if (!a.take_integer("global_batch_size", "training.global_batch")) {
    if (a.text("step_batch_size_schedule"))
      d.missing("training.global_batch", fmt::format("--set training.global_batch=N: one of the schedule '{}'",
                                                     a.said("step_batch_size_schedule")));
    else
      d.fall_back("batch.accumulation", "1", "global_batch_size: micro_batch_size x data-parallel ranks");
  } else if (a.text("step_batch_size_schedule")) {
    d.not_carried(a.at("step_batch_size_schedule"), a.said("step_batch_size_schedule"),
                  "a step is planned at one batch size");
  }
  if (a.text("rampup_batch_size"))
    d.not_carried(a.at("rampup_batch_size"), a.said("rampup_batch_size"), "a step is planned at the full batch size");
  if (!a.take_integer("seq_length", "training.seq_len")) a.take_integer("encoder_seq_length", "training.seq_len");
  a.used("encoder_seq_length");
  a.take_integer("seed", "training.seed");
  const auto tokens = a.integer("train_tokens"), samples = a.integer("train_samples"),
             iterations = a.integer("train_iters");
  const char* field = tokens ? "train_tokens" : samples ? "train_samples" : "train_iters";
  if (!tokens && !samples && !iterations) return;
  const Origin from = a.at(field);
  const std::string said = a.said(field);
  d.later([&d, from, said, tokens, samples, iterations] {
    const auto s = d.number("training.seq_len"), b = d.number("training.global_batch");
    double total = tokens         ? static_cast<double>(*tokens)
                   : samples && s ? static_cast<double>(*samples) * static_cast<double>(*s)
                                  : 0;
    if (!tokens && !samples && s && b)
      total = static_cast<double>(*iterations) * static_cast<double>(*s) * static_cast<double>(*b);
    if (total > 0) d.take(from, said, "training.total_tokens", fmt::format("{}", total));
  });
}

/// Switches with an effect that no key of ours says. Off, or at its default, is not worth a line.
void read_not_carried(MegatronArgs& a) {
  struct Row {
    const char *field, *off, *why;
  };
  static constexpr Row kRows[] = {
      {"delay_wgrad_compute", "False", "weight gradients later"},
      {"fine_grained_activation_offloading", "False", "parts of layers on the host are not built yet"},
      {"ddp_average_in_collective", "False", "one kernel a bucket less than planned"},
      {"ddp_num_buckets", "", "buckets are planned by size"},
      {"cuda_graph_impl", "none", "captured graphs: --set training.host_profile=graph"},
      {"enable_cuda_graph", "False", "captured graphs: --set training.host_profile=graph"},
      {"external_cuda_graph", "False", "captured graphs: --set training.host_profile=graph"},
      {"use_nccl_ub", "False", "collectives with fewer multiprocessors"},
      {"nccl_ub", "False", "collectives with fewer multiprocessors"},
      {"use_tp_pp_dp_mapping", "False", "the order of the rank grid"},
      {"defer_embedding_wgrad_compute", "False", "weight gradients later"},
      {"fp32_residual_connection", "False", "residual stream in fp32"},
      {"apply_residual_connection_post_layernorm", "False", "another place of the norm"},
      {"is_hybrid_model", "False", "state-space layers are not built yet"},
      {"hybrid_layer_pattern", "", "state-space layers are not built yet"},
      {"experimental_attention_variant", "", "another attention"},
      {"sft", "False", "packed sequences of uneven length"},
      {"freeze_all_layers", "False", "frozen weights"},
      {"partition_activations", "False", "saved inputs cut over tensor ranks are not built yet"},
      {"checkpoint_in_cpu", "False", "saved inputs on the host are not built yet"}};
  for (const Row& r : kRows) {
    const auto text = a.text(r.field);
    if (!text || *text == r.off || (a.complete && *text == "False")) continue;
    a.draft().not_carried(a.at(r.field), *text, r.why);
  }
}

}  // namespace

void read_megatron(MegatronArgs& a) {
  a.draft().framework("megatron");
  if (a.has("zero_stage")) a.draft().framework("deepspeed");
  read_megatron_model(a);
  read_degrees(a);
  read_context(a);
  read_pipeline(a);
  read_data_parallel(a);
  read_precision(a);
  read_optimizer(a);
  read_megatron_experts(a);
  read_evaluation(a);
  read_recompute(a);
  read_kernels(a);
  read_batch(a);
  read_not_carried(a);
  if (a.has("deepspeed_config") && a.on("deepspeed", true) &&
      std::none_of(a.draft().report().files.begin(), a.draft().report().files.end(),
                   [](const Report::File& f) { return f.format.starts_with("DeepSpeed"); }))
    a.draft().note(fmt::format("{}: --deepspeed_config {}: give that file too, it decides the rest",
                               a.at("deepspeed_config").where, a.said("deepspeed_config")));
  a.used("deepspeed_config");
  a.report_rest();
}

}  // namespace wt::import
