// The flags of megatron.hpp: their table, and reading them into fields.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/spec/data_dir.hpp"
#include "import/keys.hpp"
#include "import/megatron.hpp"

namespace wt::import {

namespace {

using Table = std::map<std::string, MegatronFlag, std::less<>>;

Table load_table() {
  Table out;
  auto text = read_file(find_data("data/frameworks", "megatron_flags.tsv"));
  if (!text) return out;
  std::string_view rest = text.value();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!line.starts_with("--")) continue;
    std::vector<std::string> c;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t tab = std::min(line.find('\t', begin), line.size());
      c.emplace_back(line.substr(begin, tab - begin));
      begin = tab + 1;
    }
    if (c.size() == 6) out[c[0]] = {c[1], c[2], c[3], c[5]};
  }
  // Forks: Megatron-DeepSpeed (f4157bea) and sail-sg's zero bubble (39f2c18), by what their arguments.py adds.
  const auto fork = [&out](const char* flag, const char* field, const char* sets) {
    out.try_emplace(flag, MegatronFlag{field, sets, "", "current"});
  };
  for (const char* on : {"deepspeed",
                         "deepscale",
                         "deepspeed_mpi",
                         "no-pipeline-parallel",
                         "cpu-optimizer",
                         "cpu_torch_adam",
                         "deepspeed-activation-checkpointing",
                         "checkpoint-in-cpu",
                         "contigious-checkpointing",
                         "partition-activations",
                         "synchronize-each-layer",
                         "profile-backward",
                         "use-flash-attn-v1",
                         "use-flash-attn-v2",
                         "use-flash-attn-triton",
                         "ds-inference",
                         "universal-checkpoint",
                         "embed-layernorm",
                         "sync-tp-duplicated-parameters",
                         "abort-on-unmet-fused-kernel-constraints",
                         "enable-zb-runtime",
                         "enable-exactly-numeric-match",
                         "enable-zero-bubble",
                         "zero-bubble-v-schedule",
                         "enable-exact-numeric-match",
                         "enable-optimizer-post-validation",
                         "allow-padding-num-layers",
                         "use-tutel",
                         "enable-expert-tensor-parallelism",
                         "create-moe-param-group",
                         "custom-recompute-layers-per-stage"}) {
    std::string field = on;
    std::replace(field.begin(), field.end(), '-', '_');
    fork(fmt::format("--{}", on).c_str(), field.c_str(), "on");
  }
  for (const char* value : {"deepspeed_config",
                            "deepspeed-config",
                            "zero-stage",
                            "zero-reduce-bucket-size",
                            "zero-allgather-bucket-size",
                            "ds-sequence-parallel-size",
                            "moe-expert-parallel-size",
                            "train-tokens",
                            "pad-vocab-size-to",
                            "pp-partition-method",
                            "tokenizer-name-or-path",
                            "kill-switch-path",
                            "train-weighted-split-paths-path",
                            "valid-weighted-split-paths-path",
                            "valid-num-workers",
                            "codecarbon-dir",
                            "lr-decay-tokens",
                            "topk",
                            "mlp-type",
                            "expert-interval",
                            "moe-train-capacity-factor",
                            "moe-eval-capacity-factor",
                            "moe-min-capacity",
                            "moe-loss-coeff",
                            "normalization",
                            "num-key-value-heads",
                            "zero-bubble-v-schedule-mem-setup",
                            "zero-bubble-max-pending-backward",
                            "zero-bubble-pipeline-timers-start-iter",
                            "zero-bubble-pipeline-timers-end-iter"}) {
    std::string field = value;
    std::replace(field.begin(), field.end(), '-', '_');
    fork(fmt::format("--{}", value).c_str(), field.c_str(), "value");
  }
  return out;
}

const Table& table() {
  static const Table t = load_table();
  return t;
}

