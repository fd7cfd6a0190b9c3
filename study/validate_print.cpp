// The validation as JSON (the contract), as a table for a terminal and as Markdown for docs/validation.md.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "study/error_band.hpp"
#include "study/validate.hpp"
#include "study/validate_mechanisms.hpp"

namespace wt::study {
namespace {

using Json = nlohmann::ordered_json;

Json number(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }

Json json_of(const ErrorSummary& s) {
  Json j;
  j["rows"] = s.rows;
  j["compared"] = s.compared;
  j["skipped"] = s.skipped;
  j["coverage"] = s.coverage;
  j["mean_abs_error"] = number(s.mean);
  j["weighted_mean_abs_error"] = number(s.weighted_mean);
  j["median_abs_error"] = number(s.median);
  j["p90_abs_error"] = number(s.p90);
  j["bias"] = number(s.bias);
  j["weighted_bias"] = number(s.weighted_bias);
  j["memory_compared"] = s.memory_compared;
  j["memory_mean_abs_error"] = number(s.memory_mean);
  j["memory_bias"] = number(s.memory_bias);
  return j;
}

Json json_of(const Row& r) {
  Json j;
  j["id"] = r.id;
  j["status"] = to_text(r.status);
  j["reason"] = r.reason;
  j["predicted_step_time_s"] = number(r.predicted_step_time_s);
  j["measured_step_time_s"] = number(r.measured_step_time_s);
  j["relative_error"] = number(r.relative_error);
  j["predicted_peak_gib"] = number(r.predicted_peak_gib);
  j["measured_peak_gib"] = number(r.measured_peak_gib);
  j["memory_kind"] = r.memory_kind;
  j["cluster"] = r.cluster;
  j["tier"] = r.tier;
  j["group"] = r.group;
  j["gpu"] = r.gpu;
  j["kernels"] = r.kernels;
  j["kind"] = r.kind;
  j["framework"] = r.framework;
  j["tp"] = r.tp;
  j["pp"] = r.pp;
  j["dp"] = r.dp;
  j["vpp"] = r.vpp;
  j["seq_len"] = r.seq_len;
  j["recompute"] = r.recompute;
  j["measured_from"] = r.basis;
  j["predicted_low_s"] = number(r.predicted_low_s);
  j["predicted_high_s"] = number(r.predicted_high_s);
  j["candidates"] = r.candidates;
  j["fits"] = r.fits;
  if (r.out_of_memory_row) j["agrees"] = r.agrees;
  j["time_s"] = r.time_s;
  j["assumptions"] = r.assumptions;
  return j;
}

Json json_of(const Agreement& a) {
  return {{"rows", a.rows},
          {"judged", a.judged},
          {"agreed", a.agreed},
          {"share", a.judged ? Json(a.share()) : Json(nullptr)}};
}

std::string percent(const std::optional<double>& x) { return x ? fmt::format("{:.1f} %", *x * 100) : "-"; }
std::string signed_percent(const std::optional<double>& x) { return x ? fmt::format("{:+.1f} %", *x * 100) : "-"; }
std::string seconds(const std::optional<double>& x) { return x ? fmt::format("{:.4g} s", *x) : "-"; }
std::string gib(const std::optional<double>& x) { return x ? fmt::format("{:.1f} GiB", *x) : "-"; }

std::string oom_word(const Row& r) { return r.agrees ? "agrees" : "disagrees"; }

/// Left-aligned first column, right-aligned rest; `bar` joins cells, Markdown's or two blanks.
std::string table(const std::vector<std::vector<std::string>>& rows, bool markdown) {
  std::vector<size_t> width;
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) {
      if (c == width.size()) width.push_back(3);
      width[c] = std::max(width[c], row[c].size());
    }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line = markdown ? "|" : "";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const std::string cell =
          c == 0 ? fmt::format("{:<{}}", rows[r][c], width[c]) : fmt::format("{:>{}}", rows[r][c], width[c]);
      line += markdown ? fmt::format(" {} |", cell) : fmt::format("{}{}", c ? "  " : "", cell);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
    if (markdown && r == 0) {
      out += "|";
      for (size_t c = 0; c < rows[r].size(); ++c)
        out += c ? fmt::format(" {:->{}}: |", "", width[c] - 1) : fmt::format(" {:->{}} |", "", width[c]);
      out += "\n";
    }
  }
  return out;
}

