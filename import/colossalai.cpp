#include "import/colossalai.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.hpp"
#include "import/deepspeed.hpp"
#include "import/keys.hpp"

namespace wt::import {

namespace {

constexpr int64_t kMillion = 1 << 20;  // "in_m": 2^20 elements

const char* word(bool b) { return b ? "true" : "false"; }

void read_precision(PluginArguments& a) {
  const std::string p = a.text("precision").value_or("fp16");
  const std::string dtype = dtype_word(p);
  if (dtype.empty()) return a.draft().error(a.at("precision"), fmt::format("'{}'", p), "legal: fp16, bf16, fp32");
  a.put("precision", "training.precision", dtype);
  if (a.flag("master_weights") == false) a.put("master_weights", "training.master_weights", "false");
  a.put("max_norm", "training.gradient_clipping", fmt::format("{}", a.number("max_norm").value_or(0)));
  if (const auto wire = a.text("communication_dtype"))
    a.put("communication_dtype", "strategy.gradient_dtype", dtype_word(*wire));
  else
    a.draft().fall_back("strategy.gradient_dtype", dtype, "communication_dtype: that of the weights");
  a.not_carried_if_on("fp8_communication", "8-bit collectives are not built yet");
  a.not_carried_if_on("use_fp8", "fp8 products under a plugin are not carried: --set training.precision=fp8");
  a.ignore_all({"initial_scale", "min_scale", "max_scale", "growth_factor", "backoff_factor", "growth_interval",
                "hysteresis", "norm_type", "verbose", "custom_policy", "fp8_hook"},
               "loss scale and logging");
}

/// Shardformer's switches.
void read_kernels(PluginArguments& a) {
  const bool all = a.flag("enable_all_optimization").value_or(false);
  if (all || a.flag("enable_flash_attention").value_or(false))
    a.put(all ? "enable_all_optimization" : "enable_flash_attention", "strategy.attention", "flash");
  else
    a.draft().note(
        "attention is the model's own (attn_implementation): planned as flash; --set strategy.attention=unfused");
  const bool norm = all || a.flag("enable_fused_normalization").value_or(false);
  a.put(all ? "enable_all_optimization" : "enable_fused_normalization", "training.norm_kernel",
        norm ? "fused" : "eager_fp32", norm ? "" : "the norm of transformers");
  a.put(all ? "enable_all_optimization" : "enable_jit_fused", "training.fused_kernels",
        word(all || a.flag("enable_jit_fused").value_or(false)));
  a.put("make_vocab_size_divisible_by", "training.vocab_multiple",
        std::to_string(a.integer("make_vocab_size_divisible_by").value_or(64)));
  if (a.flag("parallel_output") == false) a.put("parallel_output", "training.loss", "full_vocabulary");
}

void read_zero_bucket(PluginArguments& a, std::string_view key, int64_t stage) {
  constexpr int64_t kDefault = 12;
  a.put(key, "strategy.bucket_elements", std::to_string(a.integer(key).value_or(kDefault) * kMillion),
        "million means 2^20 elements");
  const bool overlap = a.flag("overlap_communication").value_or(true);
  if (stage == 2)
    a.put("overlap_communication", "strategy.overlap_grad_reduce", word(overlap));
  else if (overlap)
    a.draft().not_carried(a.at("overlap_communication"), "true",
                          "stage 1 is planned with its reduction after the backward");
  a.not_carried_if_on("overlap_allgather",
                      "weights are planned as gathered behind the update, before the next forward");
  if (a.flag("cpu_offload").value_or(false)) a.put("cpu_offload", "strategy.offload.optimizer", "cpu");
}

void say_stage(PluginArguments& a, std::string_view key, int64_t stage) {
  a.put(key, "strategy.data_parallel", fmt::format("zero{}", stage));
  if (stage == 2)
    a.draft().not_carried(
        a.at(key), "2",
        "stage 2 reduce-scatters its buckets; planned as DeepSpeed's, which all-reduces them: gradients "
        "take up to twice as long");
}

void read_low_level_zero(PluginArguments& a) {
  const int64_t stage = a.integer("stage").value_or(1);
  if (stage != 1 && stage != 2)
    return a.draft().error(a.at("stage"), fmt::format("no stage {}", stage),
                           "legal: 1, 2; GeminiPlugin cuts weights too");
  say_stage(a, "stage", stage);
  read_precision(a);
  read_zero_bucket(a, "reduce_bucket_size_in_m", stage);
  a.draft().fall_back("training.vocab_multiple", "1", "LowLevelZeroPlugin pads no vocabulary");
}

/// 0 or 1 of a fraction; nothing and a fault between.
std::optional<bool> whole_fraction(PluginArguments& a, std::string_view key, double otherwise) {
  const double v = a.number(key).value_or(otherwise);
  if (v == 0 || v == 1) return v == 1;
  a.draft().error(a.at(key), fmt::format("{}: a part of the chunks cannot be planned yet", v), "legal: 0, 1");
  return std::nullopt;
}

void read_gemini(PluginArguments& a) {
  Draft& d = a.draft();
  if (const std::string policy = a.text("placement_policy").value_or("static"); policy != "static")
    d.not_carried(a.at("placement_policy"), policy,
                  "keeps on the device what fits at run time; planned as static with the fractions of the call");
  const auto cut = whole_fraction(a, "shard_param_frac", 1);
  if (cut) {
    a.put("shard_param_frac", "strategy.data_parallel", *cut ? "zero3" : "zero2",
          *cut ? "chunks are cut over the ranks" : "chunks stay whole, gradients and states are cut");
    if (!*cut)
      d.not_carried(a.at("shard_param_frac"), "0", "chunks are reduce-scattered; planned as all-reduced buckets");
  }
  const int64_t chunk = a.integer("min_chunk_size_m").value_or(32) * kMillion;
  a.put("min_chunk_size_m", "strategy.bucket_elements", std::to_string(chunk),
        "the least chunk; the search may choose a larger one");
  if (cut.value_or(false)) {
    a.put("max_prefetch", "strategy.zero.prefetch_elements",
          std::to_string(a.integer("max_prefetch").value_or(0) * chunk), "chunks ahead");
    d.fall_back("strategy.zero.persistence_threshold", "0", "every chunk is released");
    d.fall_back("strategy.zero.max_reuse_distance", "0", "a chunk is gathered again for the backward");
  }
  a.put("enable_async_reduce", "strategy.overlap_grad_reduce", word(a.flag("enable_async_reduce").value_or(true)));
  if (whole_fraction(a, "offload_optim_frac", 0).value_or(false))
    a.put("offload_optim_frac", "strategy.offload.optimizer", "cpu");
  if (whole_fraction(a, "offload_param_frac", 0).value_or(false))
    a.put("offload_param_frac", "strategy.offload.parameters", "cpu");
  if (d.has("strategy.offload.optimizer") || d.has("strategy.offload.parameters"))
    a.put("pin_memory", "strategy.offload.pinned", word(a.flag("pin_memory").value_or(false)));
  else
    a.ignore_all({"pin_memory"}, "nothing lies on the host");
  a.put("tp_size", "strategy.tensor", std::to_string(a.integer("tp_size").value_or(1)));
  if (a.flag("enable_sequence_parallelism").value_or(false))
    a.put("enable_sequence_parallelism", "strategy.sequence_parallel", "true");
  if (const auto copies = a.integer("extra_dp_size"); copies && *copies > 1)
    d.error(a.at("extra_dp_size"),
            fmt::format("{} copies of the shards cannot be planned with Gemini's chunks", *copies),
            "legal: 1; hybrid sharding is TorchFSDPPlugin's");
  read_precision(a);
  read_kernels(a);
  a.ignore_all(
      {"search_range_m", "warmup_non_model_data_ratio", "steady_cuda_cap_ratio", "gpu_margin_mem_ratio",
       "chunk_config_dict", "chunk_init_device", "hidden_dim", "memstats", "force_outputs_fp32", "strict_ddp_mode",
       "enable_gradient_accumulation", "enable_tensor_parallelism", "enable_sequence_overlap"},
      "of the search for chunks and the auto policy; no effect that is planned");
}

void read_ddp(PluginArguments& a, std::string_view bucket_key) {
  a.draft().fall_back("strategy.data_parallel", "ddp", "torch's DistributedDataParallel");
  a.put(bucket_key, "strategy.ddp_bucket", fmt::format("{} MiB", a.integer(bucket_key).value_or(25)));
  a.put("gradient_as_bucket_view", "strategy.ddp.bucket_view", word(a.flag("gradient_as_bucket_view").value_or(false)));
  if (a.flag("find_unused_parameters").value_or(false))
    a.put("find_unused_parameters", "strategy.ddp.find_unused", "true");
  a.ignore_all({"broadcast_buffers", "check_reduction", "static_graph", "fp8_communication"},
               "no effect that is planned");
}

void read_fsdp(PluginArguments& a) {
  Draft& d = a.draft();
  const auto last = [](std::string s) { return s.substr(s.rfind('.') == s.npos ? 0 : s.rfind('.') + 1); };
  const auto lower = [](std::string s) {
    for (char& c : s) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return s;
  };
  d.fall_back("strategy.data_parallel", "fsdp", "torch's FullyShardedDataParallel");
  if (const auto kind = a.text("sharding_strategy")) {
    const std::string name = lower(last(*kind));
    a.put("sharding_strategy", "strategy.fsdp.sharding", name == "_hybrid_shard_zero2" ? "hybrid_shard_zero2" : name);
  }
  if (const auto when = a.text("backward_prefetch"))
    a.put("backward_prefetch", "strategy.fsdp.backward_prefetch", last(*when) == "BACKWARD_POST" ? "post" : "pre");
  for (const auto& [key, to] : {std::pair{"forward_prefetch", "strategy.fsdp.forward_prefetch"},
                                {"limit_all_gathers", "strategy.fsdp.limit_all_gathers"}})
    if (const auto on = a.flag(key)) a.put(key, to, word(*on));
  if (!a.has("auto_wrap_policy"))
    d.fall_back("strategy.fsdp.wrap", "model", "no auto_wrap_policy: the model is one unit");
  else
    a.ignore_all({"auto_wrap_policy"}, "planned with a unit for each block");
  // Sections that are calls of their own: their text is enough.
  if (const std::string cpu = a.said("cpu_offload"); cpu.find("offload_params=True") != cpu.npos) {
    a.put("cpu_offload", "strategy.offload.parameters", "cpu");
    a.put("cpu_offload", "strategy.offload.optimizer", "cpu");
  }
  const std::string mixed = a.said("mixed_precision");
  const auto inner = [&](std::string_view key) {
    const size_t begin = mixed.find(key);
    if (begin == mixed.npos) return std::string();
    const size_t first = begin + key.size(), end = mixed.find_first_of(",) \n", first);
    return dtype_word(std::string_view(mixed).substr(first, end - first));
  };
  if (const std::string p = inner("param_dtype="); !p.empty()) a.put("mixed_precision", "training.precision", p);
  if (const std::string r = inner("reduce_dtype="); !r.empty()) a.put("mixed_precision", "strategy.gradient_dtype", r);
  d.fall_back("training.precision", "fp32", "no mixed_precision: the precision of the model");
  a.ignore_all({"cpu_offload", "mixed_precision", "param_init_fn", "sync_module_states", "use_orig_params",
                "ignored_modules", "process_group", "device_id", "fp8_communication"},
               "no effect that is planned");
}

void read_sequence(PluginArguments& a) {
  Draft& d = a.draft();
  const bool on = a.flag("enable_sequence_parallelism").value_or(false);
  const std::string mode = a.text("sequence_parallelism_mode").value_or("all_to_all");
  const int64_t size = a.integer("sp_size").value_or(1);
  if (!on) {
    if (size > 1)
      d.error(a.at("sp_size"), fmt::format("{} without enable_sequence_parallelism", size), "Colossal-AI refuses this");
    a.ignore_all({"sequence_parallelism_mode", "inner_ring_size", "enable_sequence_overlap"},
                 "without enable_sequence_parallelism");
    return;
  }
  if (mode == "split_gather" || mode == "ring") {
    a.put("sequence_parallelism_mode", "strategy.sequence_parallel", "true", "rows over the tensor ranks (Megatron's)");
    if (mode == "ring")
      d.not_carried(a.at("sequence_parallelism_mode"), mode,
                    "gathers in a ring of products; planned as gathers before them");
    if (size > 1) d.ignore(a.at("sp_size"), a.said("sp_size"), "Colossal-AI takes tp_size in this mode");
  } else if (mode == "all_to_all" || mode == "ring_attn") {
    a.put("sp_size", "strategy.context", std::to_string(size));
    a.put("sequence_parallelism_mode", "strategy.context_exchange", mode == "ring_attn" ? "ring" : "all_to_all",
          mode == "ring_attn" ? "" : "Ulysses");
  } else {
    d.error(a.at("sequence_parallelism_mode"), fmt::format("'{}'", mode),
            "legal: split_gather, ring, all_to_all, ring_attn");
  }
  a.not_carried_if_on("inner_ring_size", "rings of two levels are planned as one");
  a.ignore_all({"enable_sequence_overlap"}, "of the ring mode");
}

/// [19, 20, 20, 21] -> "Et*19|t*20|t*20|t*21L".
std::string layout_of(std::string_view list) {
  std::vector<int64_t> layers;
  for (size_t i = 0; i < list.size();) {
    if (!std::isdigit(static_cast<unsigned char>(list[i]))) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < list.size() && std::isdigit(static_cast<unsigned char>(list[end]))) ++end;
    layers.push_back(parse_int(list.substr(i, end - i)).value_or(0));
    i = end;
  }
  std::string out = "E";
  for (size_t i = 0; i < layers.size(); ++i) out += fmt::format("{}t*{}", i ? "|" : "", layers[i]);
  return out + "L";
}

/// `to` = `value`, which follows from the batch of the data loader.
void take_from_batch(Draft& d, const LoaderBatch& b, std::string_view to, int64_t value, const char* why) {
  if (!d.has(to)) d.take(b.from, b.written, to, value, why);
}

void read_pipeline(PluginArguments& a, const LoaderBatch& loader) {
  const int64_t batch = loader.size;
  Draft& d = a.draft();
  const int64_t stages = a.integer("pp_size").value_or(1);
  a.put("pp_size", "strategy.pipeline", std::to_string(stages));
  const auto count = a.integer("num_microbatches"), size = a.integer("microbatch_size");
  const std::string style = a.text("pp_style").value_or("1f1b");
  const int64_t chunks = a.integer("num_model_chunks").value_or(1);
  if (stages <= 1) {
    for (const char* key :
         {"num_microbatches", "microbatch_size", "pp_style", "num_model_chunks", "num_layers_per_stage"})
      if (a.has(key)) d.ignore(a.at(key), a.said(key), "one pipeline stage");
    a.ignore_all({"num_layers_per_stage", "overlap_p2p", "enable_metadata_cache", "scheduler_nodes"},
                 "one pipeline stage");
    if (batch > 0) take_from_batch(d, loader, "training.micro_batch", batch, "");
    return;
  }
  if (style == "interleaved")
    a.put("pp_style", "strategy.schedule", "interleaved");
  else if (style == "zbv")
    a.put("pp_style", "strategy.schedule", "zb-v");
  else if (style != "1f1b")
    d.error(a.at("pp_style"), fmt::format("'{}'", style), "legal: 1f1b, interleaved, zbv");
  if (style == "zbv" || chunks > 1)
    a.put("num_model_chunks", "strategy.virtual_stages", std::to_string(style == "zbv" ? 2 : chunks));
  if (style == "interleaved") a.put("overlap_p2p", "strategy.overlap_p2p", word(a.flag("overlap_p2p").value_or(true)));
  if (a.has("num_layers_per_stage"))
    a.put("num_layers_per_stage", "strategy.pipeline_layout",
          fmt::format("\"{}\"", layout_of(a.said("num_layers_per_stage"))));
  a.ignore_all({"num_layers_per_stage", "overlap_p2p", "enable_metadata_cache", "scheduler_nodes"}, "as planned");
  if (!count && !size) {
    if (!a.has("num_microbatches") && !a.has("microbatch_size"))
      d.error(a.at("pp_size"), fmt::format("{} stages without num_microbatches or microbatch_size", stages),
              "Colossal-AI refuses this; give one of them");
    return;
  }
  // num_microbatches wins where both are given.
  if (count) d.take(a.at("num_microbatches"), a.said("num_microbatches"), "batch.accumulation", *count);
  if (count && batch > 0) {
    if (batch % *count != 0)
      d.error(a.at("num_microbatches"), fmt::format("{} do not divide batch_size {}", *count, batch), "");
    else
      take_from_batch(d, loader, "training.micro_batch", batch / *count, "batch_size / num_microbatches");
  } else if (size && !count) {
    d.take(a.at("microbatch_size"), a.said("microbatch_size"), "training.micro_batch", *size);
    if (batch > 0 && batch % *size == 0)
      take_from_batch(d, loader, "batch.accumulation", batch / *size, "batch_size / microbatch_size");
    else if (!d.has("training.global_batch"))
      d.missing("training.global_batch",
                "batch_size of prepare_dataloader x data-parallel ranks: --set training.global_batch=N");
  }
}

void read_hybrid(PluginArguments& a, const LoaderBatch& batch) {
  Draft& d = a.draft();
  const int64_t stage = a.integer("zero_stage").value_or(0);
  if (stage < 0 || stage > 2)
    return d.error(a.at("zero_stage"), fmt::format("no stage {}", stage),
                   "legal: 0, 1, 2; GeminiPlugin cuts weights too");
  if (!a.has("tp_size") || !a.has("pp_size"))
    d.error({a.at(a.plugin()).where, a.plugin()}, "needs tp_size and pp_size", "Colossal-AI refuses this");
  a.put("tp_size", "strategy.tensor", std::to_string(a.integer("tp_size").value_or(1)));
  read_pipeline(a, batch);
  read_sequence(a);
  read_precision(a);
  read_kernels(a);
  if (stage > 0) {
    say_stage(a, "zero_stage", stage);
    read_zero_bucket(a, "zero_bucket_size_in_m", stage);
    a.ignore_all({"ddp_bucket_cap_mb", "broadcast_buffers", "find_unused_parameters", "check_reduction",
                  "gradient_as_bucket_view", "static_graph"},
                 "of DistributedDataParallel, which stage 0 uses");
  } else {
    read_ddp(a, "ddp_bucket_cap_mb");
    a.ignore_all({"zero_bucket_size_in_m", "cpu_offload", "overlap_communication", "overlap_allgather"}, "of ZeRO");
  }
  if (a.plugin() == "MoeHybridParallelPlugin")
    a.put("ep_size", "strategy.expert", std::to_string(a.integer("ep_size").value_or(1)));
  if (a.flag("dp_outside") == false)
    d.not_carried(a.at("dp_outside"), "False", "data-parallel ranks are planned outside of the stages");
  if (a.has("gradient_checkpoint_config"))
    d.not_carried(a.at("gradient_checkpoint_config"), a.said("gradient_checkpoint_config"),
                  "parts of the layers: --set strategy.recompute={kind: full, method: block, layers: N}");
  a.ignore_all({"gradient_checkpoint_config", "moe_dp_outside", "force_overlap_comm", "checkpoint_io"}, "as planned");
}

}  // namespace