/// Old spellings whose field has another name today.
std::string modern(const std::string& field) {
  static const std::map<std::string, std::string> names = {
      {"activations_checkpoint_method", "recompute_method"},
      {"activations_checkpoint_num_layers", "recompute_num_layers"},
      {"activations_checkpoint_granularity", "recompute_granularity"},
      {"checkpoint_num_layers", "recompute_num_layers"},
      {"distribute_checkpointed_activations", "distribute_saved_activations"},
      {"layernorm_epsilon", "norm_epsilon"},
      {"no_async_tensor_model_parallel_allreduce", "async_tensor_model_parallel_allreduce"},
      {"num_key_value_heads", "num_query_groups"},
      {"enable_zb_runtime", "enable_zero_bubble"},
      {"moe_expert_parallel_size", "expert_model_parallel_size"}};
  const auto i = names.find(field);
  return i == names.end() ? field : i->second;
}

bool is_flag(std::string_view word) { return word.starts_with("--") && word.size() > 2; }

}  // namespace

const MegatronFlag* megatron_flag(std::string_view flag) {
  const auto i = table().find(flag);
  return i == table().end() ? nullptr : &i->second;
}

std::vector<std::string_view> megatron_flags() {
  std::vector<std::string_view> out;
  for (const auto& [flag, row] : table()) out.push_back(flag);
  return out;
}

void MegatronArgs::set(const std::string& field, std::string value, Origin from, std::vector<std::string> open) {
  if (value == "None" || value == "null" || value == "~") {
    fields_.erase(modern(field));
    return;
  }
  fields_[modern(field)] = {std::move(value), std::move(from), std::move(open), {}};
}

void MegatronArgs::set_as(const std::string& field, std::string value, Origin from, std::string written) {
  set(field, std::move(value), std::move(from));
  if (const auto i = fields_.find(modern(field)); i != fields_.end()) i->second.written = std::move(written);
}

void MegatronArgs::flag(const std::string& flag, const std::string& value, const Origin& from,
                        const std::vector<std::string>& open) {
  const MegatronFlag* row = megatron_flag(flag);
  if (!row) {
    const auto near = closest(flag, megatron_flags());
    draft_.unknown(from, value,
                   near ? fmt::format("no flag of Megatron-LM at any time; did you mean '{}'?", *near)
                        : "no flag of Megatron-LM at any time: a fork's or the script's own");
    return;
  }
  const std::string field = modern(row->field);
  if (row->last != "current") draft_.note(fmt::format("{}: {} left Megatron-LM after {}", from.where, flag, row->last));
  std::string v = value;
  if (row->sets != "value") {
    const auto truth_of = value.empty() ? std::optional<bool>(true) : truth(value);
    v = truth_of.value_or(true) == (row->sets == "on") ? "True" : "False";
    if (!value.empty() && truth_of == false) return;  // "--flag: false" in a YAML: the flag is not given
  }
  // Megatron-DeepSpeed's flag of the key/value heads is a switch as well.
  if (row->field == "num_key_value_heads") fields_["group_query_attention"] = {"True", from, {}, {}};
  fields_[field] = {std::move(v), from, open, {}};
}

void MegatronArgs::command_line(const std::vector<ShellWord>& words, size_t begin, const std::string& file) {
  for (size_t i = begin; i < words.size();) {
    std::string flag_text = words[i].text, value;
    std::vector<std::string> open = words[i].open;
    const Origin from{fmt::format("{}:{}", file, words[i].line), flag_text.substr(0, flag_text.find('='))};
    if (!is_flag(flag_text)) {
      if (!words[i].open.empty())
        draft_.not_carried(
            {from.where, flag_text}, "",
            fmt::format("may hold flags: {} is not known; --var gives it", fmt::join(words[i].open, ", ")));
      ++i;
      continue;
    }
    if (const size_t equals = flag_text.find('='); equals != std::string::npos) {
      value = flag_text.substr(equals + 1);
      flag_text.resize(equals);
      ++i;
    } else {
      const MegatronFlag* row = megatron_flag(flag_text);
      const bool bare = row && row->sets != "value";
      for (++i; i < words.size() && !is_flag(words[i].text); ++i) {
        // A variable of unknown content behind a value is no second value: it may hold flags.
        if (bare || (!value.empty() && words[i].text.starts_with('$') && !words[i].open.empty())) break;
        value += (value.empty() ? "" : " ") + words[i].text;
        open.insert(open.end(), words[i].open.begin(), words[i].open.end());
      }
    }
    flag(flag_text, value, {from.where, flag_text}, open);
  }
}

