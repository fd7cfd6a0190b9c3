#include "import/torchtitan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "import/deepspeed.hpp"
#include "import/hf_trainer.hpp"

namespace wt::import {

namespace {

/// Of the whole file: sections that stand in other places in older files.
struct Parts {
  std::optional<Keys> training, parallelism, experimental, checkpointing, compile, model, optimizer;
  /// The first section that has the key.
  Keys* with(std::string_view key) {
    for (auto* s : {&parallelism, &training, &experimental})
      if (*s && (*s)->has(key)) return &**s;
    return nullptr;
  }
};

int64_t count(Parts& p, std::string_view key, int64_t fallback) {
  Keys* s = p.with(key);
  return s ? s->integer(key).value_or(fallback) : fallback;
}

void take(Parts& p, std::string_view key, std::string_view to, std::string value, std::string why = "") {
  Keys* s = p.with(key);
  if (s) s->draft().take(s->at(key), s->said(key), to, std::move(value), std::move(why));
}

void read_model(Parts& p, Draft& d) {
  if (!p.model) return;
  Keys& m = *p.model;
  static const std::map<std::string, std::string> kFlavors = {{"llama3 8B", "llama3.1-8b"},
                                                              {"llama3 70B", "llama3.1-70b"},
                                                              {"llama3 405B", "llama3.1-405b"},
                                                              {"deepseek_v3 671B", "deepseek-v3"},
                                                              {"qwen3 0.6B", "qwen3-0.6b"},
                                                              {"qwen3 32B", "qwen3-32b"},
                                                              {"qwen3 8B", "qwen3-8b"},
                                                              {"qwen3 30B-A3B", "qwen3-30b-a3b"},
                                                              {"qwen3 235B-A22B", "qwen3-235b-a22b"},
                                                              {"gpt_oss 20b", "gpt-oss-20b"},
                                                              {"gpt_oss 120b", "gpt-oss-120b"}};
  const std::string name = m.text("name").value_or(""), flavor = m.text("flavor").value_or("");
  const auto row = kFlavors.find(name + " " + flavor);
  if (!d.options().model.empty()) {
    if (!flavor.empty()) d.ignore(m.at("flavor"), flavor, "--model is given");
  } else if (row != kFlavors.end()) {
    d.take(m.at("flavor"), name + " " + flavor, "model.from", row->second,
           "the flavor's sizes are in torchtitan's code: those of the built-in model");
  } else if (!flavor.empty()) {
    d.missing("model",
              fmt::format("--model: the sizes of {} {} are in torchtitan's code, not in the file", name, flavor));
  }
  m.has("converters");  // read_converters() asks for it when the precision is known
  m.ignore_all({"hf_assets_path", "tokenizer_path", "print_after_conversion", "norm_type"}, "loading");
  m.finish("torchtitan");
}

/// `root`: where the settings of a converter stand. Whether products are in 8 bits.
bool read_converters(Keys& root, Parts& p, Draft& d) {
  const tree::Entry* e = p.model ? p.model->find("converters") : nullptr;
  if (!e) return false;
  const std::string words = written(e->value);
  const bool plain = words.find("float8") != words.npos, mx = words.find("mx") != words.npos;
  if (!plain && !mx) return false;
  d.take(p.model->at("converters"), words, "training.precision", "fp8", "products of layers; torchao");
  d.take(p.model->at("converters"), words, "training.fp8_recipe", mx && !plain ? "block" : "current",
         mx && !plain ? "" : "scales are found in the step, of a tensor or of each row");
  const auto read_gather = [&d](Keys& settings) {
    constexpr std::string_view kKey = "enable_fsdp_float8_all_gather";
    if (settings.flag(kKey).value_or(false))
      d.not_carried(settings.at(kKey), "true", "shards are planned as gathered in 16 bits");
  };
  if (auto settings = root.section("float8")) read_gather(*settings);
  if (auto quantize = root.section("quantize"))
    if (auto linear = quantize->section("linear"))
      if (auto settings = linear->section("float8")) read_gather(*settings);
  return true;
}

void read_data_parallel(Parts& p, Draft& d, bool whole) {
  const int64_t replicate = count(p, "data_parallel_replicate_degree", 1),
                shard = count(p, "data_parallel_shard_degree", -1);
  const bool old = p.training && p.training->has("batch_size");
  if (replicate > 1 && shard == 1) {
    take(p, "data_parallel_replicate_degree", "strategy.data_parallel", "ddp");
    d.fall_back("strategy.ddp_bucket", "100 MiB", "torchtitan's replicate(bucket_cap_mb=100)");
    return;
  }
  if (!whole && !p.with("data_parallel_shard_degree") && !p.with("data_parallel_replicate_degree")) return;
  if (p.with("data_parallel_shard_degree"))
    take(p, "data_parallel_shard_degree", "strategy.data_parallel", "fsdp2");
  else
    d.fall_back("strategy.data_parallel", "fsdp2", "data_parallel_shard_degree: -1, what is left of the world");
  const int64_t cp = count(p, "context_parallel_degree", 1);
  if (replicate > 1) {
    take(p, "data_parallel_replicate_degree", "strategy.fsdp.sharding", "hybrid_shard");
    if (shard > 0)
      take(p, "data_parallel_shard_degree", "strategy.fsdp.shard_size", std::to_string(shard * cp));
    else if (Keys* s = p.with("data_parallel_replicate_degree")) {
      const Origin from = s->at("data_parallel_replicate_degree");
      d.later([&d, from, replicate] {
        const auto ranks = d.data_ranks();
        if (!ranks) return;
        if (*ranks % replicate != 0)
          return d.error(from, fmt::format("{} does not divide {} data-parallel ranks", replicate, *ranks), "");
        d.take(from, std::to_string(replicate), "strategy.fsdp.shard_size", *ranks / replicate,
               "data_parallel_shard_degree -1: what is left");
      });
    }
  } else if (shard > 0) {
    Keys* s = p.with("data_parallel_shard_degree");
    const Origin from = s->at("data_parallel_shard_degree");
    d.later([&d, from, shard] {
      const auto ranks = d.data_ranks();
      if (ranks && *ranks != shard)
        d.error(from, fmt::format("{} x replicate 1 is not the {} data-parallel ranks", shard, *ranks),
                fmt::format("torchtitan asserts this; legal: {} or -1", *ranks));
    });
  }
  Keys* reshard = p.with("fsdp_reshard_after_forward");
  const std::string word = reshard ? reshard->text("fsdp_reshard_after_forward").value_or("default") : "default";
  const bool pipeline = count(p, "pipeline_parallel_degree", 1) > 1;
  if (word != "default" && word != "always" && word != "never")
    d.error(reshard->at("fsdp_reshard_after_forward"), fmt::format("unknown '{}'", word),
            "legal: default, always, never");
  else if (reshard)
    d.take(reshard->at("fsdp_reshard_after_forward"), word, "strategy.fsdp.reshard_after_forward",
           word == "never" || (word == "default" && pipeline) ? "false" : "true");
  if (pipeline) d.fall_back("strategy.fsdp.no_sync", "true", "torch's pipeline stages reduce once a step");
  d.fall_back("strategy.fsdp.wrap", old ? "block" : "block_and_ends",
              old ? "files with batch_size: embedding and head belong to the root"
                  : "embedding, and norm with head, are units of their own");
  if (old) d.fall_back("strategy.fsdp.keep_last", "1", "files with batch_size: the last block stays gathered");
  d.fall_back("strategy.overlap_grad_reduce", "true", "fully_shard reduces beside the backward");
}

void read_degrees(Parts& p, Draft& d) {
  const int64_t tp = count(p, "tensor_parallel_degree", 1);
  take(p, "tensor_parallel_degree", "strategy.tensor", std::to_string(tp));
  if (tp > 1)
    take(p, "tensor_parallel_degree", "strategy.sequence_parallel", "true",
         "tensor parallelism implies sequence-parallel norms");
  if (Keys* s = p.with("disable_loss_parallel"); s && s->flag("disable_loss_parallel").value_or(false))
    take(p, "disable_loss_parallel", "training.loss", "full_vocabulary");
  if (Keys* s = p.with("enable_async_tensor_parallel"); s && s->flag("enable_async_tensor_parallel").value_or(false)) {
    if (tp > 1)
      take(p, "enable_async_tensor_parallel", "strategy.tensor_overlap", "true");
    else
      d.ignore(s->at("enable_async_tensor_parallel"), "true", "no tensor parallelism");
    if (tp > 1 && !(p.compile && p.compile->flag("enable").value_or(false)))
      d.error(s->at("enable_async_tensor_parallel"), "needs compile.enable = true",
              "torchtitan refuses async tensor parallelism without torch.compile");
  }
  if (p.with("context_parallel_degree"))
    take(p, "context_parallel_degree", "strategy.context", std::to_string(count(p, "context_parallel_degree", 1)));
  if (p.with("expert_parallel_degree"))
    take(p, "expert_parallel_degree", "strategy.expert", std::to_string(count(p, "expert_parallel_degree", 1)));
  if (const int64_t etp = count(p, "expert_tensor_parallel_degree", 1); etp > 1)
    take(p, "expert_tensor_parallel_degree", "strategy.experts.tensor", std::to_string(etp));
  const bool cp = count(p, "context_parallel_degree", 1) > 1, ep = count(p, "expert_parallel_degree", 1) > 1;
  if (Keys* s = p.with("context_parallel_rotate_method"); s && cp) {
    const std::string word = s->text("context_parallel_rotate_method").value_or("allgather");
    take(p, "context_parallel_rotate_method", "strategy.context_exchange", word == "alltoall" ? "ring" : "all_gather",
         word == "alltoall" ? "keys and values pass round" : "");
  } else if (cp) {
    d.fall_back("strategy.context_exchange", "all_gather", "context_parallel_rotate_method: allgather");
  }
  for (const auto& [key, matters] : {std::pair{"context_parallel_load_balancer", cp},
                                     {"context_parallel_rotate_method", cp},
                                     {"expert_parallel_comm_backend", ep}})
    if (Keys* s = p.with(key)) {
      if (matters)
        s->not_carried(key, "how these ranks exchange");
      else
        s->ignore(key, "no such parallelism");
    }
}

void read_pipeline(Parts& p, Draft& d, bool whole) {
  const int64_t pp = count(p, "pipeline_parallel_degree", 1);
  if (p.with("pipeline_parallel_degree")) take(p, "pipeline_parallel_degree", "strategy.pipeline", std::to_string(pp));
  static constexpr std::string_view kKeys[] = {"pipeline_parallel_schedule",
                                               "pipeline_parallel_schedule_csv",
                                               "pipeline_parallel_microbatch_size",
                                               "pipeline_parallel_layers_per_stage",
                                               "pipeline_parallel_first_stage_less_layers",
                                               "pipeline_parallel_last_stage_less_layers",
                                               "pipeline_parallel_split_points",
                                               "module_fqns_per_model_part",
                                               "pipeline_parallel_expert_parallel_overlap"};
  if (pp <= 1) {
    for (std::string_view k : kKeys)
      if (Keys* s = p.with(k)) s->ignore(k, "no pipeline");
    return;
  }
  Keys* s = p.with("pipeline_parallel_schedule");
  std::string word = s ? s->text("pipeline_parallel_schedule").value_or("1F1B") : "1F1B";
  std::string low = word;
  std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return std::tolower(c); });
  static const std::map<std::string, std::pair<std::string, int>> kSchedules = {
      {"1f1b", {"1f1b", 1}},
      {"gpipe", {"gpipe", 1}},
      {"interleaved1f1b", {"interleaved", 2}},
      {"loopedbfs", {"looped-bfs", 2}},
      {"interleavedzerobubble", {"interleaved-zb", 2}},
      {"zbvzerobubble", {"zb-v", 2}},
      {"dualpipev", {"dualpipe-v", 2}}};
  const auto row = kSchedules.find(low);
  if (row == kSchedules.end()) {
    if (s)
      d.error(s->at("pipeline_parallel_schedule"), fmt::format("unknown schedule '{}'", word),
              "legal: 1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV");
    return;
  }
  if (s)
    take(p, "pipeline_parallel_schedule", "strategy.schedule", row->second.first);
  else if (whole)
    d.fall_back("strategy.schedule", "1f1b", "pipeline_parallel_schedule: 1F1B");
  int64_t first = count(p, "pipeline_parallel_first_stage_less_layers", 1),
          last = count(p, "pipeline_parallel_last_stage_less_layers", 1);
  for (const auto& [key, less, to] :
       {std::tuple{"pipeline_parallel_first_stage_less_layers", first, "strategy.account_for_embedding"},
        {"pipeline_parallel_last_stage_less_layers", last, "strategy.account_for_loss"}}) {
    if (less > 1) {
      if (Keys* k = p.with(key)) k->not_carried(key, "more than one layer less: --set strategy.first_stage_layers=N");
    } else if (p.with(key)) {
      take(p, key, to, less == 1 ? "true" : "false");
    } else if (whole) {
      d.fall_back(to, "true", fmt::format("{}: 1", key));
    }
  }
  Keys* per = p.with("pipeline_parallel_layers_per_stage");
  if (const auto n = per ? per->integer("pipeline_parallel_layers_per_stage") : std::nullopt; n && *n > 0) {
    const Origin from = per->at("pipeline_parallel_layers_per_stage");
    d.later([&d, from, n = *n, pp, first, last] {
      const auto layers = d.model_size("layers");
      if (!layers) return;
      const int64_t stages = (*layers + first + last + n - 1) / n;
      if (stages % pp != 0)
        return d.error(from, fmt::format("{} stages of {} layers do not divide over pipeline {}", stages, n, pp),
                       "torchtitan refuses this");
      d.take(from, std::to_string(n), "strategy.virtual_stages", stages / pp);
    });
  } else {
    d.fall_back("strategy.virtual_stages", std::to_string(row->second.second),
                "pipeline_parallel_layers_per_stage: 1 stage a rank, 2 with looped schedules");
  }
  for (const char* k :
       {"pipeline_parallel_schedule_csv", "pipeline_parallel_split_points", "module_fqns_per_model_part"})
    if (Keys* x = p.with(k); x && !x->said(k).empty() && x->said(k) != "[]")
      x->not_carried(k, "an order or a split of its own");
  if (Keys* x = p.with("pipeline_parallel_expert_parallel_overlap"))
    x->ignore("pipeline_parallel_expert_parallel_overlap", "of schedules that pair a forward with a backward");
}

