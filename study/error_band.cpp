#include "study/error_band.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/data_path.hpp"
#include "core/base/text.hpp"
#include "core/spec/names.hpp"
#include "sim/cost/csv.hpp"

namespace wt::study {

namespace {

constexpr std::string_view kColumns[] = {"kernels", "kind", "runs", "settings", "low", "high"};
constexpr double kShareBelow = 0.1, kShareAbove = 0.9;
// A tenth of the runs lies beyond either end: fewer runs than this say nothing about the ends.
constexpr int64_t kEnoughRuns = 10, kEnoughSettings = 3;
// Up to here a layer's kernels are about as short as the host needs to issue them.
constexpr int64_t kSmallHidden = 2048;

struct Weighted {
  double value = 0, weight = 0;
};

/// The value up to which `share` of the weight lies.
double quantile(const std::vector<Weighted>& sorted, double share) {
  double all = 0, sum = 0;
  for (const Weighted& w : sorted) all += w.weight;
  for (const Weighted& w : sorted)
    if ((sum += w.weight) >= share * all) return w.value;
  return sorted.back().value;
}

ErrorBand band_of_runs(const std::string& kernels, const std::string& kind, std::span<const ComparedRun* const> runs) {
  std::map<std::string, int64_t> in_setting;
  for (const ComparedRun* r : runs) ++in_setting[r->setting];
  std::vector<Weighted> ratios;
  for (const ComparedRun* r : runs)
    ratios.push_back({r->measured_s / r->predicted_s, 1 / static_cast<double>(in_setting[r->setting])});
  std::sort(ratios.begin(), ratios.end(), [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  return {kernels,
          kind,
          static_cast<int64_t>(runs.size()),
          static_cast<int64_t>(in_setting.size()),
          quantile(ratios, kShareBelow),
          quantile(ratios, kShareAbove)};
}

const ErrorBand* find(std::span<const ErrorBand> bands, std::string_view kernels, std::string_view kind) {
  for (const ErrorBand& b : bands)
    if (b.kernels == kernels && b.kind == kind) return &b;
  return nullptr;
}

/// With a blank behind: "4 of 5 published fp8 h100 runs".
std::string_view words_of(std::string_view kind) {
  if (kind == "experts") return "mixture-of-experts ";
  if (kind == "fp8") return "fp8 ";
  if (kind == "small") return "small-model ";
  if (kind == "sharded") return "FSDP and ZeRO-3 ";
  return "dense ";
}

}  // namespace

std::string kind_of(const JobSpec& job) {
  if (job.model.moe) return "experts";
  if (job.training.compute_dtype == DType::f8) return "fp8";
  switch (job.strategy.data_parallel) {
    case DataParallel::zero3:
    case DataParallel::fsdp:
    case DataParallel::fsdp2: return "sharded";
    default: return job.model.hidden <= kSmallHidden ? "small" : "dense";
  }
}

std::string kernels_of(const DeviceSpec& device) { return device.kernels.empty() ? "roofline" : device.kernels; }

std::vector<ErrorBand> error_bands(std::span<const ComparedRun> runs) {
  std::map<std::pair<std::string, std::string>, std::vector<const ComparedRun*>> by_both;
  std::map<std::string, std::vector<const ComparedRun*>> by_kind;
  std::vector<const ComparedRun*> all;
  for (const ComparedRun& r : runs) {
    by_both[{r.kernels, r.kind}].push_back(&r);
    by_kind[r.kind].push_back(&r);
    all.push_back(&r);
  }
  std::vector<ErrorBand> bands;
  for (const auto& [both, some] : by_both) bands.push_back(band_of_runs(both.first, both.second, some));
  for (const auto& [kind, some] : by_kind) bands.push_back(band_of_runs("all", kind, some));
  if (!all.empty()) bands.push_back(band_of_runs("all", "all", all));
  return bands;
}

std::string print_error_bands(std::span<const ErrorBand> bands) {
  std::string out =
      "# Measured step / predicted step of the runs in docs/validation.md, 10th and 90th percentile; a setting "
      "(cluster,\n"
      "# model, paper) weighs as one run. Written by `windtunnel validate FILES --bands`; not edited by hand.\n"
      "kernels,kind,runs,settings,low,high\n";
  for (const ErrorBand& b : bands)
    out += fmt::format("{},{},{},{},{:.3f},{:.3f}\n", b.kernels, b.kind, b.runs, b.settings, b.low, b.high);
  return out;
}

Result<std::vector<ErrorBand>> read_error_bands(const std::string& path) {
  auto csv = sim::Csv::read(path, kColumns);
  if (!csv) return csv.errors();
  sim::Csv& c = csv.value();
  std::vector<ErrorBand> bands;
  for (size_t row = 0; row < c.rows(); ++row) {
    ErrorBand b{std::string(c.text(row, 0)),
                std::string(c.text(row, 1)),
                static_cast<int64_t>(c.number(row, 2)),
                static_cast<int64_t>(c.number(row, 3)),
                c.number(row, 4),
                c.number(row, 5)};
    if (!(b.low > 0)) c.fail(row, 4, "is not above zero");
    if (!(b.high >= b.low)) c.fail(row, 5, "is below 'low'");
    bands.push_back(std::move(b));
  }
  if (!find(bands, "all", "all")) c.errors().push_back({path, "no row 'all' of kind 'all'", ""});
  if (!c.errors().empty()) return c.errors();
  return bands;
}

JobBand band_of(const JobSpec& job, std::span<const ErrorBand> bands) {
  const std::string kernels = kernels_of(job.cluster.device), kind = kind_of(job);
  const ErrorBand *own = find(bands, kernels, kind), *like = find(bands, "all", kind), *all = find(bands, "all", "all");
  const auto enough = [](const ErrorBand* b) { return b && b->runs >= kEnoughRuns && b->settings >= kEnoughSettings; };
  const bool by_kernels = enough(own), by_kind = by_kernels || enough(like);
  const ErrorBand& used = by_kernels ? *own : by_kind ? *like : *all;
  std::string basis = fmt::format("4 of 5 published {}{}runs lay so near their prediction ({} runs, {} settings)",
                                  by_kind ? words_of(kind) : "", by_kernels ? kernels + " " : "",
                                  with_commas(used.runs), with_commas(used.settings));
  if (!by_kernels)
    basis += fmt::format("; {} of them {}with {} kernels", own ? own->runs : 0, by_kind ? "" : words_of(kind), kernels);
  return {used.low, used.high, std::move(basis)};
}

Result<JobBand> error_band(const JobSpec& job) {
  auto bands = read_error_bands(data_directory() + "/validate/error_bands.csv");
  if (!bands) return bands.errors();
  return band_of(job, bands.value());
}

}  // namespace wt::study
