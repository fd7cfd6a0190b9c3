// A campaign as a screen and as JSON: days with percentiles, where the wall time went, what other checkpoint intervals
// would do. Pure: money and energy follow from the hours.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "study/campaign.hpp"
#include "study/money.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

struct Term {
  const char* key;
  const char* words;
  double RunAccount::*seconds;
};
constexpr Term kTerms[] = {{"work", "training that counts", &RunAccount::work_s},
                           {"checkpoints", "stands for checkpoints", &RunAccount::checkpoints_s},
                           {"lost", "done twice: since the last checkpoint", &RunAccount::lost_s},
                           {"detection", "until a failure is noticed", &RunAccount::detection_s},
                           {"restart", "restarts", &RunAccount::restart_s},
                           {"waiting", "waits for nodes", &RunAccount::waiting_s},
                           {"slower", "goes on with fewer nodes", &RunAccount::slower_s},
                           {"stalls", "steps wait for data", &RunAccount::stalls_s},
                           {"evaluation", "evaluations", &RunAccount::evaluation_s}};

std::string time_words(double seconds) { return to_text(Time::from_seconds(seconds)); }

struct Hours {
  double gpu = 0, mwh = 0;
};
/// All nodes are paid for all of the time, spares included. Energy: of the devices at their power limit.
Hours hours(const CampaignResult& r, const CampaignQuestion& q, double wall_s) {
  Hours h;
  const double gpus = static_cast<double>((r.campaign.nodes + r.campaign.spare_nodes) * r.campaign.gpus_per_node);
  h.gpu = gpus * wall_s / kSecondsOfHour;
  h.mwh = h.gpu * q.job.cluster.device.power_watts / 1e6;
  return h;
}

}  // namespace

std::string print_campaign_screen(const CampaignResult& r, const CampaignQuestion& q) {
  const Campaign& c = r.campaign;
  const auto days = [](double s) { return s / kSecondsOfDay; };
  std::string out =
      fmt::format("{}  on  {}: {} nodes of {}{}, {:.3g} tokens at {} a step\n\n",
                  q.job.name.empty() ? q.job.model.name : q.job.name, q.job.cluster.name, with_commas(c.nodes),
                  c.gpus_per_node, c.spare_nodes > 0 ? fmt::format(" and {} spare", c.spare_nodes) : "",
                  q.job.training.total_tokens, time_words(q.step_s));
  out += fmt::format("  days      {:.1f}        {:.1f} to {:.1f} in 8 of 10 of {} runs; {:.1f} without a fault\n",
                     days(r.wall_s.p50), days(r.wall_s.p10), days(r.wall_s.p90), with_commas(r.seeds), days(c.work_s));
  out += fmt::format("  goodput   {:.1f} %      {:.1f} to {:.1f} %\n", r.goodput.p50 * 100, r.goodput.p10 * 100,
                     r.goodput.p90 * 100);
  const Hours h = hours(r, q, r.wall_s.p50);
  out += fmt::format(
      "  GPU-hours {}{}, {:.3g} MWh in the devices at their limit of {:.0f} W\n", with_commas(std::llround(h.gpu)),
      q.price > 0 ? fmt::format(", {} at {:.4g} each", with_commas(std::llround(h.gpu * q.price)), q.price) : "", h.mwh,
      q.job.cluster.device.power_watts);
  out += fmt::format(
      "  faults    {} failure{}{}, a checkpoint every {} ({} of them)\n\n", with_commas(r.mean.failures),
      with_commas(r.mean.failures) == "1" ? "" : "s",
      c.preemptions_per_node_s > 0 ? fmt::format(" and {} preemptions", with_commas(r.mean.preemptions)) : "",
      time_words(c.interval_s), with_commas(r.mean.checkpoints));
  report::Table table({"where the time goes (mean)", "days", "share"});
  for (const Term& t : kTerms)
    if (r.mean.*t.seconds > 0)
      table.add({t.words, fmt::format("{:.2f}", days(r.mean.*t.seconds)),
                 fmt::format("{:.1f} %", r.mean.*t.seconds / r.mean.wall_s * 100)});
  out += table.text();
  out += fmt::format("\n  interval  best in simulation {}; Young {}, Daly {}\n", time_words(r.best_s),
                     time_words(r.young_s), time_words(r.daly_s));
  out += fmt::format("  checkpoint {:.0f} GiB at {:.4g} GB/s: {}, of which training stands {}\n", q.checkpoint_gib,
                     q.storage_gb_s, time_words(c.checkpoint_s), time_words(c.checkpoint_blocks_s));
  out += fmt::format("  failures  '{}': {:.3g} per GPU-hour ({})\n", c.failures.name, c.failures.per_gpu_hour,
                     c.failures.source);
  if (r.unfinished > 0)
    out +=
        fmt::format("  beware: {} of {} runs were not over after {:.0f} days\n", r.unfinished, r.seeds, days(c.most_s));
  if (!r.complete) out += "  interrupted: fewer runs than asked for\n";
  return out;
}

std::string print_campaign_json(const CampaignResult& r, const CampaignQuestion& q) {
  const Campaign& c = r.campaign;
  const auto quantiles = [](const Quantiles& v, double scale) {
    return Json{{"p10", v.p10 * scale}, {"p50", v.p50 * scale}, {"p90", v.p90 * scale}, {"mean", v.mean * scale}};
  };
  Json j{{"schema_version", 1},
         {"complete", r.complete},
         {"seeds", r.seeds},
         {"unfinished", r.unfinished},
         {"days", quantiles(r.wall_s, 1 / kSecondsOfDay)},
         {"days_without_faults", c.work_s / kSecondsOfDay},
         {"goodput", quantiles(r.goodput, 1)}};
  const Hours h = hours(r, q, r.wall_s.p50);
  j["gpu_hours"] = h.gpu;
  if (q.price > 0) j["cost"] = h.gpu * q.price;
  j["device_energy_mwh"] = h.mwh;
  j["failures"] = r.mean.failures;
  j["preemptions"] = r.mean.preemptions;
  j["checkpoints"] = r.mean.checkpoints;
  for (const Term& t : kTerms) j["time_days"][t.key] = r.mean.*t.seconds / kSecondsOfDay;
  j["interval_s"] = c.interval_s;
  j["best_interval_s"] = r.best_s;
  j["young_interval_s"] = r.young_s;
  j["daly_interval_s"] = r.daly_s;
  j["checkpoint_s"] = c.checkpoint_s;
  j["checkpoint_blocks_s"] = c.checkpoint_blocks_s;
  j["failures_per_gpu_hour"] = c.failures.per_gpu_hour;
  j["failures_source"] = c.failures.source;
  return j.dump(2) + "\n";
}

}  // namespace wt::study
