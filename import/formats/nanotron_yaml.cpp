// nanotron YAML: model, degrees, tokens; everything a job needs but the cluster.
// Facts: huggingface/nanotron 2411b022 src/nanotron/config, parallel/tensor_parallel, trainer.
#include <fmt/format.h>

#include <algorithm>

#include "core/spec/hf_config.hpp"
#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::yaml || !f.has("parallelism")) return 0;
  return f.has("tokens") && f.has("model") ? 8 : 0;
}

void read_model(Keys& root) {
  Draft& d = root.draft();
  auto model = root.section("model");
  if (!model) return d.missing("model", "the section model with model_config");
  const std::string dtype = dtype_word(model->text("dtype").value_or("bfloat16"));
  if (dtype.empty())
    d.error(model->at("dtype"), fmt::format("unknown '{}'", model->said("dtype")), "legal: bfloat16, float16, float32");
  else
    d.take(model->at("dtype"), model->said("dtype"), "training.precision", dtype);
  if (!model->take_integer("make_vocab_size_divisible_by", "training.vocab_multiple"))
    d.fall_back("training.vocab_multiple", "1", "make_vocab_size_divisible_by: 1");
  if (const auto mb = model->integer("ddp_bucket_cap_mb"))
    d.take(model->at("ddp_bucket_cap_mb"), model->said("ddp_bucket_cap_mb"), "strategy.ddp_bucket",
           fmt::format("{} MiB", *mb));
  model->ignore("init_method", "initial values");
  auto c = model->section("model_config");
  if (!c) return d.missing("model", "model.model_config");
  for (const auto& [key, to] : {std::pair{"num_hidden_layers", "model.layers"},
                                {"hidden_size", "model.hidden"},
                                {"intermediate_size", "model.ffn_hidden"},
                                {"num_attention_heads", "model.heads"},
                                {"num_key_value_heads", "model.kv_heads"},
                                {"vocab_size", "model.vocab"},
                                {"max_position_embeddings", "model.max_context"}})
    c->take_integer(key, to);
  if (const auto tied = c->flag("tie_word_embeddings"))
    d.take(c->at("tie_word_embeddings"), c->said("tie_word_embeddings"), "model.tied_embeddings",
           *tied ? "true" : "false");
  else
    d.fall_back("model.tied_embeddings", "false", "tie_word_embeddings: false");
  const bool llama = c->flag("is_llama_config").value_or(false) || c->flag("is_qwen2_config").value_or(false);
  if (!llama && (c->flag("is_starcoder2_config").value_or(false) || !c->has("is_llama_config")))
    return d.error(c->at("is_starcoder2_config"), "only Llama and Qwen2 models of nanotron are known",
                   "give the model with --model and leave model_config out");
  if (const auto activation = c->text("hidden_act"))
    d.take(c->at("hidden_act"), *activation, "model.activation", *activation == "silu" ? "silu" : "gelu");
  else
    d.fall_back("model.activation", "silu", "hidden_act: silu");
  d.fall_back("model.gated_mlp", "true", "is_llama_config");
  d.fall_back("model.norm", "rms_norm", "is_llama_config");
  d.fall_back("model.position", "rotary", "is_llama_config");
  if (c->flag("is_qwen2_config").value_or(false)) d.fall_back("model.attention_bias", "true", "is_qwen2_config");
  if (auto moe = c->find("moe_config"))
    d.not_carried(c->at("moe_config"), written(moe->value), "experts of nanotron are not read yet");
  c->ignore_all({"bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "pretraining_tp", "rms_norm_eps",
                 "rope_scaling", "rope_theta", "rope_interleaved", "use_cache"},
                "no effect on sizes");
  c->finish("nanotron");
  model->finish("nanotron");
}