const MegatronArgs::Field* MegatronArgs::known(const std::string& field) {
  used_[field] = true;
  const auto i = fields_.find(field);
  if (i == fields_.end()) return nullptr;
  if (!i->second.open.empty()) {
    std::string name = i->second.open[0].substr(0, i->second.open[0].find(' '));
    draft_.error(i->second.from,
                 fmt::format("is '{}': not known is {}", i->second.value, fmt::join(i->second.open, ", ")),
                 name[0] == '$' ? "write the value out" : fmt::format("--var {}=VALUE", name));
    i->second.open.clear();  // one fault for each
    i->second.value.clear();
  }
  return i->second.value.empty() ? nullptr : &i->second;
}

std::optional<std::string> MegatronArgs::text(const std::string& field) {
  const Field* f = known(field);
  if (!f) return std::nullopt;
  return f->value;
}
std::optional<int64_t> MegatronArgs::integer(const std::string& field) {
  const Field* f = known(field);
  if (!f) return std::nullopt;
  const auto n = whole_number(f->value);
  if (!n) error(field, fmt::format("'{}' is not a whole number", f->value.substr(0, 60)), "");
  return n;
}
std::optional<double> MegatronArgs::number(const std::string& field) {
  const Field* f = known(field);
  if (!f) return std::nullopt;
  const auto x = parse_double(f->value);
  if (!x) error(field, fmt::format("'{}' is not a number", f->value.substr(0, 60)), "");
  return x;
}
bool MegatronArgs::on(const std::string& field, bool fallback) {
  const Field* f = known(field);
  return f ? truth(f->value).value_or(fallback) : fallback;
}
Origin MegatronArgs::at(const std::string& field) const {
  const auto i = fields_.find(field);
  return i == fields_.end() ? Origin{"", field} : i->second.from;
}
std::string MegatronArgs::said(const std::string& field) const {
  const auto i = fields_.find(field);
  if (i == fields_.end()) return "";
  return i->second.written.empty() ? i->second.value : i->second.written;
}
bool MegatronArgs::take_integer(const std::string& field, std::string_view to, std::string why) {
  const auto n = integer(field);
  if (n) draft_.take(at(field), said(field), to, *n, std::move(why));
  return n.has_value();
}
void MegatronArgs::error(const std::string& field, std::string what, std::string hint) {
  draft_.error(at(field), std::move(what), std::move(hint));
}

void MegatronArgs::report_rest() {
  for (const auto& [field, f] : fields_)
    if (!used_.contains(field)) draft_.ignore(f.from, f.value, "nothing that the plan depends on");
}

std::optional<std::vector<int64_t>> python_list(std::string_view text) {
  // Sums of "[a, b] * n" and "[a, b]", in brackets or not: what --moe-layer-freq takes.
  constexpr size_t kMost = 4096;
  std::string plain;
  for (char c : text)
    if (c != ' ' && c != '(' && c != ')') plain += c;
  std::vector<int64_t> out;
  size_t i = 0;
  while (i < plain.size()) {
    if (plain[i] == '+') ++i;
    if (i >= plain.size() || plain[i] != '[') return std::nullopt;
    const size_t end = plain.find(']', i);
    if (end == plain.npos) return std::nullopt;
    std::vector<int64_t> part;
    for (size_t begin = i + 1; begin < end;) {
      const size_t comma = std::min(plain.find(',', begin), end);
      const auto n = parse_int(std::string_view(plain).substr(begin, comma - begin));
      if (!n) return std::nullopt;
      part.push_back(*n);
      begin = comma + 1;
    }
    int64_t times = 1;
    i = end + 1;
    if (i < plain.size() && plain[i] == '*') {
      const size_t stop = std::min(plain.find('+', i), plain.size());
      const auto n = parse_int(std::string_view(plain).substr(i + 1, stop - i - 1));
      if (!n || *n < 0 || static_cast<size_t>(*n) > kMost) return std::nullopt;
      times = *n;
      i = stop;
    }
    if (out.size() + part.size() * static_cast<size_t>(times) > kMost) return std::nullopt;
    for (int64_t k = 0; k < times; ++k) out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace wt::import
