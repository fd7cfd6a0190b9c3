// Search results as text: tables share their rows, so that screen and proposal say the same. Pure: no simulation, no
// ranking of its own.
#include "study/search_print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "core/spec/names.hpp"
#include "study/money.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

struct Money {
  double days = 0, gpu_hours = 0, cost = 0;
};

class Rows {
 public:
  Rows(const SearchResult& r, const SearchQuestion& q) : r_(r), q_(q) {}

  const SearchPoint& candidate(size_t i) const { return r_.candidates[r_.outcomes[i].candidate]; }
  int64_t gpus(size_t i) const { return candidate(i).nodes * q_.job.cluster.node.devices; }
  Money money(size_t i) const {
    Money m;
    m.days = days_of_run(q_.job.training, r_.outcomes[i].tokens_per_s);
    m.gpu_hours = gpu_hours(m.days, gpus(i));
    m.cost = m.gpu_hours * q_.price;
    return m;
  }

  std::vector<std::string> header() const {
    std::vector<std::string> h{"step", "MFU", "memory", "GPUs", "tensor", "pipeline", "chunks"};
    if (varies_context()) h.push_back("context");
    if (varies_expert()) h.push_back("expert");
    h.insert(h.end(), {"micro-batch", "schedule", "data parallel", "recompute"});
    if (q_.job.training.total_tokens > 0) h.push_back("days");
    if (q_.price > 0 && q_.job.training.total_tokens > 0) h.push_back("cost");
    return h;
  }
  std::vector<std::string> row(size_t i) const {
    const Outcome& o = r_.outcomes[i];
    const SearchPoint& c = candidate(i);
    const StrategySpec& s = c.strategy;
    std::vector<std::string> out{to_text(Time::from_seconds(o.step_s)),
                                 fmt::format("{:.1f} %", o.mfu * 100),
                                 fmt::format("{:.1f} GiB{}", o.reserved_gib, o.fits == "tight" ? ", tight" : ""),
                                 with_commas(gpus(i)),
                                 std::to_string(s.tensor),
                                 std::to_string(s.pipeline),
                                 std::to_string(s.virtual_stages)};
    if (varies_context()) out.push_back(std::to_string(s.context));
    if (varies_expert()) out.push_back(std::to_string(s.expert));
    out.insert(out.end(), {std::to_string(c.micro_batch), s.pipeline > 1 ? s.schedule : "-",
                           std::string(to_text(s.data_parallel)), std::string(to_text(s.recompute.kind))});
    const Money m = money(i);
    if (q_.job.training.total_tokens > 0) out.push_back(fmt::format("{:.1f}", m.days));
    if (q_.price > 0 && q_.job.training.total_tokens > 0) out.push_back(with_commas(std::llround(m.cost)));
    return out;
  }

 private:
  bool varies_context() const {
    return varies([](const StrategySpec& s) { return s.context; });
  }
  bool varies_expert() const {
    return varies([](const StrategySpec& s) { return s.expert; });
  }
  template <class Of>
  bool varies(Of of) const {
    return std::any_of(r_.candidates.begin(), r_.candidates.end(),
                       [&](const SearchPoint& c) { return of(c.strategy) > 1; });
  }

  const SearchResult& r_;
  const SearchQuestion& q_;
};

report::Table table_of(const SearchResult& r, const SearchQuestion& q, const std::vector<size_t>& which, size_t most) {
  const Rows rows(r, q);
  report::Table table(rows.header());
  for (size_t k = 0; k < std::min(most, which.size()); ++k) table.add(rows.row(which[k]));
  return table;
}

std::string counts_text(const SearchResult& r) {
  std::string out = fmt::format(
      "{} strategies: {} simulated, {} do not fit, {} illegal", with_commas(static_cast<int64_t>(r.candidates.size())),
      with_commas(static_cast<int64_t>(r.simulated)), with_commas(static_cast<int64_t>(r.out_of_memory)),
      with_commas(static_cast<int64_t>(r.illegal)));
  if (r.failed > 0) out += fmt::format(", {} failed", r.failed);
  if (r.resumed > 0) out += fmt::format(" ({} from the results file)", with_commas(static_cast<int64_t>(r.resumed)));
  out += fmt::format(", in {}", to_text(Time::from_seconds(r.wall_s)));
  if (!r.complete) out += fmt::format("; interrupted: {} not tried", r.candidates.size() - r.outcomes.size());
  return out;
}

