#include "study/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/spec/read.hpp"
#include "study/error_band.hpp"
#include "study/on_threads.hpp"
#include "study/validate_mechanisms.hpp"

namespace wt::study {
namespace {

std::optional<double> get(const Case& row, const char* key) {
  const auto found = row.measured.find(key);
  if (found == row.measured.end()) return std::nullopt;
  return found->second;
}

double middle(double low, double high) { return (low + high) / 2; }

double measured_memory_gib(const Case& row, const MemoryKind& kind) {
  if (const auto whole = get(row, "memory_gb")) return *whole * kind.unit_gib;
  const auto states = get(row, "memory_gb_model_states"), activations = get(row, "memory_gb_activations");
  return states && activations ? (*states + *activations) * kind.unit_gib : 0;
}

/// The figure that corresponds to what the source reports.
double predicted_memory_gib(const Prediction& p, const std::string& kind) {
  if (kind == "allocated") return p.peak_gib;
  if (kind == "reserved") return p.reserved_gib - p.context_gib;
  return p.reserved_gib;
}

struct Outcome {
  Prediction prediction;
  double measured = 0;  // seconds, for the global batch of this candidate; 0: none
  double ratio() const { return prediction.step_time_s / measured; }
};

/// The first fault; a stuck plan names hundreds of ranks.
std::string one_line(const Diagnostics& errors) {
  std::string text = to_text(errors);
  text = text.substr(0, text.find('\n'));
  if (errors.size() > 1) text += fmt::format(" (and {} more)", errors.size() - 1);
  return text;
}

/// A published figure comes from a configuration that somebody tuned: what is half again slower than another value of
/// the same open choices is not what was run.
constexpr double kTuned = 1.5;

Row judge(const Case& row, const Mapping& mapping, const MemoryKind& kind, const Predict& predict) {
  Row out;
  out.id = row.id;
  out.group = row.group.empty() ? "none" : row.group;
  out.tier = row.tier.empty() ? "none" : row.tier;
  out.cluster = row.cluster;
  out.source = row.title;
  out.gpu = row.gpu;
  out.framework = row.framework;
  out.recompute = row.recompute;
  out.tp = row.tp.value_or(1);
  out.pp = row.pp.value_or(1);
  out.dp = row.dp.value_or(1);
  out.vpp = row.vpp.value_or(1);
  out.seq_len = row.seq_len.value_or(0);
  out.out_of_memory_row = row.ran_out_of_memory();
  out.mechanisms = mechanisms_of(row);
  out.open = !row.unknown_fields.empty();

  out.assumptions = mapping.assumptions;
  out.reason = mapping.skip;
  if (!mapping.skip.empty()) return out;

  std::vector<Outcome> outcomes;
  std::string first_error;
  for (const Candidate& candidate : mapping.candidates) {
    const auto measured = measured_step_time(row, candidate.global_batch);
    if (!measured && !out.out_of_memory_row) {
      out.reason = "the source gives no time";
      return out;
    }
    auto job = parse_job(candidate.job, row.id);
    auto prediction = job ? predict(job.value()) : Result<Prediction>(job.errors());
    if (!prediction) {
      if (first_error.empty()) first_error = one_line(prediction.errors());
      if (mapping.candidates.size() > 1)
        out.assumptions.push_back(fmt::format("{}: refused ({})", candidate.label, one_line(prediction.errors())));
      continue;
    }
    if (measured) out.basis = measured->basis;
    out.kernels = kernels_of(job.value().cluster.device);
    out.kind = kind_of(job.value());
    if (const auto band = error_band(job.value())) {
      out.band_low = band.value().low;
      out.band_high = band.value().high;
    }
    outcomes.push_back({std::move(prediction.value()), measured ? measured->seconds : 0});
  }
  if (outcomes.empty()) {
    out.reason = first_error;
    return out;
  }
  // What did not fit was not run: of several candidates only those that fit are plausible.
  const auto too_big = [](const Outcome& o) { return o.prediction.fits == "out_of_memory"; };
  const bool all_too_big = std::all_of(outcomes.begin(), outcomes.end(), too_big);
  if (!all_too_big && !out.out_of_memory_row) {
    const size_t before = outcomes.size();
    std::erase_if(outcomes, too_big);
    if (outcomes.size() < before)
      out.assumptions.push_back(
          fmt::format("{} of {} candidates do not fit and are left out", before - outcomes.size(), before));
  }
  const auto by_time = [&](const Outcome& a, const Outcome& b) {
    return a.measured > 0 ? a.ratio() < b.ratio() : a.prediction.step_time_s < b.prediction.step_time_s;
  };
  std::sort(outcomes.begin(), outcomes.end(), by_time);
  if (!out.out_of_memory_row && outcomes.front().measured > 0) {
    const size_t before = outcomes.size();
    const double limit = kTuned * outcomes.front().ratio();
    std::erase_if(outcomes, [&](const Outcome& o) { return o.ratio() > limit; });
    if (outcomes.size() < before)
      out.assumptions.push_back(
          fmt::format("{} candidates are more than {} times slower than the fastest and are left out",
                      before - outcomes.size(), kTuned));
  }
  out.candidates = outcomes.size();
  const Outcome& low = outcomes.front();
  const Outcome& high = outcomes.back();
  const Outcome* centre = &low;
  if (low.measured > 0) {
    const double ratio = middle(low.ratio(), high.ratio());
    for (const Outcome& o : outcomes)
      if (std::abs(o.ratio() - ratio) < std::abs(centre->ratio() - ratio)) centre = &o;
    out.measured_step_time_s = centre->measured;
    out.predicted_step_time_s = ratio * centre->measured;
    out.predicted_low_s = low.ratio() * centre->measured;
    out.predicted_high_s = high.ratio() * centre->measured;
    out.relative_error = ratio - 1;
  } else {
    out.predicted_step_time_s = middle(low.prediction.step_time_s, high.prediction.step_time_s);
    out.predicted_low_s = low.prediction.step_time_s;
    out.predicted_high_s = high.prediction.step_time_s;
  }
  out.time_s = centre->prediction.time_s;
  out.fits = centre->prediction.fits;

  out.memory_kind = kind.kind;
  double least = predicted_memory_gib(low.prediction, kind.kind), most = least;
  for (const Outcome& o : outcomes) {
    least = std::min(least, predicted_memory_gib(o.prediction, kind.kind));
    most = std::max(most, predicted_memory_gib(o.prediction, kind.kind));
  }
  out.predicted_peak_gib = middle(least, most);
  if (const double memory = measured_memory_gib(row, kind); memory > 0) out.measured_peak_gib = memory;

  if (out.out_of_memory_row) {
    // The configuration that failed is among the candidates: it agrees if any of them does not fit.
    out.agrees = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& o) {
      return o.prediction.fits == "out_of_memory" || o.prediction.fits == "borderline";
    });
  }
  out.status = all_too_big                                          ? RowStatus::predicted_out_of_memory
               : outcomes.size() > 1 || !row.unknown_fields.empty() ? RowStatus::band
                                                                    : RowStatus::compared;
  return out;
}