void read_batch(Parts& p, Draft& d, bool whole) {
  if (!p.training) return;
  Keys& t = *p.training;
  const char* local_key = t.has("local_batch_size") ? "local_batch_size" : "batch_size";
  auto local = t.integer(local_key);
  const bool tokens = t.has("num_tokens_per_microbatch_per_dp_rank") || t.has("max_context_length");
  if (!t.take_integer("seq_len", "training.seq_len") && !t.take_integer("max_context_length", "training.seq_len") &&
      whole)
    d.fall_back("training.seq_len", "2048", tokens ? "max_context_length: 2048" : "seq_len: 2048");
  t.has("max_context_length");
  const int64_t pp = count(p, "pipeline_parallel_degree", 1), micro = count(p, "pipeline_parallel_microbatch_size", 1);
  const auto global = t.integer("global_batch_size");
  if (tokens) {
    const int64_t n = t.integer("num_tokens_per_microbatch_per_dp_rank").value_or(16384);
    const int64_t seq = d.number("training.seq_len").value_or(2048);
    const Origin from = t.at(t.has("num_tokens_per_microbatch_per_dp_rank") ? "num_tokens_per_microbatch_per_dp_rank"
                                                                            : "max_context_length");
    if (seq < 1 || n % seq != 0)
      return d.error(from, fmt::format("{} tokens of a micro-batch are not whole sequences of {}", n, seq), "");
    d.take(from, std::to_string(n), "training.micro_batch", n / seq, "tokens of a micro-batch / sequence length");
    local = n / seq;
  } else if (local) {
    if (pp > 1 && micro > 0 && *local % micro != 0)
      return d.error(t.at(local_key),
                     fmt::format("{} is not a multiple of pipeline_parallel_microbatch_size {}", *local, micro),
                     "torchtitan refuses this");
    if (pp > 1)
      take(p, p.with("pipeline_parallel_microbatch_size") ? "pipeline_parallel_microbatch_size" : local_key,
           "training.micro_batch", std::to_string(micro), "local_batch_size is cut into pipeline micro-batches");
    else
      d.take(t.at(local_key), t.said(local_key), "training.micro_batch", *local);
    if (pp <= 1)
      if (Keys* s = p.with("pipeline_parallel_microbatch_size"))
        s->ignore("pipeline_parallel_microbatch_size", "no pipeline");
  } else if (whole) {
    local = 8;
    d.fall_back("training.micro_batch", std::to_string(pp > 1 ? micro : 8), "local_batch_size: 8");
  }
  if (global && *global > 0) {
    d.take(t.at("global_batch_size"), t.said("global_batch_size"), "training.global_batch", *global);
  } else if (local) {
    d.later([&d, local = *local] {
      if (const auto ranks = d.data_ranks())
        d.fall_back("training.global_batch", std::to_string(local * *ranks),
                    fmt::format("global_batch_size -1: local_batch_size {} x data-parallel ranks {}", local, *ranks));
    });
  }
}

