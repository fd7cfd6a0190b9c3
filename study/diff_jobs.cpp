// Two jobs by their predictions, and what two plans differ in.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/text.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"
#include "study/diff.hpp"

namespace wt::study {

namespace {

/// Dotted keys of the printed job, in its order. The printed form indents by two and says nothing by reference.
std::vector<std::pair<std::string, std::string>> keys_of(const JobSpec& job) {
  std::vector<std::pair<std::string, std::string>> out;
  std::vector<std::string> path;
  const std::string text = print_job(job);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t indent = line.find_first_not_of(' ');
    if (line[indent] == '-') {  // an item of a list: belongs to the key above
      std::string& value = out.back().second;
      value += (value.empty() ? "" : ", ") + line.substr(indent + 2);
      continue;
    }
    const size_t colon = line.find(':', indent);
    path.resize(indent / 2);
    path.push_back(line.substr(indent, colon - indent));
    out.emplace_back(join(path, "."), colon + 2 < line.size() ? line.substr(colon + 2) : "");
  }
  return out;
}

std::vector<KeyDifference> key_differences(const JobSpec& a, const JobSpec& b) {
  const auto ka = keys_of(a), kb = keys_of(b);
  const std::map<std::string, std::string> in_a(ka.begin(), ka.end()), in_b(kb.begin(), kb.end());
  std::vector<KeyDifference> out;
  auto value = [](const std::map<std::string, std::string>& m, const std::string& key) {
    const auto it = m.find(key);
    return it == m.end() ? std::string("-") : it->second;
  };
  for (const auto& [key, v] : ka)
    if (value(in_b, key) != v) out.push_back({key, v, value(in_b, key)});
  for (const auto& [key, v] : kb)
    if (!in_a.contains(key)) out.push_back({key, "-", v});
  return out;
}

/// Rows of two maps from key to value, in the order of A with what only B has behind.
void add_joined(DiffTable& table, const std::vector<std::pair<std::string, double>>& a,
                const std::vector<std::pair<std::string, double>>& b) {
  std::set<std::string> seen;
  auto find = [](const std::vector<std::pair<std::string, double>>& list, const std::string& key) {
    for (const auto& [k, v] : list)
      if (k == key) return std::optional(v);
    return std::optional<double>();
  };
  for (const auto* list : {&a, &b})
    for (const auto& [key, v] : *list)
      if (seen.insert(key).second) table.rows.push_back({key, "", find(a, key), find(b, key), ""});
}

const report::StageMemory* fullest(const report::MemoryReport& m) {
  return m.stages.empty() ? nullptr : &m.stages[m.peak_stage];
}

}  // namespace

Diff diff_jobs(const std::string& name_a, const JobResult& a, const std::string& name_b, const JobResult& b) {
  Diff diff;
  auto side = [](const std::string& name, const JobResult& r) {
    return DiffSide{name,
                    fmt::format("predicted on {} {} of {}, memory: {}", r.plan.mesh.ranks(), r.job.cluster.device.name,
                                r.job.cluster.name, r.report.memory.fits),
                    r.plan_digest};
  };
  diff.a = side(name_a, a);
  diff.b = side(name_b, b);
  diff.keys = key_differences(a.job, b.job);
  const report::StepReport &ra = a.report, &rb = b.report;
  const double ranks_a = static_cast<double>(a.plan.mesh.ranks()), ranks_b = static_cast<double>(b.plan.mesh.ranks());
  auto tokens = [](const JobResult& r) {
    return static_cast<double>(r.job.training.global_batch * r.job.training.seq_len);
  };

  DiffTable step{"step", "Step", DiffUnit::seconds, {}};
  step.rows.push_back({"step_time", "step time", ra.step_time.seconds(), rb.step_time.seconds(), ""});
  diff.tables.push_back(step);
  DiffTable rates{"tokens", "Tokens a second", DiffUnit::per_second, {}};
  rates.rows.push_back({"tokens_per_s", "all", ra.tokens_per_second, rb.tokens_per_second, ""});
  rates.rows.push_back(
      {"tokens_per_s_per_gpu", "of a device", ra.tokens_per_second_per_gpu, rb.tokens_per_second_per_gpu, ""});
  diff.tables.push_back(rates);
  DiffTable shares{"shares", "Shares", DiffUnit::share, {}};
  shares.rows.push_back({"mfu", "MFU", ra.mfu, rb.mfu, std::string(report::id_of(ra.formula))});
  shares.rows.push_back({"hfu", "HFU", ra.hfu, rb.hfu, ""});
  shares.rows.push_back({"bubble_fraction", "bubble", ra.bubble_fraction, rb.bubble_fraction, ""});
  diff.tables.push_back(shares);
  DiffTable cost{"device_seconds", "Device-seconds for 10^6 tokens", DiffUnit::seconds, {}};
  cost.rows.push_back({"device_seconds_per_million_tokens", "device-seconds",
                       ra.step_time.seconds() * ranks_a / tokens(a) * 1e6,
                       rb.step_time.seconds() * ranks_b / tokens(b) * 1e6, ""});
  diff.tables.push_back(cost);

  DiffTable time{
      "time",
      fmt::format("Time of the step where it ends (rank {} in A, rank {} in B)", ra.critical_rank, rb.critical_rank),
      DiffUnit::seconds,
      {}};
  for (const report::TimeTerm& t : report::time_terms())
    if (ra.time.*t.seconds != 0 || rb.time.*t.seconds != 0)
      time.rows.push_back({std::string(t.key), "", ra.time.*t.seconds, rb.time.*t.seconds, std::string(t.meaning)});
  diff.tables.push_back(std::move(time));

  auto classes = [](const report::StepReport& r) {
    std::vector<std::pair<std::string, double>> out;
    for (const report::OpClass& c : r.op_classes)
      out.emplace_back(fmt::format("{}/{}", c.name, plan::to_text(c.stream)), c.seconds);
    return out;
  };
  DiffTable ops{"op_classes", "Ops by class, of the rank where the step ends", DiffUnit::seconds, {}};
  add_joined(ops, classes(ra), classes(rb));
  diff.tables.push_back(std::move(ops));

  const report::StageMemory *ma = fullest(ra.memory), *mb = fullest(rb.memory);
  DiffTable memory{"memory", "Memory of the fullest device", DiffUnit::bytes, {}};
  auto items = [](const report::MemoryReport& m, const report::StageMemory* s) {
    std::vector<std::pair<std::string, double>> out = {{"capacity", static_cast<double>(m.capacity.n)}};
    if (!s) return out;
    out.emplace_back("reserved", static_cast<double>(s->reserved.n));
    out.emplace_back("peak", static_cast<double>(s->peak.n));
    for (const report::MemoryItem& i : s->items) out.emplace_back(i.name, static_cast<double>(i.bytes.n));
    return out;
  };
  add_joined(memory, items(ra.memory, ma), items(rb.memory, mb));
  diff.tables.push_back(std::move(memory));
  if (a.plan_digest == b.plan_digest) diff.notes.push_back("both jobs lower to one plan: only the cluster differs");
  return diff;
}

