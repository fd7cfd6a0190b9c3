#include "study/sensitivity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/report/print.hpp"
#include "core/spec/names.hpp"
#include "core/spec/quantity.hpp"
#include "sim/simulate.hpp"
#include "study/on_threads.hpp"

namespace wt::study {

namespace {

using Json = nlohmann::ordered_json;

bool has_fabric(const JobSpec& j) { return j.cluster.nodes > 1 && j.cluster.fabric.kind != FabricKind::none; }

std::string peak_text(const JobSpec& j) {
  const auto peak = j.cluster.device.peak.find(j.training.compute_dtype);
  return peak == j.cluster.device.peak.end()
             ? ""
             : fmt::format("{:.4g} TFLOP/s {}", peak->second.n / 1e12, spelled(j.training.compute_dtype));
}
bool scale_peak(JobSpec& j, double f) {
  for (auto& [dtype, rate] : j.cluster.device.peak) rate.n *= f;
  return true;
}

std::string rate_text(double bytes_per_s) { return fmt::format("{:.4g} GB/s", bytes_per_s / 1e9); }

std::string latency_text(const JobSpec& j) {
  return has_fabric(j) ? fmt::format("{:.3g} us beyond NCCL's own", j.cluster.fabric.latency.seconds() * 1e6) : "";
}
/// Zero extra latency cannot be scaled: a factor stands for so many microseconds more.
bool scale_latency(JobSpec& j, double f) {
  constexpr double kPerFactor = 2e-6;  // about one switch tier's way there and back
  if (f < 1) return false;
  j.cluster.fabric.latency = Time::from_seconds(j.cluster.fabric.latency.seconds() * f + kPerFactor * (f - 1));
  return true;
}

bool scale_oversubscription(JobSpec& j, double f) {
  j.cluster.fabric.oversubscription *= f;
  return j.cluster.fabric.oversubscription >= 1;
}

std::string micro_batches_text(const JobSpec& j) { return fmt::format("global batch {}", j.training.global_batch); }
bool scale_micro_batches(JobSpec& j, double f) {
  const double batch = static_cast<double>(j.training.global_batch) * f;
  if (batch < 1 || batch != std::floor(batch)) return false;
  j.training.global_batch = static_cast<int64_t>(batch);
  return true;
}

/// Seconds of a step for the job's own number of sequences, so that batches of other sizes compare; nothing: no such job.
std::optional<double> step_seconds(const JobSpec& job, const sim::Models& models, int64_t sequences) {
  const auto plan = lower::lower(job);
  if (!plan) return {};
  const auto run = sim::simulate(plan.value(), job.cluster, job.training, models, {});
  if (!run) return {};
  return run.value().step_time.seconds() * static_cast<double>(sequences) /
         static_cast<double>(job.training.global_batch);
}

/// `models`: of the job's own cluster.
std::optional<double> step_with(const JobSpec& job, const sim::Models& models, const Resource& resource,
                                double factor) {
  JobSpec changed = job;
  if (!resource.scale(changed, factor)) return {};
  if (changed.cluster == job.cluster) return step_seconds(changed, models, job.training.global_batch);
  const auto of_changed = sim::load_models(changed.cluster);
  return of_changed ? step_seconds(changed, of_changed.value(), job.training.global_batch) : std::nullopt;
}

/// The factor nearest to the bad end that keeps the speed, by halving intervals on a logarithmic scale.
std::optional<double> least_factor(const JobSpec& job, const sim::Models& models, const Resource& r, double step,
                                   double keep) {
  constexpr double kExtreme = 64, kClose = 1.02;
  const double bad_end = r.more_is_better ? 1 / kExtreme : kExtreme;
  const auto keeps = [&](double f) {
    const auto s = step_with(job, models, r, f);
    return s && step / *s >= keep;
  };
  if (keeps(bad_end)) return {};
  double good = 1, bad = bad_end;
  while (std::max(good / bad, bad / good) > kClose) {
    const double middle = std::sqrt(good * bad);
    (keeps(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

const std::vector<Resource>& resources() {
  static const std::vector<Resource> all = {
      {"flops", "matrix products", true, true, peak_text, scale_peak},
      {"memory_bandwidth", "device memory", true, true,
       [](const JobSpec& j) { return rate_text(j.cluster.device.memory_bandwidth.n); },
       [](JobSpec& j, double f) { return j.cluster.device.memory_bandwidth.n *= f, true; }},
      {"scale_up", "NVLink or what joins a node", true, true,
       [](const JobSpec& j) {
         return j.cluster.ranks() > 1 && j.cluster.node.devices > 1 ? rate_text(j.cluster.node.scale_up.bandwidth.n)
                                                                    : "";
       },
       [](JobSpec& j, double f) { return j.cluster.node.scale_up.bandwidth.n *= f, true; }},
      {"nic", "network cards", true, true,
       [](const JobSpec& j) {
         const FabricSpec& n = j.cluster.fabric;
         return has_fabric(j) ? fmt::format("{} x {:.4g} Gb/s a node", n.nics_per_node, n.nic_bandwidth.n * 8 / 1e9)
                              : "";
       },
       [](JobSpec& j, double f) { return j.cluster.fabric.nic_bandwidth.n *= f, true; }},
      {"latency", "network latency", false, true, latency_text, scale_latency},
      {"oversubscription", "oversubscription of leaf uplinks", false, true,
       [](const JobSpec& j) {
         return has_fabric(j) && j.cluster.fabric.nodes_per_leaf > 0
                    ? fmt::format("{:.3g} : 1", j.cluster.fabric.oversubscription)
                    : "";
       },
       scale_oversubscription},
      {"micro_batches", "micro-batches (time for the same tokens)", true, false, micro_batches_text,
       scale_micro_batches},
  };
  return all;
}

Result<SensitivityResult> sensitivity(const JobSpec& job, const SensitivityOptions& options) {
  if (auto plan = lower::lower(job); !plan) return plan.errors();
  const auto models = sim::load_models(job.cluster);
  if (!models) return models.errors();
  const auto step = step_seconds(job, models.value(), job.training.global_batch);
  if (!step) return Diagnostic{"sensitivity", "the job itself cannot be simulated", "windtunnel simulate says why"};
  SensitivityResult out;
  out.step_s = *step;
  out.factors = options.factors;
  out.keep = options.keep;
  std::vector<const Resource*> used;
  for (const Resource& r : resources())
    if (!r.value(job).empty()) used.push_back(&r);
  out.rows.resize(used.size());
  on_threads(options.threads, used.size(), [&](size_t i) {
    const Resource& r = *used[i];
    SensitivityRow& row = out.rows[i];
    row.id = r.id;
    row.name = r.name;
    row.value = r.value(job);
    row.more_is_better = r.more_is_better;
    row.continuous = r.continuous;
    for (const double f : options.factors) {
      const bool go_on = !options.stop || !options.stop->load();
      row.step_s.push_back(go_on ? step_with(job, models.value(), r, f).value_or(0) : 0);
    }
    if (options.stop && options.stop->load()) return;
    constexpr double kNear = 1.25;
    if (const auto near = step_with(job, models.value(), r, kNear)) {
      // More of a latency is worse: what less of it brings.
      const double gain = std::log(*step / *near) / std::log(kNear);
      row.elasticity = r.more_is_better ? gain : -gain;
    }
    if (const auto least = r.continuous ? least_factor(job, models.value(), r, *step, options.keep) : std::nullopt) {
      row.least_factor = *least;
      JobSpec changed = job;
      r.scale(changed, *least);
      row.least_value = r.value(changed);
    }
  });
  out.complete = !options.stop || !options.stop->load();
  return out;
}

std::string print_sensitivity_screen(const SensitivityResult& r, const JobSpec& job) {
  std::string out = fmt::format("{}  on  {}: {} a step\n\n", job.name.empty() ? job.model.name : job.name,
                                job.cluster.name, to_text(Time::from_seconds(r.step_s)));
  std::vector<std::string> header{"resource", "now"};
  for (const double f : r.factors) header.push_back(fmt::format("x {:.4g}", f));
  header.push_back(fmt::format("keeps {:.0f} % of the speed", r.keep * 100));
  header.push_back("1 % better brings");
  report::Table table(header);
  for (const SensitivityRow& row : r.rows) {
    std::vector<std::string> cells{row.name, row.value};
    for (const double s : row.step_s) cells.push_back(s > 0 ? fmt::format("{:+.1f} %", (s / r.step_s - 1) * 100) : "-");
    cells.push_back(row.least_factor > 0 ? row.least_value : !row.continuous ? "-" : "any that was tried");
    cells.push_back(fmt::format("{:.2f} %", std::max(0.0, row.elasticity)));
    table.add(std::move(cells));
  }
  out += table.text();
  out += "\n  columns: change of the step when this number alone is multiplied; all else stays\n";
  if (!r.complete) out += "  interrupted: some were not tried\n";
  return out;
}

std::string print_sensitivity_json(const SensitivityResult& r) {
  Json j{{"schema_version", 1}, {"step_time_s", r.step_s}, {"keep_share", r.keep}, {"complete", r.complete}};
  j["resources"] = Json::array();
  for (const SensitivityRow& row : r.rows) {
    Json steps = Json::array();
    for (size_t k = 0; k < r.factors.size(); ++k)
      steps.push_back(
          Json{{"factor", r.factors[k]}, {"step_time_s", row.step_s[k] > 0 ? Json(row.step_s[k]) : Json()}});
    j["resources"].push_back(Json{{"id", row.id},
                                  {"name", row.name},
                                  {"value", row.value},
                                  {"steps", steps},
                                  {"elasticity", row.elasticity},
                                  {"keeps_at_factor", row.least_factor > 0 ? Json(row.least_factor) : Json()},
                                  {"keeps_at", row.least_value}});
  }
  return j.dump(2) + "\n";
}

std::string print_sensitivity_csv(const SensitivityResult& r) {
  std::string out = "resource,value,factor,step_time_s,change\n";
  for (const SensitivityRow& row : r.rows)
    for (size_t k = 0; k < r.factors.size(); ++k)
      if (row.step_s[k] > 0)
        out += fmt::format("{},\"{}\",{},{},{}\n", row.id, row.value, r.factors[k], row.step_s[k],
                           row.step_s[k] / r.step_s - 1);
  return out;
}

}  // namespace wt::study