void read_training(Parts& p, Draft& d, bool whole, bool fp8) {
  if (!p.training) return;
  Keys& t = *p.training;
  if (const auto norm = t.number("max_norm"))
    d.take(t.at("max_norm"), t.said("max_norm"), "training.gradient_clipping", fmt::format("{}", *norm));
  const std::string param = t.text("mixed_precision_param").value_or("bfloat16"),
                    reduce = t.text("mixed_precision_reduce").value_or("float32");
  for (const auto& [key, word, to] : {std::tuple{"mixed_precision_param", param, "training.precision"},
                                      {"mixed_precision_reduce", reduce, "strategy.gradient_dtype"}}) {
    const std::string ours = dtype_word(word);
    if (ours.empty())
      d.error(t.at(key), fmt::format("unknown '{}'", word), "legal: bfloat16, float32");
    else if (fp8 && std::string_view(to) == "training.precision")
      d.ignore(t.at(key), word, "of what is beside the fp8 products, as planned");
    else if (t.has(key))
      d.take(t.at(key), word, to, ours);
    else if (whole)
      d.fall_back(to, ours, fmt::format("{}: {}", key, word));
  }
  if (const auto dtype = t.text("dtype"); dtype && *dtype != "float32")
    d.not_carried(t.at("dtype"), *dtype, "shards and moments in 16 bit: --set training.master_weights=false");
  if (t.flag("enable_cpu_offload").value_or(false)) take_fsdp_offload(d, t.at("enable_cpu_offload"), "true");
  t.take_integer("seed", "training.seed");
  if (const auto steps = t.integer("steps")) {
    const Origin from = t.at("steps");
    d.later([&d, from, steps = *steps] {
      const auto s = d.number("training.seq_len"), b = d.number("training.global_batch");
      if (s && b)
        d.take(from, std::to_string(steps), "training.total_tokens",
               fmt::format("{}", static_cast<double>(steps) * static_cast<double>(*s) * static_cast<double>(*b)));
    });
  }
  if (t.flag("compile").value_or(false)) d.take(t.at("compile"), "true", "training.host_profile", "compiled");
  t.ignore_all({"dataset", "dataset_path", "gc_freq", "gc_debug", "deterministic", "warmup_steps", "data_parallel_type",
                "fp8_linear", "enable_compiled_autograd", "debug_moe_force_load_balance"},
               "no effect on the plan");
  t.finish("torchtitan");
}