std::optional<std::string> PluginArguments::text(std::string_view key) {
  known_.insert(std::string(key));
  const PythonArgument* argument = call_.find(key);
  if (!argument) return std::nullopt;
  std::string open;
  auto value = python_value(argument->text, names_, open);
  if (value) return *value == "None" ? std::nullopt : value;
  const size_t dot = open.rfind('.');
  const std::string name = dot == open.npos ? open : open.substr(dot + 1);
  const bool plain = !name.empty() &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  draft_.missing(
      fmt::format("{} of {} ({})", key, call_.name, at(key).where),
      plain ? fmt::format("is {}, which the program makes: --var {}=VALUE", argument->text.substr(0, 60), name)
            : fmt::format("is {}, which the program makes: give a copy with its value", argument->text.substr(0, 60)));
  return std::nullopt;
}

std::optional<double> PluginArguments::number(std::string_view key) {
  const auto t = text(key);
  if (!t) return std::nullopt;
  const auto v = parse_double(*t);
  if (!v) draft_.error(at(key), fmt::format("'{}' is not a number", *t), "");
  return v;
}

std::optional<int64_t> PluginArguments::integer(std::string_view key) {
  const auto t = text(key);
  if (!t) return std::nullopt;
  const auto v = whole_number(*t);
  constexpr int64_t kMost = int64_t{1} << 40;
  if (!v || *v < 0 || *v > kMost) {
    draft_.error(at(key), fmt::format("'{}' is not a whole number", *t), "");
    return std::nullopt;
  }
  return v;
}

