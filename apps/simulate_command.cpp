// windtunnel simulate: one training step predicted, as one screen, JSON, CSV or Markdown, with a trace on request.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/atomic_file.hpp"
#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/report/print.hpp"
#include "core/trace/export.hpp"
#include "core/trace/file.hpp"
#include "study/deepspeed_estimate.hpp"
#include "study/error_band.hpp"
#include "study/explain_step.hpp"
#include "study/run_job.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  bool json = false, csv = false, markdown = false, explain = false, full = false, all_ranks = false, estimate = false;
  std::string trace, formula = "model_causal";
};

int simulate(const Options& o) {
  const auto formula = report::parse_formula(o.formula);  // checked by the parser of words
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  auto plan = lower::lower(job.value());
  if (!plan) return fail(plan.errors(), kDoesNotFit);

  // An output that cannot be written is known before the work.
  std::optional<trace::Format> format;
  std::unique_ptr<trace::FileSink> native;
  std::optional<AtomicFile> exported;
  if (!o.trace.empty()) {
    auto f = trace::format_of(o.trace);
    if (!f) return fail(f.errors(), kBadInput);
    format = f.value();
    if (*format == trace::Format::native) {
      auto sink = trace::FileSink::create(o.trace, plan::print(plan.value()));
      if (!sink) return fail(sink.errors(), kMachineFault);
      native = std::move(sink.value());
    } else {
      auto file = AtomicFile::create(o.trace);
      if (!file) return fail(file.errors(), kMachineFault);
      exported.emplace(std::move(file.value()));
    }
  }

  auto models = sim::load_models(job.value().cluster);
  if (!models) return fail(models.errors(), kBadInput);
  study::RunOptions options;
  options.all_ranks = o.all_ranks;
  options.models = &models.value();
  options.formula = *formula;
  options.sink = native.get();
  options.keep_trace = exported.has_value();
  auto result = study::run_job(job.value(), std::move(plan.value()), options);
  if (!result) return fail(result.errors(), kBadInput);  // prices out of range
  study::JobResult& r = result.value();

  const trace::Meta meta = study::trace_meta(r, WT_VERSION, command_line());
  if (native)
    if (auto s = native->finish(meta); !s) return fail(s.errors(), kMachineFault);
  if (exported) {
    r.trace->meta = meta;
    trace::export_trace(*exported, *format, *r.trace, r.plan);
    if (auto s = exported->commit(); !s) return fail(s.errors(), kMachineFault);
  }

  const auto band = study::error_band(r.job);
  if (!band) return fail(band.errors(), kBadInput);
  const double step = r.report.step_time.seconds();
  const report::StepBand step_band{step * band.value().low, step * band.value().high, band.value().basis};
  const report::Sheet sheet{r.job,
                            r.plan,
                            r.report,
                            r.plan_digest,
                            r.assumptions,
                            r.warnings,
                            {r.run.ranks, r.run.distinct_ranks, r.run.ops, r.run.events, r.run.wall_seconds},
                            step_band};
  std::string text = o.json       ? report::print_json(sheet)
                     : o.csv      ? report::print_csv(sheet)
                     : o.markdown ? report::print_markdown(sheet)
                                  : report::print_screen(sheet);
  if (o.explain)
    text += "\n" + study::explain_step(r, models.value(), o.full ? study::Listing::full : study::Listing::grouped);
  if (o.estimate) text += "\n" + study::print_deepspeed_estimate(r.job, r.report.memory);
  if (const int code = write_out(text); code != kOk) return code;
  return r.report.memory.fits == "out_of_memory" ? kDoesNotFit : kOk;
}

const Register registration(10, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("simulate", "predict one training step: memory, time, MFU, what limits it");
  o->job.add_to(*app);
  auto* json = app->add_flag("--json", o->json, "the report as JSON (stable keys with units)");
  auto* csv = app->add_flag("--csv", o->csv, "a header and one row for a spreadsheet");
  auto* markdown = app->add_flag("--markdown", o->markdown, "tables for a proposal");
  auto* explain =
      app->add_flag("--explain", o->explain, "below the screen: every term with formula, inputs and source");
  app->add_flag("--full", o->full, "with --explain: every line, nothing grouped")->needs(explain);
  auto* estimate = app->add_flag("--deepspeed-estimate", o->estimate,
                                 "below the screen: what DeepSpeed's own memory estimators print, beside ours");
  estimate->excludes(json)->excludes(csv)->excludes(markdown);
  csv->excludes(json);
  markdown->excludes(json)->excludes(csv);
  explain->excludes(json)->excludes(csv)->excludes(markdown);
  app->add_option(
         "--trace", o->trace,
         "write the timeline: .wttrace (native), .pftrace (ui.perfetto.dev), .json or .json.gz (chrome://tracing)")
      ->type_name("FILE");
  app->add_flag("--all-ranks", o->all_ranks, "simulate every rank; the default simulates ranks that are alike once");
  std::vector<std::string> ids;
  for (const report::FlopFormula f : report::kFlopFormulas) ids.emplace_back(report::id_of(f));
  app->add_option("--flops", o->formula, "FLOP formula of MFU")->check(CLI::IsMember(ids))->type_name("ID");
  app->footer(
      "Examples:\n"
      "  windtunnel simulate examples/llama3-70b-1024-h100.yaml\n"
      "  windtunnel simulate job.yaml --cluster dgx-h200 --nodes 32 --set strategy.pipeline=2\n"
      "  windtunnel simulate job.yaml --trace step.pftrace\n"
      "Exit code 3: the job does not fit (the answer is printed all the same) or its strategy is illegal.");
  app->callback([o, &exit] { exit = simulate(*o); });
});

}  // namespace

}  // namespace wt::apps