std::vector<std::string> summary_row(const std::string& name, const ErrorSummary& s) {
  return {name,
          fmt::format("{}", s.rows),
          fmt::format("{}", s.compared),
          fmt::format("{}", s.skipped),
          percent(s.mean),
          percent(s.weighted_mean),
          percent(s.median),
          percent(s.p90),
          signed_percent(s.bias),
          s.memory_compared ? fmt::format("{} ({})", percent(s.memory_mean), s.memory_compared) : "-"};
}

std::vector<std::vector<std::string>> summary_rows(const Validation& v) {
  std::vector<std::vector<std::string>> rows = {
      {"", "rows", "compared", "skipped", "mean", "weighted", "median", "p90", "bias", "memory (rows)"}};
  rows.push_back(summary_row("all", v.all));
  for (const auto& [name, s] : v.by_tier) rows.push_back(summary_row("tier " + name, s));
  for (const auto& [name, s] : v.by_group) rows.push_back(summary_row(name, s));
  return rows;
}

std::vector<std::vector<std::string>> agreement_rows(const Validation& v) {
  std::vector<std::vector<std::string>> rows = {{"ran out of memory", "rows", "judged", "agreed", "share"}};
  const auto add = [&](const std::string& name, const Agreement& a) {
    rows.push_back({name, fmt::format("{}", a.rows), fmt::format("{}", a.judged), fmt::format("{}", a.agreed),
                    a.judged ? percent(a.share()) : "-"});
  };
  add("all", v.out_of_memory);
  for (const auto& [name, a] : v.out_of_memory_by_source) add(name, a);
  return rows;
}

std::vector<std::vector<std::string>> detail_rows(const Validation& v) {
  std::vector<std::vector<std::string>> rows = {
      {"row", "status", "predicted", "measured", "error", "memory", "measured", "kind"}};
  for (const Row& r : v.rows) {
    if (r.status == RowStatus::skipped) continue;
    std::string predicted = seconds(r.predicted_step_time_s);
    if (r.candidates > 1) predicted += fmt::format(" ({:.4g} to {:.4g})", *r.predicted_low_s, *r.predicted_high_s);
    rows.push_back({r.id, std::string(to_text(r.status)), predicted, seconds(r.measured_step_time_s),
                    r.out_of_memory_row ? oom_word(r) : signed_percent(r.relative_error), gib(r.predicted_peak_gib),
                    gib(r.measured_peak_gib), r.memory_kind});
  }
  return rows;
}

/// Tiers A and B by mechanism, why a far group is far, and whether bands hold.
std::string mechanisms_section(const Validation& v) {
  std::vector<std::vector<std::string>> rows = {{"tiers A and B", "rows", "compared", "weighted", "bias", "p90"}};
  std::vector<std::string> far;
  auto add = [&](const std::string& name, const ErrorSummary& s) {
    rows.push_back({name, fmt::format("{}", s.rows), fmt::format("{}", s.compared), percent(s.weighted_mean),
                    signed_percent(s.weighted_bias), percent(s.p90)});
  };
  for (const auto& [name, s] : by_mechanism(v.rows)) {
    add(name, s);
    if (s.weighted_mean.value_or(0) > kFar) far.push_back(name);
  }
  for (const auto& [name, s] : v.by_group)
    if (s.weighted_mean.value_or(0) > kFar) far.push_back(name);
  std::string out = "## By mechanism\n\n" + table(rows, true) + "\n";
  const auto remarks = read_remarks();
  for (const std::string& name : far) {
    const bool known = remarks.ok() && remarks.value().contains(name);
    out +=
        fmt::format("- {}: {}\n", name, known ? remarks.value().at(name) : "more than 30 % off, and not explained yet");
  }
  const BandCount bands = bands_that_hold(v.rows);
  if (bands.rows)
    out += fmt::format(
        "{}Rows that leave fields open: the band of the candidates, times the band that `simulate` prints for such "
        "jobs, "
        "holds the measured step in {} of {} rows ({:.0f} %). The second band comes from rows of this page too.\n",
        far.empty() ? "" : "\n", bands.inside, bands.rows, 100 * bands.share());
  return out + "\n";
}

}  // namespace