std::vector<std::string> plan_differences(const plan::Plan& a, const plan::Plan& b) {
  std::vector<std::string> out;
  auto number = [&](std::string_view what, int64_t x, int64_t y) {
    if (x != y) out.push_back(fmt::format("{}: {} | {}", what, x, y));
  };
  number("ranks", a.mesh.ranks(), b.mesh.ranks());
  std::vector<std::string> axes;
  for (const plan::Mesh* m : {&a.mesh, &b.mesh})
    for (const plan::Axis& axis : m->axes)
      if (std::find(axes.begin(), axes.end(), axis.name) == axes.end()) axes.push_back(axis.name);
  for (const std::string& axis : axes) number("axis " + axis, a.mesh.size(axis), b.mesh.size(axis));
  number("chunks of a rank", a.placement.chunks, b.placement.chunks);
  number("micro-batches", a.micro_batches, b.micro_batches);
  number("sequences of a micro-batch", a.micro_batch_size, b.micro_batch_size);
  number("tokens of a sequence", a.sequence, b.sequence);
  if (a.seed != b.seed) out.push_back(fmt::format("seed: {} | {}", a.seed, b.seed));
  if (a.name != b.name) out.push_back(fmt::format("name: '{}' | '{}'", a.name, b.name));
  auto names = [](const auto& list) {
    std::set<std::string> s;
    for (const auto& x : list) s.insert(x.name);
    return s;
  };
  auto only = [&](std::string_view what, const std::set<std::string>& x, const std::set<std::string>& y) {
    constexpr size_t kShown = 4;
    for (const auto* s : {&x, &y}) {
      const std::set<std::string>& other = s == &x ? y : x;
      std::vector<std::string> extra;
      for (const std::string& n : *s)
        if (!other.contains(n)) extra.push_back("'" + n + "'");
      if (extra.empty()) continue;
      const size_t all = extra.size();
      if (all > kShown) extra.resize(kShown);
      out.push_back(fmt::format("{} only in {}: {}{}", what, s == &x ? "A" : "B", join(extra, ", "),
                                all > kShown ? fmt::format(" and {} more", all - kShown) : ""));
    }
  };
  only("groups", names(a.groups), names(b.groups));
  only("buffers", names(a.buffers), names(b.buffers));
  only("blocks", names(a.blocks), names(b.blocks));
  // The text form holds everything: its first line that differs names what no count above does.
  const std::string ta = plan::print(a), tb = plan::print(b);
  size_t line = 1, at = 0;
  while (true) {
    const size_t ea = ta.find('\n', at), eb = tb.find('\n', at);
    const std::string_view la = std::string_view(ta).substr(at, ea - at), lb = std::string_view(tb).substr(at, eb - at);
    if (la != lb) {
      constexpr size_t kWidth = 160;
      out.push_back(fmt::format("line {} of the plan: '{}' | '{}'", line, la.substr(0, kWidth), lb.substr(0, kWidth)));
      break;
    }
    if (ea == std::string::npos || eb == std::string::npos) break;
    at = ea + 1;
    ++line;
  }
  return out;
}

}  // namespace wt::study
