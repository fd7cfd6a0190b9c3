// Scaling as text: a row for each size, the knee, the cheapest size. Pure: days and money follow from the rows.
// A size that does not run is a line with its reason.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "study/money.hpp"
#include "study/scale.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

struct Cost {
  double days = 0, gpu_hours = 0, money = 0, with_time = 0;  // with_time: money and the worth of the days
};
Cost cost_of(const ScalePoint& p, const ScaleQuestion& q) {
  Cost c;
  c.days = days_of_run(p.job.training, p.tokens_per_s);
  c.gpu_hours = gpu_hours(c.days, p.gpus);
  c.money = c.gpu_hours * q.price;
  c.with_time = c.money + c.days * q.day_worth;
  return c;
}

std::string percent(double share) { return fmt::format("{:.0f} %", share * 100); }

std::string strategy_words(const ScalePoint& p) {
  const StrategySpec& s = p.job.strategy;
  std::string out = fmt::format("tp {} pp {}", s.tensor, s.pipeline);
  if (s.virtual_stages > 1) out += fmt::format(" x {} chunks", s.virtual_stages);
  if (s.context > 1) out += fmt::format(" cp {}", s.context);
  if (s.expert > 1) out += fmt::format(" ep {}", s.expert);
  return out + fmt::format(" mb {}", p.job.training.micro_batch);
}

/// The size whose GPUs and days together cost least. Needs prices and the length of the run.
const ScalePoint* cheapest(const ScaleResult& r, const ScaleQuestion& q) {
  const ScalePoint* best = nullptr;
  for (const ScalePoint& p : r.points)
    if (p.reason.empty() && (!best || cost_of(p, q).with_time < cost_of(*best, q).with_time)) best = &p;
  return best;
}

/// The last size to which every doubling still brought half of what GPUs bring at the smallest size.
const ScalePoint* knee(const ScaleResult& r) {
  constexpr double kWorthIt = 0.5;
  const ScalePoint* last = nullptr;
  for (const ScalePoint& p : r.points) {
    if (!p.reason.empty()) continue;
    if (last && p.marginal < kWorthIt) break;
    last = &p;
  }
  return last;
}

}  // namespace

std::string print_scale_screen(const ScaleResult& r, const JobSpec& job, const ScaleOptions& options,
                               const ScaleQuestion& q) {
  std::string out = fmt::format("{}  on  {}: {} scaling, strategy {}\n\n", job.name.empty() ? job.model.name : job.name,
                                job.cluster.name, options.scaling == Scaling::strong ? "strong" : "weak",
                                options.choose ? "chosen at each size" : "held");
  const bool days = job.training.total_tokens > 0, money = days && q.price > 0;
  std::vector<std::string> header{
      "GPUs",          "step",      "tokens/s",        "MFU",    "efficiency", "an added GPU brings",
      "communication", "imbalance", "host, optimizer", "memory", "strategy"};
  if (days) header.push_back("days");
  if (money) header.push_back("cost");
  report::Table table(header);
  std::vector<std::string> refused;
  for (const ScalePoint& p : r.points) {
    if (!p.reason.empty()) {
      refused.push_back(fmt::format("{} GPUs: {}", with_commas(p.gpus), p.reason));
      continue;
    }
    std::vector<std::string> row{with_commas(p.gpus),
                                 to_text(Time::from_seconds(p.step_s)),
                                 with_commas(std::llround(p.tokens_per_s)),
                                 fmt::format("{:.1f} %", p.mfu * 100),
                                 percent(p.efficiency),
                                 p.marginal == 0 ? "-" : percent(p.marginal),
                                 percent(p.communication),
                                 percent(p.imbalance),
                                 percent(p.fixed),
                                 fmt::format("{:.0f} GiB", p.reserved_gib),
                                 strategy_words(p)};
    const Cost c = cost_of(p, q);
    if (days) row.push_back(fmt::format("{:.1f}", c.days));
    if (money) row.push_back(with_commas(std::llround(c.money)));
    table.add(std::move(row));
  }
  out += table.text();
  out +=
      "\n  efficiency: speed per GPU against the smallest size that runs; shares are of the step on the critical "
      "rank\n";
  if (const ScalePoint* k = knee(r); k && k != &r.points.back())
    out += fmt::format("  beyond {} GPUs an added one brings less than half of what it brings at the smallest size\n",
                       with_commas(k->gpus));
  if (money && q.day_worth > 0)
    if (const ScalePoint* c = cheapest(r, q))
      out += fmt::format("  GPUs and {} a day of waiting together cost least on {} GPUs: {} in {:.1f} days\n",
                         with_commas(std::llround(q.day_worth)), with_commas(c->gpus),
                         with_commas(std::llround(cost_of(*c, q).with_time)), cost_of(*c, q).days);
  for (const std::string& line : refused) out += fmt::format("  {}\n", line);
  if (!r.complete) out += "  interrupted: larger sizes were not tried\n";
  return out;
}

