#include "import/draft.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.hpp"
#include "core/spec/describe.hpp"
#include "core/spec/read.hpp"

namespace wt::import {

namespace {

/// The visitor of describe.hpp that lists key paths.
class KeyLister {
 public:
  KeyLister(std::string path, std::set<std::string, std::less<>>& out) : path_(std::move(path)), out_(out) {}

  bool has(std::string_view) const { return false; }
  template <class... A>
  void text(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void texts(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void integer(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void natural(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void number(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void flag(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void dtype(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void bytes(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void rate(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void time(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void quantity(Quantity, std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void peaks(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void precision(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void choice(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void flag_or_count(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void numbers(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void integers(std::string_view key, A&&...) {
    add(key);
  }
  template <class... A>
  void list(std::string_view key, A&&...) {
    add(key);
  }
  void recompute(std::string_view key, RecomputeSpec& v) { section(key, v, kOptional); }
  template <class T>
  void section(std::string_view key, T& v, Need) {
    add(key);
    KeyLister inner(fmt::format("{}.{}", path_, key), out_);
    describe(inner, v);
  }
  template <class T>
  void section(std::string_view key, std::optional<T>&) {
    T inner;
    section(key, inner, kOptional);
  }

 private:
  void add(std::string_view key) { out_.insert(fmt::format("{}.{}", path_, key)); }
  std::string path_;
  std::set<std::string, std::less<>>& out_;
};

bool is_run_key(std::string_view key) { return key.starts_with("run.") || key == "batch.accumulation"; }

/// Nested maps of a flat list of paths, as YAML. Paths are sorted, so what shares a head stands together.
std::string nested(const std::map<std::string, std::string>& flat, size_t begin, int indent) {
  std::string out;
  for (auto i = flat.begin(); i != flat.end();) {
    const std::string head = i->first.substr(begin, i->first.find('.', begin) - begin);
    const size_t end = begin + head.size();
    if (i->first.size() == end) {
      out += fmt::format("{:{}}{}: {}\n", "", indent, head, i->second);
      ++i;
      continue;
    }
    std::map<std::string, std::string> below;
    const std::string prefix = i->first.substr(0, end + 1);
    for (; i != flat.end() && i->first.starts_with(prefix); ++i) below.insert(*i);
    out += fmt::format("{:{}}{}:\n{}", "", indent, head, nested(below, end + 1, indent + 2));
  }
  return out;
}

}  // namespace

const std::set<std::string, std::less<>>& job_keys() {
  static const std::set<std::string, std::less<>> keys = [] {
    std::set<std::string, std::less<>> out;
    ModelSpec model;
    ClusterSpec cluster;
    StrategySpec strategy;
    TrainingSpec training;
    KeyLister m("model", out), c("cluster", out), s("strategy", out), t("training", out);
    describe(m, model);
    describe(c, cluster);
    describe(s, strategy);
    describe(t, training);
    out.insert("model.from");
    return out;
  }();
  return keys;
}

void Draft::take(const Origin& from, std::string_view written, std::string_view to, std::string value,
                 std::string why) {
  if (!is_run_key(to) && !job_keys().contains(to))
    return not_carried(from, written,
                       fmt::format("{}{}would be {}: {}; not built yet", why, why.empty() ? "" : "; ", to, value));
  if (auto old = values_.find(to); old != values_.end() && !old->second.fallback) {
    Decided& d = old->second;
    if (d.value == value) {
      report_.lines.push_back({Fate::taken, from, std::string(written), std::string(to), value, std::move(why)});
    } else if (d.from.where == "--set" || d.from.where == "command line") {
      report_.notes.push_back(
          fmt::format("{}: {} = {} is replaced by {}, from the command line", from.where, from.key, written, d.value));
    } else {
      errors_.push_back(
          {fmt::format("{}: {}", from.where, from.key),
           fmt::format("{} ({} {}) contradicts {}: {} ({})", written, to, value, d.from.where, d.from.key, d.value),
           fmt::format("make them agree, or decide with --set {}=...", to)});
    }
    return;
  }
  std::erase_if(report_.lines, [&](const Line& l) { return l.fate == Fate::defaulted && l.to == to; });
  report_.lines.push_back({Fate::taken, from, std::string(written), std::string(to), value, std::move(why)});
  values_.insert_or_assign(std::string(to), Decided{std::move(value), from, false});
}

void Draft::fall_back(std::string_view to, std::string value, std::string why) {
  if (has(to)) return;
  if (!is_run_key(to) && !job_keys().contains(to)) return;
  report_.lines.push_back({Fate::defaulted, {}, "", std::string(to), value, std::move(why)});
  values_.insert_or_assign(std::string(to), Decided{std::move(value), {}, true});
}

void Draft::ignore(const Origin& from, std::string_view written, std::string why) {
  report_.lines.push_back({Fate::ignored, from, std::string(written), "", "", std::move(why)});
}
void Draft::not_carried(const Origin& from, std::string_view written, std::string why) {
  report_.lines.push_back({Fate::not_carried, from, std::string(written), "", "", std::move(why)});
}
void Draft::unknown(const Origin& from, std::string_view written, std::string hint) {
  report_.lines.push_back({Fate::unknown, from, std::string(written), "", "", std::move(hint)});
}
void Draft::missing(std::string what, std::string how) {
  for (const Line* l : report_.of(Fate::missing))
    if (l->to == what) return;
  report_.lines.push_back({Fate::missing, {}, "", std::move(what), "", std::move(how)});
}
void Draft::error(const Origin& from, std::string what, std::string hint) {
  const std::string_view between = from.where.empty() || from.key.empty() ? "" : ": ";
  errors_.push_back({fmt::format("{}{}{}", from.where, between, from.key), std::move(what), std::move(hint)});
}
void Draft::note(std::string text) {
  if (std::find(report_.notes.begin(), report_.notes.end(), text) == report_.notes.end())
    report_.notes.push_back(std::move(text));
}
void Draft::framework(std::string name) {
  const bool both =
      (framework_ == "megatron" && name == "deepspeed") || (framework_ == "deepspeed" && name == "megatron");
  if (both)
    framework_ = "megatron_deepspeed";
  else if (framework_.empty() || (name == "deepspeed" && (framework_ == "huggingface" || framework_ == "fsdp")))
    framework_ = std::move(name);
}
void Draft::file(std::string name, std::string format, std::string defaults) {
  report_.files.push_back({std::move(name), std::move(format), std::move(defaults)});
}

void Draft::give_program(std::string name, std::string value, Origin from) {
  program_arguments_.insert_or_assign(std::move(name), ProgramArgument{std::move(value), std::move(from), false});
}

std::optional<std::string> Draft::program_argument(std::string_view name) {
  const auto i = program_arguments_.find(name);
  if (i == program_arguments_.end()) return std::nullopt;
  i->second.read = true;
  return i->second.value;
}

std::optional<std::string> Draft::value(std::string_view key) const {
  const auto i = values_.find(key);
  if (i == values_.end()) return std::nullopt;
  return i->second.value;
}

std::optional<int64_t> Draft::number(std::string_view key) const {
  const auto text = value(key);
  return text ? parse_int(*text) : std::nullopt;
}

const ModelSpec* Draft::base_model() {
  const std::string name = options_.model.empty() ? value("model.from").value_or("") : options_.model;
  if (!base_model_tried_ && !name.empty()) {
    base_model_tried_ = true;
    std::vector<std::string> warnings;
    auto read = read_model(name, &warnings);
    if (read) {
      base_model_ = std::move(read.value());
      for (std::string& w : warnings) note(std::move(w));
    } else {
      errors_.insert(errors_.end(), read.errors().begin(), read.errors().end());
    }
  }
  return base_model_ ? &*base_model_ : nullptr;
}

std::optional<int64_t> Draft::model_size(std::string_view key) {
  if (auto n = number(fmt::format("model.{}", key))) return n;
  const ModelSpec* m = base_model();
  if (!m) return std::nullopt;
  if (key == "hidden") return m->hidden;
  if (key == "layers") return m->layers;
  if (key == "heads") return m->heads;
  if (key == "vocab") return m->vocab;
  return std::nullopt;
}

std::optional<int64_t> Draft::world() const { return number("run.world"); }

std::optional<int64_t> Draft::data_ranks() const {
  const auto w = world();
  const int64_t cut = number("strategy.tensor").value_or(1) * number("strategy.pipeline").value_or(1) *
                      number("strategy.context").value_or(1);
  if (!w || cut < 1 || *w % cut != 0) return std::nullopt;
  return *w / cut;
}

void Draft::take_options() {
  for (const std::string& text : options_.set) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      error({"--set", text}, "is not of the form key=value", "such as --set training.seq_len=4096");
      continue;
    }
    const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
    if (!job_keys().contains(key)) {
      const std::vector<std::string_view> known(job_keys().begin(), job_keys().end());
      const auto near = closest(key, known);
      error({"--set", key}, "is not a key of a job", near ? fmt::format("did you mean '{}'?", *near) : "");
      continue;
    }
    values_.insert_or_assign(key, Decided{value, {"--set", key}, false});
    report_.lines.push_back({Fate::taken, {"--set", key}, value, key, value, ""});
  }
  if (options_.gpus > 0) {
    values_.insert_or_assign("run.world", Decided{std::to_string(options_.gpus), {"command line", "--gpus"}, false});
    values_.erase("run.nodes");
  }
  if (options_.nodes > 0)
    values_.insert_or_assign("run.nodes", Decided{std::to_string(options_.nodes), {"command line", "--nodes"}, false});
}

void Draft::resolve_world() {
  std::optional<int64_t> devices = number("run.devices");
  if (!options_.cluster.empty()) {
    auto cluster = read_cluster(options_.cluster);
    if (!cluster) {
      // A device or cluster file without `nodes` is fine where a job gives them: the whole is read later.
      if (!devices) devices = number("cluster.node.devices");
    } else if (const auto own = number("cluster.node.devices")) {
      devices = own;
    } else if (!devices || number("run.world") || options_.nodes > 0) {
      devices = cluster.value().node.devices;
    } else if (*devices != cluster.value().node.devices) {
      note(fmt::format("the files start {} ranks a node, {} has {}: nodes are counted anew", *devices, options_.cluster,
                       cluster.value().node.devices));
    }
  }
  const auto nodes = number("run.nodes");
  if (!has("run.world") && nodes && devices)
    fall_back("run.world", std::to_string(*nodes * *devices), fmt::format("{} nodes of {}", *nodes, *devices));
  const auto w = number("run.world");
  if (!w) return;
  if (*w < 1) return error({"", "run.world"}, fmt::format("{} ranks", *w), "at least 1");
  const auto cut = number("strategy.tensor").value_or(1) * number("strategy.pipeline").value_or(1) *
                   number("strategy.context").value_or(1);
  if (cut > 0 && *w % cut != 0) {
    const int64_t below = *w / cut * cut;
    error({"", "world size"},
          fmt::format("{} ranks are not a multiple of tensor {} x pipeline {} x context {} = {}", *w,
                      number("strategy.tensor").value_or(1), number("strategy.pipeline").value_or(1),
                      number("strategy.context").value_or(1), cut),
          below > 0 ? fmt::format("nearest legal: {}, {}", below, below + cut) : fmt::format("nearest legal: {}", cut));
  }
}

void Draft::resolve_batch() {
  const auto m = number("training.micro_batch"), g = number("batch.accumulation"),
             all = number("training.global_batch");
  const auto d = data_ranks();
  if (m && g && all && d && *m * *g * *d != *all) {
    const int64_t per = *m * *g;
    const std::string implied = per > 0 && *all % per == 0
                                    ? fmt::format("; the batch implies {} data-parallel ranks", *all / per)
                                    : std::string();
    return error(
        {"", "global batch"},
        fmt::format("{} != micro-batch {} x accumulation {} x data-parallel ranks {} = {}", *all, *m, *g, *d, per * *d),
        fmt::format("the framework refuses this too{}", implied));
  }
  if (!d) return;
  if (m && !all)
    fall_back("training.global_batch", std::to_string(*m * g.value_or(1) * *d),
              fmt::format("micro-batch {} x accumulation {} x data-parallel ranks {}", *m, g.value_or(1), *d));
  if (!m && all) {
    const int64_t parts = g.value_or(1) * *d;
    if (*all % parts != 0)
      return error(
          {"", "global batch"},
          fmt::format("{} is not a multiple of accumulation {} x data-parallel ranks {}", *all, g.value_or(1), *d),
          fmt::format("nearest legal: {}, {}", std::max(parts, *all / parts * parts),
                      std::max(parts, *all / parts * parts) + parts));
    fall_back("training.micro_batch", std::to_string(*all / parts),
              fmt::format("global batch {} / (accumulation {} x data-parallel ranks {})", *all, g.value_or(1), *d));
  }
}

void Draft::require() {
  if (report_.files.empty()) return;  // nothing was read: its faults say enough
  const bool says_model =
      std::any_of(values_.begin(), values_.end(), [](const auto& v) { return v.first.starts_with("model."); });
  if (options_.model.empty() && !says_model)
    missing("model", "--model NAME or FILE (a built-in, a model YAML, a Hugging Face config.json)");
  if (options_.cluster.empty()) missing("cluster", "--cluster NAME or FILE (`windtunnel clusters` lists them)");
  if (!world()) missing("number of GPUs", "--nodes N or --gpus N, or the launch line or hostfile as a further FILE");
  if (!has("training.micro_batch") && !has("training.global_batch"))
    missing("training.micro_batch", "--set training.micro_batch=N, and accumulation by --set training.global_batch=N");
  if (!has("training.seq_len")) missing("training.seq_len", "--set training.seq_len=N");
  if (options_.model.empty() && says_model && !has("model.vocab") && !has("model.from"))
    missing("model.vocab", "--set model.vocab=N: the tokenizer's, or --model NAME");
}

std::string Draft::text() const {
  std::map<std::string, std::string> flat;
  for (const auto& [key, d] : values_)
    if (!is_run_key(key)) flat.emplace(key, d.value);
  if (!options_.model.empty()) flat.emplace("model.from", options_.model);
  flat.emplace("cluster.from", options_.cluster);
  if (!framework_.empty()) flat.emplace("framework", framework_);
  return nested(flat, 0, 0);
}

std::string Draft::finish() {
  for (const auto& resolve : before_world_) resolve();
  for (const auto& [name, argument] : program_arguments_)
    if (!argument.read)
      not_carried(argument.from, argument.value, "the program's own argument: only its code knows what it means");
  resolve_world();
  for (size_t i = 0; i < later_.size(); ++i) later_[i]();  // one may add another
  resolve_batch();
  require();
  if (const auto w = world(); w && !options_.cluster.empty()) {
    int64_t devices = 0;
    if (auto cluster = read_cluster(options_.cluster)) devices = cluster.value().node.devices;
    devices = number("cluster.node.devices").value_or(devices);
    if (devices > 0 && *w < devices) {
      fall_back("cluster.node.devices", std::to_string(*w), fmt::format("{} ranks fill part of one node", *w));
      fall_back("cluster.nodes", "1", fmt::format("{} ranks", *w));
    } else if (devices > 0 && *w % devices != 0) {
      error({"", "world size"}, fmt::format("{} ranks do not fill nodes of {} ({})", *w, devices, options_.cluster),
            fmt::format("nearest legal: {}, {}", *w / devices * devices, (*w / devices + 1) * devices));
    } else if (devices > 0) {
      fall_back("cluster.nodes", std::to_string(*w / devices), fmt::format("{} ranks / {} a node", *w, devices));
    }
  }
  if (!errors_.empty() || !report_.of(Fate::missing).empty()) return "";
  return text();
}

}  // namespace wt::import