double quantile(std::vector<double> sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto i = static_cast<size_t>(at);
  const double part = at - static_cast<double>(i);
  return i + 1 < sorted.size() ? sorted[i] * (1 - part) + sorted[i + 1] * part : sorted[i];
}

}  // namespace

ErrorSummary summary_of(const std::vector<const Row*>& rows) {
  ErrorSummary s;
  s.rows = rows.size();
  std::map<std::string, size_t> in_cluster;
  for (const Row* r : rows)
    if (r->relative_error) ++in_cluster[r->cluster];
  std::vector<double> errors;
  double bias = 0, weight = 0, weighted = 0, weighted_bias = 0, memory = 0, memory_bias = 0;
  for (const Row* r : rows) {
    if (r->status == RowStatus::skipped) ++s.skipped;
    if (r->predicted_peak_gib && r->measured_peak_gib) {
      const double e = *r->predicted_peak_gib / *r->measured_peak_gib - 1;
      ++s.memory_compared;
      memory += std::abs(e);
      memory_bias += e;
    }
    if (!r->relative_error) continue;
    const double e = *r->relative_error, w = 1 / static_cast<double>(in_cluster[r->cluster]);
    errors.push_back(std::abs(e));
    bias += e;
    weight += w;
    weighted += w * std::abs(e);
    weighted_bias += w * e;
  }
  s.compared = errors.size();
  s.coverage = s.rows ? static_cast<double>(s.rows - s.skipped) / static_cast<double>(s.rows) : 0;
  if (s.memory_compared) {
    s.memory_mean = memory / static_cast<double>(s.memory_compared);
    s.memory_bias = memory_bias / static_cast<double>(s.memory_compared);
  }
  if (errors.empty()) return s;
  const auto n = static_cast<double>(errors.size());
  double sum = 0;
  for (const double e : errors) sum += e;
  std::sort(errors.begin(), errors.end());
  s.mean = sum / n;
  s.bias = bias / n;
  s.weighted_mean = weighted / weight;
  s.weighted_bias = weighted_bias / weight;
  s.median = quantile(errors, 0.5);
  s.p90 = quantile(errors, 0.9);
  return s;
}

std::string_view to_text(RowStatus s) {
  switch (s) {
    case RowStatus::compared: return "compared";
    case RowStatus::band: return "band";
    case RowStatus::skipped: return "skipped";
    case RowStatus::predicted_out_of_memory: return "predicted_out_of_memory";
  }
  return "?";
}