std::string print_scale_csv(const ScaleResult& r, const ScaleQuestion& q) {
  std::string out =
      "gpus,global_batch,step_time_s,tokens_per_s,mfu,efficiency,marginal,communication_share,imbalance_share,"
      "fixed_share,reserved_gib,tensor,pipeline,virtual_stages,context,expert,micro_batch,days,gpu_hours,cost,reason\n";
  for (const ScalePoint& p : r.points) {
    if (!p.reason.empty()) {
      std::string quoted = p.reason;
      std::replace(quoted.begin(), quoted.end(), '"', '\'');
      out += fmt::format("{},,,,,,,,,,,,,,,,,,,,\"{}\"\n", p.gpus, quoted);
      continue;
    }
    const StrategySpec& s = p.job.strategy;
    const Cost c = cost_of(p, q);
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\n", p.gpus, p.global_batch,
                       p.step_s, p.tokens_per_s, p.mfu, p.efficiency, p.marginal, p.communication, p.imbalance, p.fixed,
                       p.reserved_gib, s.tensor, s.pipeline, s.virtual_stages, s.context, s.expert,
                       p.job.training.micro_batch, c.days, c.gpu_hours, c.money);
  }
  return out;
}

std::string print_scale_json(const ScaleResult& r, const ScaleOptions& options, const ScaleQuestion& q) {
  Json j{{"schema_version", 1},
         {"scaling", options.scaling == Scaling::strong ? "strong" : "weak"},
         {"strategy", options.choose ? "chosen" : "held"},
         {"complete", r.complete}};
  j["points"] = Json::array();
  for (const ScalePoint& p : r.points) {
    Json row{{"gpus", p.gpus}};
    if (!p.reason.empty()) {
      row["reason"] = p.reason;
      j["points"].push_back(std::move(row));
      continue;
    }
    const StrategySpec& s = p.job.strategy;
    row.update(Json{{"global_batch", p.global_batch},
                    {"step_time_s", p.step_s},
                    {"tokens_per_s", p.tokens_per_s},
                    {"mfu", p.mfu},
                    {"efficiency", p.efficiency},
                    {"marginal_efficiency", p.marginal},
                    {"communication_share", p.communication},
                    {"imbalance_share", p.imbalance},
                    {"fixed_share", p.fixed},
                    {"reserved_gib", p.reserved_gib},
                    {"fits", p.fits},
                    {"tensor", s.tensor},
                    {"pipeline", s.pipeline},
                    {"virtual_stages", s.virtual_stages},
                    {"context", s.context},
                    {"expert", s.expert},
                    {"micro_batch", p.job.training.micro_batch}});
    if (p.job.training.total_tokens > 0) {
      const Cost c = cost_of(p, q);
      row["days"] = c.days;
      row["gpu_hours"] = c.gpu_hours;
      if (q.price > 0) row["cost"] = c.money;
    }
    j["points"].push_back(std::move(row));
  }
  if (const ScalePoint* k = knee(r)) j["knee_gpus"] = k->gpus;
  if (q.price > 0 && q.day_worth > 0)
    if (const ScalePoint* c = cheapest(r, q)) j["cheapest_gpus"] = c->gpus;
  return j.dump(2) + "\n";
}

}  // namespace wt::study