std::string print_json(const Validation& v) {
  Json j;
  j["schema_version"] = 1;
  j["rows"] = Json::array();
  for (const Row& r : v.rows) j["rows"].push_back(json_of(r));
  Json summary = json_of(v.all);
  summary["by_group"] = Json::object();
  for (const auto& [name, s] : v.by_group) summary["by_group"][name] = json_of(s);
  summary["by_tier"] = Json::object();
  for (const auto& [name, s] : v.by_tier) summary["by_tier"][name] = json_of(s);
  summary["skipped_for"] = v.skipped_for;
  if (v.out_of_memory.rows) {
    Json oom = json_of(v.out_of_memory);
    oom["all"] = oom["share"];
    oom["by_source"] = Json::object();
    for (const auto& [name, a] : v.out_of_memory_by_source) oom["by_source"][name] = json_of(a);
    summary["oom_agreement"] = oom;
  }
  summary["by_mechanism"] = Json::object();
  for (const auto& [name, s] : by_mechanism(v.rows)) summary["by_mechanism"][name] = json_of(s);
  const BandCount bands = bands_that_hold(v.rows);
  summary["open_rows"] = bands.rows;
  summary["open_rows_inside_band"] = bands.inside;
  j["summary"] = summary;
  j["warnings"] = v.warnings;
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string print_table(const Validation& v) {
  std::string out = table(detail_rows(v), false) + "\n";
  if (!v.skipped_for.empty()) {
    out += "skipped\n";
    for (const auto& [reason, rows] : v.skipped_for) out += fmt::format("  {:>5}  {}\n", rows, reason);
    out += "\n";
  }
  out += table(summary_rows(v), false);
  if (v.out_of_memory.rows) out += fmt::format("\n{}", table(agreement_rows(v), false));
  for (const std::string& w : v.warnings) out += fmt::format("warning: {}\n", w);
  return out;
}

std::string print_markdown(const Validation& v) {
  std::string out =
      "# Predicted against published\n\n"
      "Written by `windtunnel validate FILES --markdown`; not edited by hand.\n\n"
      "- Step time is compared, |predicted / measured - 1|, never MFU across FLOP conventions. A time that a source "
      "gives only as TFLOP/s is scored under the convention that its check matched, else at the middle of both.\n"
      "- `weighted`: rows of one cluster of near-duplicates share the weight of one row.\n"
      "- What a source leaves open (micro-batch, virtual stages, recompute, network) is tried over its plausible "
      "values: those that fit in memory and are at most 1.5 times slower than the fastest. The row is a band, scored "
      "at "
      "its middle.\n"
      "- What a framework does and what hardware a phrase names is data with sources: `data/validate/`; it holds no "
      "speed "
      "factor. Some of it was chosen after seeing rows: `corrections` and the gradients of Megatron-LM 2022 come from "
      "what those sources print and hold, the sustained clock of H100 within its published range from the bias of all "
      "rows on it (docs/kernels.md), the limit of 1.5 from the bands, and the rate of batched products off 16 "
      "bytes "
      "from rows that differ in the number of heads (heads of 108; those of 150 were left out). `--job ID` prints the "
      "job files of a row.\n"
      "- 200 configurations that were published more than once differ by a median of 2.9 % and by 23 % at the 90th "
      "percentile; an error below 3 % says nothing.\n"
      "- A configuration that ran out of memory agrees when the verdict is `out_of_memory` or `borderline`.\n\n";
  out += "## Summary\n\n" + table(summary_rows(v), true) + "\n";
  if (v.out_of_memory.rows)
    out += "## Configurations that ran out of memory\n\n" + table(agreement_rows(v), true) + "\n";
  out += mechanisms_section(v);
  if (!v.skipped_for.empty()) {
    std::vector<std::vector<std::string>> rows = {{"reason", "rows"}};
    for (const auto& [reason, n] : v.skipped_for) rows.push_back({reason, fmt::format("{}", n)});
    out += "## Skipped\n\n" + table(rows, true) + "\n";
  }
  out += "## Every row\n\n" + table(detail_rows(v), true);
  return out;
}

std::string print_bands(const Validation& v) {
  std::vector<ComparedRun> runs;
  for (const Row& r : v.rows)
    if (r.relative_error)
      runs.push_back({r.kernels, r.kind, r.cluster, *r.predicted_step_time_s, *r.measured_step_time_s});
  return print_error_bands(error_bands(runs));
}

}  // namespace wt::study