void read_recompute(Parts& p, Draft& d, bool whole) {
  if (!p.checkpointing) {
    if (whole)
      d.note(
          "no [activation_checkpoint]: torchtitan's default is selective, by layer 2: --set strategy.recompute=...; "
          "planned as none");
    return;
  }
  Keys& c = *p.checkpointing;
  const std::string mode = c.text("mode").value_or("selective"), option = c.text("selective_ac_option").value_or("2");
  const Origin from = c.at(c.has("mode") ? "mode" : "selective_ac_option");
  if (mode == "none" || mode == "full") {
    d.take(from, mode, "strategy.recompute.kind", mode);
    if (mode == "full") d.fall_back("strategy.recompute.layers", "1", "full: each block is one checkpoint");
    if (c.has("selective_ac_option")) d.ignore(c.at("selective_ac_option"), option, "of mode selective only");
  } else if (mode == "selective" && option == "op") {
    d.take(from, "selective, op", "strategy.recompute.kind", "selective");
    // Reduce-scatters are on the list of ops to save: with tensor parallelism the output projection is one.
    const bool cut = count(p, "tensor_parallel_degree", 1) > 1;
    d.take(from, "selective, op", "strategy.recompute.modules", cut ? "layernorm act" : "layernorm act residual",
           "saves products and attention; the one of the gated products that is recomputed is planned as kept");
  } else if (mode == "selective") {
    const auto every = whole_number(option);
    if (!every || *every < 1)
      return d.error(c.at("selective_ac_option"), fmt::format("'{}' is neither op nor a number of 1 or more", option),
                     "");
    d.take(from, fmt::format("selective, {}", *every), "strategy.recompute.kind", "full");
    if (*every > 1)
      d.take(from, fmt::format("selective, {}", *every), "strategy.recompute.every", *every,
             "of the layers of each rank");
  } else {
    d.not_carried(from, mode, "not built yet; planned as none");
  }
  c.ignore_all({"per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "memory_budget",
                "visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check", "debug"},
               "a detail of recompute");
  c.finish("torchtitan");
}

}  // namespace