/// "1: what (how often)", the most frequent.
std::vector<std::string> rejections_text(const SearchResult& r) {
  constexpr size_t kMost = 6;
  std::vector<std::string> out;
  for (const auto& [reason, count] : r.rejections) {
    if (out.size() == kMost) {
      out.push_back(fmt::format("and {} other reasons (--json lists all)", r.rejections.size() - kMost));
      break;
    }
    out.push_back(fmt::format("{:>6} x {}", count, reason));
  }
  return out;
}

std::string deadline_text(const SearchResult& r, const SearchQuestion& q) {
  const auto i = fewest_for(r, q.job, q.deadline_days);
  if (!i)
    return fmt::format("no strategy ends {:.3g} tokens within {:.4g} days on the GPUs that were tried",
                       q.job.training.total_tokens, q.deadline_days);
  const Rows rows(r, q);
  const Money m = rows.money(*i);
  std::string out = fmt::format("{:.4g} days: {} GPUs are the fewest tried that do it, in {:.1f} days", q.deadline_days,
                                with_commas(rows.gpus(*i)), m.days);
  if (q.price > 0) out += fmt::format(", for {}", with_commas(std::llround(m.cost)));
  return out;
}

/// What to type to get the point as a job: the keys that differ.
std::string as_set(const JobSpec& job, const SearchPoint& c) {
  const StrategySpec& s = c.strategy;
  std::string out = fmt::format(
      "--nodes {} --set strategy.tensor={} --set strategy.pipeline={} --set strategy.virtual_stages={} "
      "--set strategy.schedule={} --set strategy.sequence_parallel={} --set strategy.data_parallel={} "
      "--set strategy.recompute.kind={} --set training.micro_batch={}",
      c.nodes, s.tensor, s.pipeline, s.virtual_stages, s.schedule, s.sequence_parallel, to_text(s.data_parallel),
      to_text(s.recompute.kind), c.micro_batch);
  if (s.context != job.strategy.context) out += fmt::format(" --set strategy.context={}", s.context);
  if (s.expert != job.strategy.expert) out += fmt::format(" --set strategy.expert={}", s.expert);
  return out;
}

Json json_of(const SearchResult& r, const SearchQuestion& q, size_t i) {
  const Rows rows(r, q);
  const Outcome& o = r.outcomes[i];
  const SearchPoint& c = rows.candidate(i);
  const StrategySpec& s = c.strategy;
  Json j{{"gpus", rows.gpus(i)},
         {"nodes", c.nodes},
         {"step_time_s", o.step_s},
         {"tokens_per_s", o.tokens_per_s},
         {"mfu", o.mfu},
         {"reserved_gib", o.reserved_gib},
         {"fits", o.fits},
         {"tensor", s.tensor},
         {"pipeline", s.pipeline},
         {"virtual_stages", s.virtual_stages},
         {"context", s.context},
         {"expert", s.expert},
         {"micro_batch", c.micro_batch},
         {"schedule", s.schedule},
         {"sequence_parallel", s.sequence_parallel},
         {"data_parallel", to_text(s.data_parallel)},
         {"recompute", to_text(s.recompute.kind)}};
  if (q.job.training.total_tokens > 0) {
    const Money m = rows.money(i);
    j["days"] = m.days;
    j["gpu_hours"] = m.gpu_hours;
    if (q.price > 0) j["cost"] = m.cost;
  }
  return j;
}

}  // namespace

std::optional<size_t> fewest_for(const SearchResult& r, const JobSpec& job, double deadline_days) {
  std::optional<size_t> best;
  for (const size_t i : r.ranking) {  // fastest first: the first of each size is its fastest
    if (days_of_run(job.training, r.outcomes[i].tokens_per_s) > deadline_days) break;
    const auto nodes = [&](size_t k) { return r.candidates[r.outcomes[k].candidate].nodes; };
    if (!best || nodes(i) < nodes(*best)) best = i;
  }
  return best;
}