void read_parallelism(Keys& root) {
  Draft& d = root.draft();
  auto p = root.section("parallelism");
  if (!p) return;
  const int64_t dp = p->integer("dp").value_or(1), pp = p->integer("pp").value_or(1), tp = p->integer("tp").value_or(1);
  for (const auto& [key, to] :
       {std::pair{"dp", "strategy.data"}, {"pp", "strategy.pipeline"}, {"tp", "strategy.tensor"}})
    p->take_integer(key, to);
  const int64_t cp = p->integer("context_parallel_size").value_or(1);
  if (p->has("context_parallel_size"))
    d.take(p->at("context_parallel_size"), p->said("context_parallel_size"), "strategy.context", cp);
  if (const auto ep = p->integer("expert_parallel_size"); ep && *ep > 1)
    d.take(p->at("expert_parallel_size"), p->said("expert_parallel_size"), "strategy.expert", *ep);
  p->has("expert_parallel_size");
  if (dp > 0 && pp > 0 && tp > 0 && cp > 0 && dp < 65536 && pp < 65536 && tp < 65536 && cp < 65536)
    d.take(p->at("dp"), fmt::format("dp {} x pp {} x tp {}", dp, pp, tp), "run.world", dp * pp * tp * cp,
           "nanotron starts exactly as many ranks");
  const std::string mode = p->text("tp_mode").value_or("ALL_REDUCE");
  if (mode != "ALL_REDUCE" && mode != "REDUCE_SCATTER")
    d.error(p->at("tp_mode"), fmt::format("unknown '{}'", mode), "legal: ALL_REDUCE, REDUCE_SCATTER");
  else if (tp > 1)
    d.take(p->at("tp_mode"), mode, "strategy.sequence_parallel", mode == "REDUCE_SCATTER" ? "true" : "false");
  else if (p->has("tp_mode"))
    d.ignore(p->at("tp_mode"), mode, "no tensor parallelism");
  if (const auto async = p->flag("tp_linear_async_communication")) {
    if (tp > 1)
      d.take(p->at("tp_linear_async_communication"), p->said("tp_linear_async_communication"),
             "strategy.tensor_async_backward", *async ? "true" : "false");
    else
      d.ignore(p->at("tp_linear_async_communication"), p->said("tp_linear_async_communication"),
               "no tensor parallelism");
  }
  const std::string engine = p->text("pp_engine").value_or("1f1b");
  if (pp > 1 && engine != "1f1b" && engine != "afab")
    d.error(p->at("pp_engine"), fmt::format("unknown '{}'", engine), "legal: 1f1b, afab");
  else if (pp > 1)
    d.take(p->at("pp_engine"), engine, "strategy.schedule", engine == "afab" ? "gpipe" : "1f1b");
  else if (p->has("pp_engine"))
    d.ignore(p->at("pp_engine"), engine, "no pipeline");
  if (p->flag("recompute_layer").value_or(false))
    d.take(p->at("recompute_layer"), "true", "strategy.recompute.kind", "full");
  p->ignore("tp_recompute_allgather", "the gathered input is kept or gathered again");
  p->finish("nanotron");
  // nanotron's own rule, in its own words.
  auto t = root.section("tokens");
  if (t && pp > 1) {
    const int64_t accumulation = t->integer("batch_accumulation_per_replica").value_or(1);
    if (accumulation < pp - 1)
      d.error(t->at("batch_accumulation_per_replica"), fmt::format("{} micro-batches for pp {}", accumulation, pp),
              fmt::format("nanotron asserts at least pp - 1 = {}", pp - 1));
  }
}

void read_tokens(Keys& root) {
  Draft& d = root.draft();
  auto t = root.section("tokens");
  if (!t) return;
  t->take_integer("micro_batch_size", "training.micro_batch");
  if (!t->take_integer("batch_accumulation_per_replica", "batch.accumulation"))
    d.fall_back("batch.accumulation", "1", "batch_accumulation_per_replica: 1");
  t->take_integer("sequence_length", "training.seq_len");
  if (const auto steps = t->integer("train_steps")) {
    const Origin from = t->at("train_steps");
    const auto micro = t->integer("micro_batch_size"), acc = t->integer("batch_accumulation_per_replica"),
               seq = t->integer("sequence_length");
    d.later([&d, from, steps = *steps, micro, acc, seq] {
      const auto ranks = d.data_ranks();
      if (micro && seq && ranks)
        d.take(from, std::to_string(steps), "training.total_tokens",
               fmt::format("{}", static_cast<double>(steps) * static_cast<double>(*micro) *
                                     static_cast<double>(acc.value_or(1)) * static_cast<double>(*seq) *
                                     static_cast<double>(*ranks)));
    });
  }
  t->ignore_all({"limit_test_batches", "limit_val_batches", "val_check_interval"}, "evaluation");
  t->finish("nanotron");
}

void read_optimizer(Keys& root) {
  Draft& d = root.draft();
  auto o = root.section("optimizer");
  if (!o) return;
  const int64_t stage = o->integer("zero_stage").value_or(0);
  if (stage == 0)
    d.take(o->at("zero_stage"), o->said("zero_stage"), "strategy.data_parallel", "ddp");
  else if (stage == 1)
    d.take(o->at("zero_stage"), o->said("zero_stage"), "strategy.data_parallel", "distributed_optimizer",
           "optimizer state cut over replicas");
  else
    d.error(o->at("zero_stage"), fmt::format("no stage {}", stage), "legal: 0, 1");
  if (const auto wide = o->flag("accumulate_grad_in_fp32"))
    d.take(o->at("accumulate_grad_in_fp32"), o->said("accumulate_grad_in_fp32"), "strategy.gradient_dtype",
           *wide ? "fp32" : d.value("training.precision").value_or("bf16"),
           *wide ? "4 bytes a parameter on every rank, not cut" : "");
  if (const auto clip = o->number("clip_grad"))
    d.take(o->at("clip_grad"), o->said("clip_grad"), "training.gradient_clipping", fmt::format("{}", *clip));
  o->ignore_all({"learning_rate_scheduler", "optimizer_factory", "weight_decay", "weight_decay_exclude_named_params"},
                "learning rate; Adam");
  o->finish("nanotron");
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "nanotron YAML", "nanotron 2411b022");
  Keys root(*f.tree, "", d);
  read_model(root);
  read_parallelism(root);
  read_tokens(root);
  read_optimizer(root);
  d.fall_back("training.host_profile", "eager", "PyTorch modules, one operator at a time (data/hosts.csv)");
  d.fall_back("training.dropout", "false", "nanotron's Llama has none");
  root.ignore_all({"checkpoints", "data_stages", "data", "general", "lighteval", "logging", "profiler", "tokenizer",
                   "s3_upload", "metrics_logging"},
                  "data, logging and checkpoints");
  root.finish("nanotron");
}

}  // namespace

extern const Format formats_nanotron_yaml;
const Format formats_nanotron_yaml = {"nanotron_yaml", "nanotron YAML", "model, degrees and tokens", recognise, read};

}  // namespace wt::import
