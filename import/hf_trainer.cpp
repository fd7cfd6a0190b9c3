#include "import/hf_trainer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/spec/data_dir.hpp"
#include "import/deepspeed.hpp"

namespace wt::import {

namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

/// The key with or without the prefix, as accelerate accepts both.
std::string spelled(Keys& s, const std::string& key) {
  const std::string with = "fsdp_" + key;
  const bool has_with = s.has(with), has_plain = s.has(key);  // both are known
  return has_with || !has_plain ? with : key;
}

/// FULL_SHARD, "1", ShardingStrategy.FULL_SHARD -> ours; "" for another word.
std::string sharding_of(const std::string& word) {
  std::string w = upper(word);
  if (const size_t dot = w.rfind('.'); dot != w.npos) w = w.substr(dot + 1);
  if (w == "1" || w == "FULL_SHARD") return "full_shard";
  if (w == "2" || w == "SHARD_GRAD_OP") return "shard_grad_op";
  if (w == "3" || w == "NO_SHARD") return "no_shard";
  if (w == "4" || w == "HYBRID_SHARD") return "hybrid_shard";
  if (w == "5" || w == "HYBRID_SHARD_ZERO2" || w == "_HYBRID_SHARD_ZERO2") return "hybrid_shard_zero2";
  return "";
}

void read_sharding(Keys& s, bool second) {
  Draft& d = s.draft();
  const std::string strategy = spelled(s, "sharding_strategy"), reshard = spelled(s, "reshard_after_forward");
  if (second) {
    if (s.has(strategy)) s.ignore(strategy, "version 2 has reshard_after_forward instead");
    if (const auto b = s.flag(reshard))
      d.take(s.at(reshard), s.said(reshard), "strategy.fsdp.reshard_after_forward", *b ? "true" : "false");
    return;
  }
  const std::string& key = s.has(strategy) ? strategy : reshard;
  if (const auto word = s.text(key)) {
    if (const auto b = truth(*word); b && key == reshard && *word != "1")
      return d.take(s.at(key), *word, "strategy.fsdp.sharding", *b ? "full_shard" : "shard_grad_op");
    const std::string ours = sharding_of(*word);
    if (ours.empty())
      d.error(s.at(key), fmt::format("unknown sharding strategy '{}'", *word),
              "legal: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2, or 1 to 5");
    else
      d.take(s.at(key), *word, "strategy.fsdp.sharding", ours);
  } else {
    d.fall_back("strategy.fsdp.sharding", "full_shard", "fsdp_sharding_strategy: FULL_SHARD");
  }
}

void read_wrap(Keys& s) {
  Draft& d = s.draft();
  const std::string key = spelled(s, "auto_wrap_policy");
  const std::string word = upper(s.text(key).value_or(""));
  if (word == "TRANSFORMER_BASED_WRAP") {
    d.take(s.at(key), word, "strategy.fsdp.wrap", "block");
  } else if (word == "NO_WRAP") {
    d.take(s.at(key), word, "strategy.fsdp.wrap", "model");
  } else if (word == "SIZE_BASED_WRAP") {
    d.not_carried(s.at(key), word, "units by size are not built yet; planned as blocks");
  } else if (word.empty()) {
    d.fall_back("strategy.fsdp.wrap", "model", "fsdp_auto_wrap_policy: NO_WRAP, the whole model is one unit");
  } else {
    d.error(s.at(key), fmt::format("unknown policy '{}'", word),
            "legal: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP");
  }
  for (const char* k : {"transformer_layer_cls_to_wrap", "min_num_params"})
    if (const std::string there = spelled(s, k); s.has(there))
      s.ignore(there, "which modules are blocks; the plan's units are the model's blocks");
}

void read_prefetch(Keys& s, bool second) {
  Draft& d = s.draft();
  std::string key = spelled(s, "backward_prefetch");
  if (!s.has(key) && s.has("fsdp_backward_prefetch_policy")) key = "fsdp_backward_prefetch_policy";
  const std::string forward = spelled(s, "forward_prefetch");
  if (second) {
    if (s.has(key)) s.ignore(key, "version 2 prefetches by itself");
    if (s.flag(forward).value_or(false))
      d.error(s.at(forward), "true with FSDP version 2", "accelerate refuses it; legal: false");
    return;
  }
  if (const auto word = s.text(key)) {
    const std::string w = upper(*word);
    const std::string ours = w.find("PRE") != w.npos && w.find("NO_") == w.npos ? "pre"
                             : w.find("POST") != w.npos                         ? "post"
                                                                                : "none";
    d.take(s.at(key), *word, "strategy.fsdp.backward_prefetch", ours);
  } else {
    d.fall_back("strategy.fsdp.backward_prefetch", "none",
                "fsdp_backward_prefetch: NO_PREFETCH in accelerate; PyTorch's own default is BACKWARD_PRE");
  }
  if (s.flag(forward).value_or(false)) d.take(s.at(forward), "true", "strategy.fsdp.forward_prefetch", "true");
}

void take_word(Keys& k, std::string_view key, std::string_view to) { k.take_integer(key, to); }

/// 8-bit moments; what is paged too is planned as resident.
constexpr std::string_view kEightBits =
    "8-bit moments (bitsandbytes): 1 byte an element, planned without the scale of each block";

/// fsdp: "full_shard auto_wrap offload", or a list of these words.
void read_fsdp_words(Keys& k) {
  const tree::Entry* e = k.find("fsdp");
  if (!e) {
    if (auto config = k.section("fsdp_config")) {
      // Axolotl and accelerate: the section alone switches it on.
      read_fsdp(*config, k.at("fsdp_config"), k.integer("fsdp_version").value_or(1));
    }
    return;
  }
  Draft& d = k.draft();
  std::string words = fmt::format(" {} ", written(e->value));
  for (char& c : words)
    if (c == '[' || c == ']' || c == ',' || c == '"') c = ' ';
  if (words.find_first_not_of(' ') == words.npos) return;
  auto config = k.section("fsdp_config");
  static const tree::Node kNone = [] {
    tree::Node n;
    n.kind = tree::Node::Kind::map;
    return n;
  }();
  Keys empty(kNone, "fsdp_config", d);
  for (const char* name : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard_zero2", "hybrid_shard"})
    if (words.find(fmt::format(" {} ", name)) != words.npos)
      d.take(k.at("fsdp"), written(e->value), "strategy.fsdp.sharding", name);
  if (words.find(" auto_wrap ") != words.npos) d.take(k.at("fsdp"), written(e->value), "strategy.fsdp.wrap", "block");
  if (words.find(" offload ") != words.npos) take_fsdp_offload(d, k.at("fsdp"), written(e->value));
  read_fsdp(config ? *config : empty, k.at("fsdp"), k.integer("fsdp_version").value_or(1));
}

void read_precision(Keys& k) {
  Draft& d = k.draft();
  for (const char* key : {"bf16", "fp16"}) {
    if (k.is(key, "auto")) {
      d.missing("training.precision",
                fmt::format("{}: auto takes what the machine has: --set training.precision=bf16", key));
      continue;
    }
    if (k.flag(key).value_or(false)) d.take(k.at(key), "true", "training.precision", key);
  }
}

}  // namespace

void take_fsdp_offload(Draft& d, const Origin& from, std::string_view written) {
  const std::string why = "FSDP's CPU offload: shards, gradients and the update on the host";
  d.take(from, written, "strategy.offload.parameters", "cpu", why);
  d.take(from, written, "strategy.offload.optimizer", "cpu", why);
}

void read_fsdp(Keys& s, const Origin& from, int64_t version) {
  Draft& d = s.draft();
  const std::string version_key = spelled(s, "version");
  version = s.integer(version_key).value_or(version);
  if (version != 1 && version != 2)
    return d.error(s.at(version_key), fmt::format("no FSDP version {}", version), "legal: 1, 2");
  const bool second = version == 2;
  d.framework("fsdp");
  d.take(s.has(version_key) ? s.at(version_key) : from, s.has(version_key) ? s.said(version_key) : "FSDP",
         "strategy.data_parallel", second ? "fsdp2" : "fsdp");
  read_sharding(s, second);
  read_wrap(s);
  read_prefetch(s, second);
  const std::string limit = spelled(s, "limit_all_gathers"), offload = spelled(s, "offload_params"),
                    ac = spelled(s, "activation_checkpointing");
  if (!second) s.take_flag(limit, "strategy.fsdp.limit_all_gathers");
  if (s.flag(offload).value_or(false)) take_fsdp_offload(d, s.at(offload), "true");
  if (s.flag(ac).value_or(false)) d.take(s.at(ac), "true", "strategy.recompute.kind", "full");
  for (const char* k : {"state_dict_type", "cpu_ram_efficient_loading", "sync_module_states", "use_orig_params",
                        "final_state_dict_type"})
    if (const std::string there = spelled(s, k); s.has(there)) s.ignore(there, "loading and checkpoints");
  for (const char* k : {"xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"}) s.not_carried_if_on(k, "TPU");
  s.finish("accelerate's FSDP plugin");
  d.later([&d] {
    if (d.number("batch.accumulation").value_or(1) > 1)
      d.fall_back("strategy.fsdp.no_sync", "true", "accelerate accumulates under no_sync: whole gradients are kept");
    if (const auto p = d.value("training.precision"))
      d.fall_back("strategy.gradient_dtype", *p == "fp8" ? "bf16" : *p,
                  "mixed precision reduces in the dtype of compute");
    d.fall_back("strategy.overlap_grad_reduce", "true", "FSDP reduces beside the backward");
    d.fall_back("training.host_profile", "eager", "PyTorch modules, one operator at a time (data/hosts.csv)");
    d.fall_back("training.vocab_multiple", "1", "nothing pads the vocabulary");
  });
}

void fall_back_to_plain_ddp(Draft& d, const std::string& why) {
  d.framework("huggingface");
  d.later([&d, why] {
    d.fall_back("strategy.data_parallel", "ddp", why);
    if (d.value("strategy.data_parallel") == "ddp") {
      d.fall_back("training.host_profile", "eager", "PyTorch modules, one operator at a time (data/hosts.csv)");
      d.fall_back("training.vocab_multiple", "1", "nothing pads the vocabulary");
    }
  });
}

void need_hub_model(Keys& k, std::string_view key) {
  const auto name = k.text(key);
  if (!name) return;
  Draft& d = k.draft();
  d.ignore(k.at(key), *name, "a name on the Hub: the file does not hold the model's shape");
  std::string tail = name->substr(name->rfind('/') == std::string::npos ? 0 : name->rfind('/') + 1);
  std::transform(tail.begin(), tail.end(), tail.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string built_in =
      tail.find('/') == std::string::npos && !tail.empty() && !find_data("models", tail).empty() ? tail : "";
  d.later([&d, built_in, name = *name] {
    if (d.options().model.empty() && !d.has("model.hidden"))
      d.missing("model", built_in.empty() ? fmt::format("--model FILE: the config.json of {}", name)
                                          : fmt::format("--model {} is built in; the file names {}", built_in, name));
  });
}

void read_training_arguments(Keys& k) {
  Draft& d = k.draft();
  take_word(k, "per_device_train_batch_size", "training.micro_batch");
  take_word(k, "gradient_accumulation_steps", "batch.accumulation");
  read_precision(k);
  if (k.flag("gradient_checkpointing").value_or(false))
    d.take(k.at("gradient_checkpointing"), "true", "strategy.recompute.kind", "full");
  if (const auto clip = k.number("max_grad_norm"))
    d.take(k.at("max_grad_norm"), k.said("max_grad_norm"), "training.gradient_clipping", fmt::format("{}", *clip));
  else
    d.later([&d] { d.fall_back("training.gradient_clipping", "1", "max_grad_norm: 1.0"); });
  read_fsdp_words(k);
  if (const auto file = k.text("deepspeed")) {
    d.note(fmt::format("{}: {}: give that DeepSpeed file too", k.at("deepspeed").where, *file));
    d.later([&d, file = *file] {
      if (!d.has("strategy.data_parallel")) d.missing("the DeepSpeed file", fmt::format("{} as a further FILE", file));
    });
  } else {
    fall_back_to_plain_ddp(d, "neither FSDP nor DeepSpeed: DistributedDataParallel");
  }
  if (const auto optim = k.text("optim")) {
    if (optim->find("8bit") != std::string::npos && optim->find("adam") != std::string::npos)
      d.take(k.at("optim"), *optim, "training.moment_dtype", "fp8", std::string(kEightBits));
    else if (optim->find("paged") != std::string::npos)
      d.not_carried(k.at("optim"), *optim, "paged moments are planned as resident");
    else if (optim->starts_with("adam"))
      d.take(k.at("optim"), *optim, "training.optimizer", "adam");
    else if (optim->starts_with("sgd"))
      d.take(k.at("optim"), *optim, "training.optimizer", "sgd");
    else
      d.not_carried(k.at("optim"), *optim, "only adam and sgd are built; planned as adam");
  }
  k.take_integer("seed", "training.seed");
  k.not_carried_if_on("torch_compile", "compiled regions: --set training.host_profile=compiled");
  k.ignore_all({"learning_rate", "lr_scheduler_type", "lr_scheduler", "warmup_ratio", "warmup_steps", "weight_decay",
                "adam_beta1", "adam_beta2", "adam_epsilon", "num_train_epochs", "num_epochs", "max_steps", "tf32"},
               "no effect on the time or memory of a step");
  k.ignore_all({"output_dir",
                "logging_steps",
                "logging_dir",
                "save_steps",
                "save_strategy",
                "save_total_limit",
                "save_only_model",
                "report_to",
                "run_name",
                "plot_loss",
                "overwrite_output_dir",
                "overwrite_cache",
                "eval_steps",
                "eval_strategy",
                "evaluation_strategy",
                "do_train",
                "do_eval",
                "per_device_eval_batch_size",
                "val_size",
                "resume_from_checkpoint",
                "ddp_timeout",
                "push_to_hub",
                "hub_model_id",
                "disable_tqdm",
                "remove_unused_columns",
                "gradient_checkpointing_kwargs",
                "load_best_model_at_end",
                "metric_for_best_model"},
               "logging, evaluation and checkpoints");
  k.ignore_all(
      {"dataset", "dataset_dir", "dataset_name", "dataset_config_name", "eval_dataset", "template", "max_samples",
       "preprocessing_num_workers", "dataloader_num_workers", "dataloader_pin_memory", "trust_remote_code",
       "tokenizer_name", "use_fast_tokenizer", "train_file", "validation_file", "data_path", "streaming"},
      "data");
}

}  // namespace wt::import