std::string print_search_screen(const SearchResult& r, const SearchQuestion& q) {
  std::string out =
      fmt::format("{}  on  {}, global batch of {} x {} tokens\n{}\n",
                  q.job.name.empty() ? q.job.model.name : q.job.name, q.job.cluster.name,
                  with_commas(q.job.training.global_batch), with_commas(q.job.training.seq_len), counts_text(r));
  if (r.ranking.empty()) {
    out += "\nNo strategy runs.\n";
  } else {
    out += "\nFastest\n" + table_of(r, q, r.ranking, q.rows).text();
    out += "\nLess memory or fewer GPUs (nothing is faster with as little of both)\n" +
           table_of(r, q, r.front, q.rows).text();
    if (q.deadline_days > 0) out += "\n" + deadline_text(r, q) + "\n";
    out += "\nThe fastest as a job: windtunnel simulate JOB " +
           as_set(q.job, r.candidates[r.outcomes[r.ranking.front()].candidate]) + "\n";
  }
  if (!r.rejections.empty()) out += "\nRejected\n";
  for (const std::string& line : rejections_text(r)) out += fmt::format("  {}\n", line);
  return out;
}

std::string print_search_markdown(const SearchResult& r, const SearchQuestion& q) {
  std::string out = counts_text(r) + "\n\n";
  out += table_of(r, q, r.ranking, q.rows).markdown();
  out += "\nFront of time, memory and GPUs:\n\n" + table_of(r, q, r.front, q.rows).markdown();
  if (q.deadline_days > 0) out += "\n" + deadline_text(r, q) + "\n";
  return out;
}

std::string print_search_csv(const SearchResult& r, const SearchQuestion& q) {
  std::string out =
      "gpus,nodes,step_time_s,tokens_per_s,mfu,reserved_gib,fits,tensor,pipeline,virtual_stages,context,expert,"
      "micro_batch,schedule,data_parallel,recompute,days,gpu_hours\n";
  const Rows rows(r, q);
  for (const size_t i : r.ranking) {
    const Outcome& o = r.outcomes[i];
    const SearchPoint& c = rows.candidate(i);
    const StrategySpec& s = c.strategy;
    const Money m = rows.money(i);
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", rows.gpus(i), c.nodes, o.step_s,
                       o.tokens_per_s, o.mfu, o.reserved_gib, o.fits, s.tensor, s.pipeline, s.virtual_stages, s.context,
                       s.expert, c.micro_batch, s.schedule, to_text(s.data_parallel), to_text(s.recompute.kind), m.days,
                       m.gpu_hours);
  }
  return out;
}

std::string print_search_json(const SearchResult& r, const SearchQuestion& q) {
  Json j{{"schema_version", kSchemaVersion},
         {"candidates", r.candidates.size()},
         {"simulated", r.simulated},
         {"out_of_memory", r.out_of_memory},
         {"illegal", r.illegal},
         {"failed", r.failed},
         {"resumed", r.resumed},
         {"complete", r.complete},
         {"wall_s", r.wall_s}};
  const auto list = [&](const std::vector<size_t>& which, size_t most) {
    Json out = Json::array();
    for (size_t k = 0; k < std::min(most, which.size()); ++k) out.push_back(json_of(r, q, which[k]));
    return out;
  };
  j["best"] = list(r.ranking, q.rows);
  j["front"] = list(r.front, r.front.size());
  j["rejected"] = Json::array();
  for (const auto& [reason, count] : r.rejections) j["rejected"].push_back(Json{{"reason", reason}, {"count", count}});
  if (q.deadline_days > 0) {
    const auto i = fewest_for(r, q.job, q.deadline_days);
    j["deadline"] = Json{{"days", q.deadline_days}, {"fewest", i ? json_of(r, q, *i) : Json(nullptr)}};
  }
  return j.dump(2) + "\n";
}

}  // namespace wt::study