std::optional<bool> PluginArguments::flag(std::string_view key) {
  const auto t = text(key);
  if (!t) return std::nullopt;
  const auto v = truth(*t);
  if (!v) draft_.error(at(key), fmt::format("'{}' is neither True nor False", *t), "");
  return v;
}

std::string PluginArguments::said(std::string_view key) const {
  const PythonArgument* argument = call_.find(key);
  return argument ? argument->text : "";
}

Origin PluginArguments::at(std::string_view key) const {
  const PythonArgument* argument = call_.find(key);
  return {fmt::format("{}:{}", file_, argument ? argument->line : call_.line), std::string(key)};
}

void PluginArguments::put(std::string_view key, std::string_view to, std::string value, std::string why) {
  known_.insert(std::string(key));
  if (has(key)) return draft_.take(at(key), said(key), to, std::move(value), std::move(why));
  draft_.fall_back(to, value,
                   why.empty() ? fmt::format("{}: its default", key) : fmt::format("{}: its default; {}", key, why));
}

void PluginArguments::not_carried_if_on(std::string_view key, std::string_view why) {
  if (const auto t = text(key); t && *t != "False" && *t != "0")
    draft_.not_carried(at(key), said(key), std::string(why));
}

void PluginArguments::ignore_all(std::initializer_list<std::string_view> keys, std::string_view why) {
  for (std::string_view key : keys)
    if (known_.insert(std::string(key)).second && has(key)) draft_.ignore(at(key), said(key), std::string(why));
}

