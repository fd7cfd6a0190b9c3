#include "study/validate_map.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "core/lower/schedule.hpp"
#include "study/validate_data.hpp"
#include "study/validate_hardware.hpp"
#include "study/validate_open.hpp"
#include "study/validate_terms.hpp"
#include "study/validate_words.hpp"

namespace wt::study {
namespace {

/// One row on its way to a job. Each step writes what the row says into `job`, what it leaves open into `open`, what it
/// takes for granted into the mapping's assumptions, and why the row cannot be predicted into its `skip`.
class RowMapper {
 public:
  RowMapper(const Case& published, const ValidateData::Impl& data)
      : data_(data), row_(corrected(published, *data.frameworks, out_.assumptions)) {}

  Mapping map() {
    for (const auto step : {&RowMapper::check, &RowMapper::degrees, &RowMapper::hardware, &RowMapper::model,
                            &RowMapper::framework, &RowMapper::parallelism, &RowMapper::experts, &RowMapper::numbers,
                            &RowMapper::sharding, &RowMapper::attention, &RowMapper::schedule, &RowMapper::batch,
                            &RowMapper::recompute, &RowMapper::networks, &RowMapper::candidates}) {
      (this->*step)();
      if (!out_.skip.empty()) break;
    }
    return std::move(out_);
  }

 private:
  void check();
  void degrees();
  void hardware();
  void model();
  void framework();
  void parallelism();
  void experts();
  void numbers();
  void sharding();
  void attention();
  void schedule();
  void batch();
  void recompute();
  void networks();
  void candidates();

  void assume(std::string what) { out_.assumptions.push_back(std::move(what)); }
  /// The framework's value of a key of the strategy; "" where it has none.
  std::string default_of(std::string_view key) const {
    const tree::Entry* strategy = defaults_.set.find("strategy");
    return strategy ? scalar_of(strategy->value, key) : "";
  }
  /// The kind of data parallelism that the framework has at a stage of ZeRO, if it differs by stage.
  std::string kind_at(const std::string& stage) const {
    const tree::Entry* strategy = defaults_.set.find("strategy");
    const tree::Entry* kinds = strategy ? strategy->value.find("data_parallel") : nullptr;
    return kinds && kinds->value.is_map() ? scalar_of(kinds->value, stage) : "";
  }
  YAML::Node strategy() { return job_["strategy"]; }
  YAML::Node training() { return job_["training"]; }