void read_torchtitan_sections(Keys& root, bool whole) {
  Draft& d = root.draft();
  d.framework("torchtitan");
  Parts p{root.section("training"),     root.section("parallelism"),
          root.section("experimental"), root.section("activation_checkpoint"),
          root.section("compile"),      root.section("model"),
          root.section("optimizer")};
  if (!p.training && whole) d.note("no [training]: torchtitan's defaults are a local batch of 8 and sequences of 2048");
  read_model(p, d);
  read_data_parallel(p, d, whole);
  read_degrees(p, d);
  read_pipeline(p, d, whole);
  read_batch(p, d, whole);
  read_training(p, d, whole, read_converters(root, p, d));
  read_recompute(p, d, whole);
  const bool compiled = p.compile && p.compile->flag("enable").value_or(false);
  if (compiled)
    d.take(p.compile->at("enable"), "true", "training.host_profile", "compiled");
  else if (whole) {
    d.fall_back("training.host_profile", "eager", "no torch.compile (data/hosts.csv)");
    d.fall_back("training.fused_kernels", "false", "no torch.compile: plain ops");
  }
  if (p.compile) {
    p.compile->ignore_all({"components", "model", "loss", "backend", "fullgraph"}, "which parts are compiled");
    p.compile->finish("torchtitan");
  }
  if (p.optimizer) {
    const std::string name = p.optimizer->text("name").value_or("AdamW");
    if (name.starts_with("Adam"))
      d.take(p.optimizer->at("name"), name, "training.optimizer", "adam");
    else
      d.not_carried(p.optimizer->at("name"), name, "only adam and sgd are built; planned as adam");
    p.optimizer->not_carried_if_on("early_step_in_backward", "not built yet");
    p.optimizer->ignore_all({"lr", "eps", "beta1", "beta2", "weight_decay", "fused", "foreach", "implementation"},
                            "no effect on the time or memory of a step");
    p.optimizer->finish("torchtitan");
  }
  if (p.parallelism) p.parallelism->finish("torchtitan");
  if (p.experimental) {
    p.experimental->ignore_all(
        {"custom_import", "custom_args_module", "pipeline_parallel_split_points", "enable_compiled_autograd"},
        "no effect on the plan");
    p.experimental->finish("torchtitan");
  }
  if (whole) d.fall_back("training.vocab_multiple", "1", "nothing pads the vocabulary");
  if (auto validation = root.section("validation");
      validation && validation->flag(validation->has("enable") ? "enable" : "enabled").value_or(false)) {
    const auto every = validation->integer("freq"), steps = validation->integer("steps");
    if (every && steps && *every > 0 && *steps > 0) {
      d.take(validation->at("freq"), validation->said("freq"), "training.loop.evaluate_every", *every);
      d.take(validation->at("steps"), validation->said("steps"), "training.loop.evaluation_batches", *steps);
    }
  }
  root.ignore_all({"job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "validation",
                   "memory_estimation", "fault_tolerance", "debug", "dataloader", "tokenizer"},
                  "no effect on the plan of a step");
  for (const char* key : {"quantize", "float8", "mx"})
    if (root.has(key)) root.ignore(key, "settings of a converter, which counts only where model.converters names it");
  root.finish("torchtitan");
}

}  // namespace wt::import