void PluginArguments::finish() {
  std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const PythonArgument& a : call_.arguments) {
    const Origin from{fmt::format("{}:{}", file_, a.line), a.key.empty() ? "argument without a name" : a.key};
    if (a.key.empty()) {
      draft_.not_carried(from, a.text.substr(0, 60),
                         "the program makes it, or its place gives its name: write key=value");
    } else if (!known_.contains(a.key)) {
      const auto near = closest(a.key, known);
      draft_.unknown(
          from, a.text.substr(0, 60),
          fmt::format("not an argument of {}{}", call_.name, near ? fmt::format("; did you mean '{}'?", *near) : ""));
    }
  }
}

void read_plugin(PluginArguments& a, const LoaderBatch& batch) {
  Draft& d = a.draft();
  d.framework("colossalai");
  const std::string& name = a.plugin();
  const bool hybrid = name == "HybridParallelPlugin" || name == "MoeHybridParallelPlugin";
  if (!hybrid && batch.size > 0) take_from_batch(d, batch, "training.micro_batch", batch.size, "");
  if (name == "TorchDDPPlugin")
    read_ddp(a, "bucket_cap_mb");
  else if (name == "TorchFSDPPlugin")
    read_fsdp(a);
  else if (name == "LowLevelZeroPlugin")
    read_low_level_zero(a);
  else if (name == "GeminiPlugin")
    read_gemini(a);
  else
    read_hybrid(a, batch);
  a.finish();
}

}  // namespace wt::import