  const ValidateData::Impl& data_;
  Mapping out_;
  const Case row_;
  FrameworkDefaults defaults_;
  int64_t tp_ = 1, pp_ = 1, dp_ = 1, cp_ = 1;
  std::vector<YAML::Node> fabrics_;
  YAML::Node job_;
  std::vector<Choice> open_;
  std::vector<int64_t> global_batches_;
};

void RowMapper::check() {
  out_.skip = not_built(row_);
  if (out_.skip.empty() && row_.task == "sft")
    assume("supervised fine-tuning of all weights: as pre-training, sequences full");
  if (out_.skip.empty() && row_.task == "lora")
    assume("LoRA of rank 16 beside the QKV product alone, as NeMo's performance recipes set it; sequences full");
}

/// One unknown degree follows from the others.
void RowMapper::degrees() {
  if (!row_.gpus) {
    out_.skip = "the number of GPUs is not published";
    return;
  }
  const int unknown = !row_.tp + !row_.pp + !row_.dp;
  if (unknown > 1) {
    out_.skip = "two or more parallel degrees are not published";
    return;
  }
  cp_ = row_.cp.value_or(1);
  const int64_t product = row_.tp.value_or(1) * row_.pp.value_or(1) * row_.dp.value_or(1) * cp_;
  if (*row_.gpus % product != 0 || (unknown == 0 && product != *row_.gpus)) {
    out_.skip = fmt::format("tp x pp x dp{} = {} does not give {} GPUs", cp_ > 1 ? " x cp" : "", product, *row_.gpus);
    return;
  }
  const auto degree = [&](const std::optional<int64_t>& given, const char* name) {
    if (!given)
      assume(fmt::format("{} not given: {} is what is left of {} GPUs", name, *row_.gpus / product, *row_.gpus));
    return given.value_or(*row_.gpus / product);
  };
  tp_ = degree(row_.tp, "tp");
  pp_ = degree(row_.pp, "pp");
  dp_ = degree(row_.dp, "dp");
}

void RowMapper::hardware() {
  RowCluster found = cluster_of(row_, data_.clusters, out_.assumptions);
  out_.skip = found.skip;
  if (!out_.skip.empty()) return;
  job_["name"] = row_.id;
  job_["cluster"] = found.cluster;
  fabrics_ = std::move(found.fabrics);
}

void RowMapper::model() {
  job_["model"] = model_of(row_, out_.assumptions);
  add_model_rules(row_, *data_.frameworks, job_["model"]);
}

void RowMapper::framework() {
  defaults_ = framework_defaults(*data_.frameworks, description_of(row_));
  out_.skip = defaults_.skip;
  job_["framework"] = framework_key(row_, defaults_);
  assume(fmt::format("framework rules: {}", fmt::join(defaults_.rules, ", ")));
}

void RowMapper::parallelism() {
  strategy()["tensor"] = tp_;
  strategy()["pipeline"] = pp_;
  if (cp_ > 1) strategy()["context"] = cp_;
  if (tp_ == 1)
    strategy()["sequence_parallel"] = false;
  else if (row_.sp.value_or(false) || default_of("sequence_parallel").empty())
    strategy()["sequence_parallel"] = row_.sp.value_or(false);
  // Flags that have no effect on one replica, as the frameworks treat them: switched off, not refused.
  if (dp_ == 1) strategy()["overlap_grad_reduce"] = strategy()["overlap_param_gather"] = false;
}

void RowMapper::experts() {
  if (!row_.moe) return;
  const int64_t stage = *row_.gpus / pp_, each = row_.ep.value_or(1);
  strategy()["expert"] = each;
  if (row_.etp) {
    strategy()["experts"]["tensor"] = *row_.etp;
  } else if (tp_ > 1 && stage % (each * tp_) != 0) {
    strategy()["experts"]["tensor"] = 1;
    assume("experts are not cut: their tensor degree is not given, and tp would not fit");
  }
  if (tp_ > 1 && !row_.sp.value_or(false)) {
    strategy()["sequence_parallel"] = true;
    assume("sequence parallelism: Megatron trains experts with tensor parallelism only with it");
  }
  assume("every expert gets as many tokens as any other");
}

void RowMapper::numbers() {
  training()["seq_len"] = *row_.seq_len;
  training()["precision"] = precision_of(row_.precision);
  if (training()["precision"].Scalar() == "fp8") training()["fp8_recipe"] = fp8_recipe_of(row_, out_.assumptions);
  if (row_.task == "lora") {  // NeMo: recipe.peft.target_modules = ['linear_qkv']; the rank changes next to nothing
    training()["lora"]["rank"] = 16;
    training()["lora"]["alpha"] = 32;
    training()["lora"]["targets"].push_back("qkv");
    if (training()["precision"].Scalar() == "fp8") {
      training()["fp8_params"] = false;
      assume("the frozen weights are kept in 16 bits");
    }
  }
  if (row_.unknown("vocab")) assume(fmt::format("vocabulary not in the source: {}", *row_.vocab));
}

void RowMapper::sharding() {
  const std::string stage = fmt::format("{}", row_.zero_stage.value_or(0));
  const std::string by_stage = kind_at(stage);
  // A stage that the framework does not have is none: what it does without ZeRO.
  const bool differs = default_of("data_parallel").empty();
  if (differs && by_stage.empty()) strategy()["data_parallel"] = "megatron";
  const std::string kind = differs ? by_stage : default_of("data_parallel");
  // A shard group smaller than the data-parallel ranks: copies of the model, each cut within its group.
  if ((kind == "fsdp" || kind == "fsdp2") && !row_.hybrid_shard.empty() &&
      row_.hybrid_shard.find_first_not_of("0123456789") == std::string::npos) {
    const int64_t group = std::stoll(row_.hybrid_shard.substr(0, 9));
    if (group > 1 && group < dp_) {
      strategy()["fsdp"]["sharding"] = "hybrid_shard";
      strategy()["fsdp"]["shard_size"] = group;
    }
  }
  if ((kind == "fsdp" || kind == "fsdp2") && pp_ > 1) {
    // torch.distributed.pipelining/stage.py: gradients are reduced after the last micro-batch; torchtitan's and AutoModel's
    // fully_shard: reshard_after_forward is off on pipeline stages.
    strategy()["fsdp"]["no_sync"] = true;
    if (kind == "fsdp2") strategy()["fsdp"]["reshard_after_forward"] = false;
  }
  if (row_.unknown("zero_stage") && dp_ > 1 && differs) {
    const auto kinds = [zero = kind_at("0"), one = kind_at("1")](YAML::Node job, const std::string& v) {
      const std::string& kind_of_stage = v == "0" ? zero : one;
      if (!kind_of_stage.empty()) job["strategy"]["data_parallel"] = kind_of_stage;
    };
    open_.push_back({"zero_stage", {"0", "1"}, kinds});
  }
}

void RowMapper::attention() {
  const std::string flash = lower(row_.flash_attention);
  if (flash == "true" || flash == "false")
    strategy()["attention"] = flash == "true" ? "flash" : "unfused";
  else
    assume(fmt::format("attention kernel not given: {}", default_of("attention")));
}

void RowMapper::schedule() {
  const std::string name = schedule_of(row_);
  if (name.empty()) {
    out_.skip = fmt::format("schedule '{}' is not built yet", row_.schedule);
    return;
  }
  strategy()["schedule"] = name == "interleaved" ? "1f1b" : name;
  const bool on_a_v = lower::find_schedule(name)->placement == plan::PlacementKind::zigzag;
  if (on_a_v) {
    strategy()["virtual_stages"] = 2;
  } else if (pp_ > 1 && (!row_.vpp || row_.unknown("vpp"))) {
    const bool says_interleaved = has(row_.schedule, "interleaved") || has(row_.schedule, "interleaving");
    if (says_interleaved || row_.unknown("vpp"))
      open_.push_back({"virtual_stages", plausible_virtual_stages(*row_.layers, pp_, name == "interleaved"),
                       [](YAML::Node job, const std::string& v) {
                         job["strategy"]["virtual_stages"] = v;
                         job["strategy"]["schedule"] = v == "1" ? "1f1b" : "interleaved";
                       }});
  } else if (pp_ > 1 && row_.vpp.value_or(1) > 1) {
    strategy()["virtual_stages"] = *row_.vpp;
    strategy()["schedule"] = "interleaved";
  }
  split_layers(row_, strategy(), pp_ * (row_.vpp && pp_ > 1 ? *row_.vpp : 1), default_of("partition") == "balanced",
               out_.assumptions);
}

void RowMapper::batch() {
  std::optional<int64_t> micro = row_.micro, global = row_.global;
  if (!micro && global && row_.grad_accum && *global % (dp_ * *row_.grad_accum) == 0)
    micro = *global / (dp_ * *row_.grad_accum);
  if (!global && micro && row_.grad_accum) global = *micro * dp_ * *row_.grad_accum;
  if (global) {
    global_batches_ = {*global};
  } else {
    for (const int64_t rounds : {2, 4, 8}) global_batches_.push_back(dp_ * pp_ * rounds * micro.value_or(1));
    assume("global batch not given: 2, 4 and 8 micro-batches for each stage tried");
  }
  if (micro) {
    training()["micro_batch"] = *micro;
    return;
  }
  const int64_t per_replica = global_batches_.front() / dp_;
  open_.push_back({"micro_batch", global ? plausible_micro_batches(per_replica) : std::vector<std::string>{"1", "2"},
                   [](YAML::Node job, const std::string& v) { job["training"]["micro_batch"] = v; }});
}

void RowMapper::recompute() {
  if (const int64_t layers = offloaded_layers(row_); layers > 0) {
    strategy()["offload"]["activation_layers"] = layers;
    assume(fmt::format("activations of {} layers on the host: spread over the layers, all of a layer", layers));
  }
  YAML::Node said;
  switch (recompute_of(row_.recompute)) {
    case Recompute::none: said["kind"] = "none"; break;
    case Recompute::selective: said["kind"] = "selective"; break;
    case Recompute::parts:
      said["kind"] = "selective";
      said["modules"] = recomputed_parts(row_);
      break;
    case Recompute::full: said["kind"] = "full"; break;
    case Recompute::every_second:
      said["kind"] = "full";
      said["every"] = 2;
      break;
    case Recompute::other:
      assume(fmt::format("recompute '{}' keeps more than full and less than none", row_.recompute));
      open_.push_back({"recompute", {"none", "full"}, [](YAML::Node job, const std::string& v) {
                         job["strategy"]["recompute"]["kind"] = v;
                       }});
      return;
    case Recompute::unknown: {
      const bool flash = strategy()["attention"].IsDefined() ? text_of(strategy(), "attention") == "flash"
                                                             : default_of("attention") == "flash";
      open_.push_back(
          {"recompute",
           flash ? std::vector<std::string>{"none", "full"} : std::vector<std::string>{"none", "selective", "full"},
           [](YAML::Node job, const std::string& v) { job["strategy"]["recompute"]["kind"] = v; }});
      return;
    }
  }
  strategy()["recompute"] = said;
}

void RowMapper::networks() {
  if (fabrics_.size() < 2) return;
  std::vector<std::string> values;
  for (const YAML::Node& fabric : fabrics_) values.push_back(inline_text(fabric));
  open_.push_back(
      {"fabric", values, [](YAML::Node job, const std::string& v) { job["cluster"]["fabric"] = YAML::Load(v); }});
}

void RowMapper::candidates() {
  for (const Choice& choice : open_) {
    if (choice.values.empty()) {
      out_.skip = fmt::format("no plausible {}", choice.name);
      return;
    }
    assume(fmt::format("{} not given: {} tried", choice.name, fmt::join(choice.values, ", ")));
  }
  out_.candidates = all_combinations(job_, open_, global_batches_);
}

}  // namespace

Mapping map_case(const Case& row, const ValidateData& data) {
  try {
    return RowMapper(row, data.impl()).map();
  } catch (const YAML::Exception& e) {  // a table of data/validate with the wrong shape
    Mapping out;
    out.skip = std::string("data/validate: ") + e.what();
    return out;
  }
}

}  // namespace wt::study