std::optional<MeasuredTime> measured_step_time(const Case& row, int64_t global_batch) {
  if (const auto t = get(row, "step_time_s")) return MeasuredTime{*t, "step_time_s"};
  const double tokens = static_cast<double>(global_batch) * static_cast<double>(row.seq_len.value_or(0));
  const double gpus = static_cast<double>(row.gpus.value_or(0));
  if (const auto rate = get(row, "tokens_per_s"); rate && tokens > 0)
    return MeasuredTime{tokens / *rate, "tokens_per_s"};
  if (const auto rate = get(row, "tokens_per_s_per_gpu"); rate && tokens > 0 && gpus > 0)
    return MeasuredTime{tokens / (*rate * gpus), "tokens_per_s_per_gpu"};
  if (const auto rate = get(row, "samples_per_s"))
    return MeasuredTime{static_cast<double>(global_batch) / *rate, "samples_per_s"};
  if (const auto rate = get(row, "samples_per_s_per_gpu"); rate && gpus > 0)
    return MeasuredTime{static_cast<double>(global_batch) / (*rate * gpus), "samples_per_s_per_gpu"};
  if (const auto t = get(row, "step_time_s_derived")) return MeasuredTime{*t, "step_time_s_derived"};
  const auto full = get(row, "derived.step_time_s_if_full"), causal = get(row, "derived.step_time_s_if_causal");
  if (full && row.matched.find("full") != std::string::npos) return MeasuredTime{*full, "tflops, full attention"};
  if (causal && row.matched.find("causal") != std::string::npos)
    return MeasuredTime{*causal, "tflops, causal attention"};
  if (full && causal) return MeasuredTime{middle(*full, *causal), "tflops, middle of both conventions"};
  if (full || causal) return MeasuredTime{full ? *full : *causal, "tflops"};
  return std::nullopt;
}

void summarise(Validation& v) {
  std::map<std::string, std::vector<const Row*>> groups, tiers;
  std::vector<const Row*> all;
  v.skipped_for.clear();
  v.out_of_memory = {};
  v.out_of_memory_by_source.clear();
  for (const Row& r : v.rows) {
    all.push_back(&r);
    groups[r.group].push_back(&r);
    tiers[r.tier].push_back(&r);
    if (r.status == RowStatus::skipped) ++v.skipped_for[r.reason];
    if (!r.out_of_memory_row) continue;
    for (Agreement* a : {&v.out_of_memory, &v.out_of_memory_by_source[r.source]}) {
      ++a->rows;
      if (r.status == RowStatus::skipped) continue;
      ++a->judged;
      if (r.agrees) ++a->agreed;
    }
  }
  v.all = summary_of(all);
  v.by_group.clear();
  v.by_tier.clear();
  for (const auto& [name, rows] : groups) v.by_group[name] = summary_of(rows);
  for (const auto& [name, rows] : tiers) v.by_tier[name] = summary_of(rows);
}

Result<Validation> validate(const std::vector<CaseFile>& files, const ValidateData& data, const Predict& predict,
                            const ValidateOptions& options) {
  if (files.empty())
    return Diagnostic{"validate", "no file of published runs", "give one or more in the format of published_runs.yaml"};
  Validation out;
  std::vector<const Case*> chosen;
  std::set<std::string> missing = options.ids;
  for (const CaseFile& file : files) {
    out.warnings.insert(out.warnings.end(), file.warnings.begin(), file.warnings.end());
    for (const Case& row : file.cases) {
      missing.erase(row.id);
      if (!options.group.empty() && row.group != options.group) continue;
      if (!options.tier.empty() && row.tier != options.tier) continue;
      if (!options.ids.empty() && !options.ids.contains(row.id)) continue;
      chosen.push_back(&row);
    }
  }
  for (const std::string& id : missing) out.warnings.push_back(fmt::format("no row has the id '{}'", id));
  if (chosen.empty()) return Diagnostic{"validate", "no row is selected", "check --group, --tier and --ids"};

  std::vector<Mapping> mappings;  // the tables are read from one thread only
  std::vector<MemoryKind> kinds;
  for (const Case* row : chosen) {
    mappings.push_back(map_case(*row, data));
    kinds.push_back(memory_kind_of(*row, data));
  }
  out.rows.resize(chosen.size());
  size_t done = 0;
  std::mutex report;
  on_threads(options.threads, chosen.size(), [&](size_t i) {
    Mapping mapping;
    if (options.stop && options.stop->load())
      mapping.skip = "interrupted";
    else
      mapping = mappings[i];
    out.rows[i] = judge(*chosen[i], mapping, kinds[i], predict);
    const std::lock_guard lock(report);
    ++done;
    if (options.progress) options.progress(done, chosen.size());
  });
  summarise(out);
  return out;
}

}  // namespace wt::study
