// windtunnel audit: the arithmetic of a run checked backwards. FLOPs = GPUs x time x dense peak x MFU: whatever one of
// the four is not given follows from the others; a job brings its predicted MFU. Claims that only the sparse peak
// explains are named.
#include <fmt/format.h>

#include <cmath>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/report/report.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"

namespace wt::apps {

namespace {

constexpr double kDay = 86400;
// The MFU of the sheet in user case P67, which is none over a dense peak.
constexpr double kSheetMfu = 0.552;

struct Options {
  JobOptions job;
  std::string gpu = "h100", model, precision = "bf16";
  double flops = 0, tokens = 0, days = 0, gpu_hours = 0, mfu = 0, tflops = 0;
  int64_t gpus = 0, seq_len = 0;
};

/// What is known of the run, gathered from the words and, where one is given, the job.
struct Known {
  std::string device, device_source, precision, basis, mfu_basis;
  bool sparsity = false;  // the vendor's sheets quote twice the dense peak
  double peak = 0, flops = 0, days = 0, mfu = 0, gpu_seconds = 0;
  double gpus = 0;
  int64_t per_node = 8;
};

std::string count(double n) { return with_commas(static_cast<int64_t>(std::llround(n))); }
std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

void take_device(Known& k, const DeviceSpec& d, DType dtype, Diagnostics& faults) {
  k.device = d.name;
  k.device_source = d.source;
  k.sparsity = d.generation >= GpuGeneration::ampere && (d.vendor == "nvidia" || d.vendor == "NVIDIA");
  const auto p = d.peak.find(dtype);
  if (p == d.peak.end())
    faults.push_back({"--precision", fmt::format("{} has no {} matrix products", d.name, to_text(dtype)), ""});
  else
    k.peak = p->second.n;
}

void take_flops(Known& k, const Options& o, Diagnostics& faults) {
  if (o.flops > 0) {
    k.flops = o.flops;
    k.basis = fmt::format("{:.3g} FLOP as given", o.flops);
    if (!o.model.empty()) faults.push_back({"--flops", "says what --model with --tokens says", "give one of them"});
    return;
  }
  if (o.model.empty()) return;
  auto model = read_model(o.model);
  if (!model) {
    faults.insert(faults.end(), model.errors().begin(), model.errors().end());
    return;
  }
  if (o.tokens <= 0) {
    faults.push_back({"--tokens", "is needed with --model", "such as 15e12"});
    return;
  }
  const double n = static_cast<double>(active_parameters(model.value()));
  if (o.seq_len > 0) {
    TrainingSpec one;
    one.global_batch = 1;
    one.seq_len = o.seq_len;
    const double per_token =
        report::step_flops(model.value(), one, report::FlopFormula::model_causal, 1) / static_cast<double>(o.seq_len);
    k.flops = per_token * o.tokens;
    k.basis = fmt::format("model_causal: {:.4g} FLOP a token at {} tokens a sequence, {:.3g} tokens: {:.3g} FLOP",
                          per_token, o.seq_len, o.tokens, k.flops);
  } else {
    k.flops = 6 * n * o.tokens;
    k.basis = fmt::format(
        "6 N D, N = {:.2f} B active parameters, D = {:.3g} tokens: {:.3g} FLOP; attention is not in "
        "it (--seq-len counts it)",
        n * 1e-9, o.tokens, k.flops);
  }
}

/// Exit code; kOk: go on.
int take_job(Known& k, const Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  auto plan = lower::lower(job.value());
  if (!plan) return fail(plan.errors(), kDoesNotFit);
  auto result = study::run_job(job.value(), std::move(plan.value()), {.breakdown = false});
  if (!result) return fail(result.errors(), kOurFault);
  const study::JobResult& r = result.value();
  Diagnostics faults;
  take_device(k, r.job.cluster.device, r.job.training.compute_dtype, faults);
  if (!faults.empty()) return fail(faults, kBadInput);
  k.precision = to_text(r.job.training.compute_dtype);
  k.per_node = std::max<int64_t>(1, r.job.cluster.node.devices);
  k.mfu = r.report.mfu;
  k.mfu_basis = fmt::format("predicted for {} on {} GPUs, step {}", r.job.name,
                            count(static_cast<double>(r.plan.mesh.ranks())), to_text(r.report.step_time));
  const double tokens = o.tokens > 0 ? o.tokens : r.job.training.total_tokens;
  if (o.flops <= 0 && tokens > 0) {
    const double step = report::step_flops(r.job.model, r.job.training, r.report.formula, r.job.strategy.tensor);
    const double per_token = step / static_cast<double>(r.job.training.global_batch * r.job.training.seq_len);
    k.flops = per_token * tokens;
    k.basis = fmt::format("{}: {:.4g} FLOP a token, {:.3g} tokens: {:.3g} FLOP", report::id_of(r.report.formula),
                          per_token, tokens, k.flops);
  }
  return kOk;
}

int audit(const Options& o) {
  Diagnostics faults;
  Known k;
  k.precision = o.precision;
  if (!o.job.path.empty()) {
    if (o.mfu > 0 || o.tflops > 0)
      return fail({{"audit", "a job brings its predicted MFU", "leave out --mfu and --tflops"}}, kBadInput);
    if (!o.model.empty()) return fail({{"audit", "a job brings its model", "leave out --model"}}, kBadInput);
    if (const int code = take_job(k, o); code != kOk) return code;
  } else {
    auto device = find_device(o.gpu);
    if (!device)
      faults = device.errors();
    else
      take_device(k, device.value(), parse_dtype(o.precision).value_or(DType::bf16), faults);
    k.mfu = o.mfu > 1 ? o.mfu / 100 : o.mfu;
    k.mfu_basis = "as given";
  }
  take_flops(k, o, faults);
  k.days = o.days;
  k.gpus = static_cast<double>(o.gpus);
  if (o.gpu_hours > 0) {
    if (o.days > 0 && o.gpus > 0)
      faults.push_back({"--gpu-hours", "follows from --gpus and --days", "give two of three"});
    k.gpu_seconds = o.gpu_hours * 3600;
    if (o.gpus > 0)
      k.days = k.gpu_seconds / k.gpus / kDay;
    else if (o.days > 0)
      k.gpus = k.gpu_seconds / (k.days * kDay);
  }
  if (k.gpus > 0 && k.days > 0) k.gpu_seconds = k.gpus * k.days * kDay;
  const double measured = o.tflops > 0 && k.peak > 0 ? o.tflops * 1e12 / k.peak : 0;
  double claimed = 0;  // an MFU that something else given decides already
  if (measured > 0) {
    claimed = k.mfu;
    k.mfu = measured;
    k.mfu_basis = fmt::format("{:g} of {:.1f} TFLOP/s", o.tflops, k.peak * 1e-12);
  } else if (k.mfu > 0 && k.flops > 0 && k.gpu_seconds > 0) {
    claimed = k.mfu;
    k.mfu = 0;
  }
  const bool only_rate = measured > 0 && k.flops == 0 && k.gpu_seconds == 0;
  const int sides = (k.flops > 0) + (k.mfu > 0) + (k.gpu_seconds > 0 ? 2 : (k.gpus > 0) + (k.days > 0));
  if (faults.empty() && !only_rate && sides < 3)
    faults.push_back(
        {"audit",
         "too little is given: FLOPs (--flops, --model with --tokens, or a JOB with total_tokens), --gpus, "
         "--days (or --gpu-hours) and --mfu (or --tflops, or a JOB)",
         "three of the four; the fourth follows"});
  if (!faults.empty()) return fail(faults, kBadInput);

  std::string out =
      fmt::format("{}: {:.1f} TFLOP/s {}, dense ({})\n", k.device, k.peak * 1e-12, k.precision, k.device_source);
  auto line = [&](const std::string& text) { out += text + "\n"; };
  if (k.flops > 0) line("work: " + k.basis);
  bool buying = false;
  if (k.mfu == 0) {
    k.mfu = k.flops / (k.gpu_seconds * k.peak);
    line(fmt::format("MFU: {} ({:.1f} TFLOP/s a GPU) over {} GPU-hours", percent(k.mfu), k.mfu * k.peak * 1e-12,
                     count(k.gpu_seconds / 3600)));
  } else if (only_rate) {
    line(fmt::format("MFU: {} ({})", percent(k.mfu), k.mfu_basis));
  } else if (k.gpu_seconds == 0 && k.gpus == 0) {
    buying = true;
    k.gpus = std::ceil(k.flops / (k.days * kDay * k.peak * k.mfu) - 1e-9);
    const double nodes = std::ceil(k.gpus / static_cast<double>(k.per_node));
    line(fmt::format("GPUs needed: {} at MFU {} ({}) for {:g} days; in whole nodes {} x {} = {}", count(k.gpus),
                     percent(k.mfu), k.mfu_basis, k.days, count(nodes), k.per_node,
                     count(nodes * static_cast<double>(k.per_node))));
    line(fmt::format("GPU-hours: {}", count(k.gpus * k.days * 24)));
  } else if (k.gpu_seconds == 0) {
    k.days = k.flops / (k.gpus * k.peak * k.mfu) / kDay;
    line(fmt::format("days: {:.1f} on {} GPUs at MFU {} ({})", k.days, count(k.gpus), percent(k.mfu), k.mfu_basis));
    line(fmt::format("GPU-hours: {}", count(k.gpus * k.days * 24)));
  } else if (k.flops == 0) {
    k.flops = k.gpu_seconds * k.peak * k.mfu;
    line(fmt::format("work done: {:.3g} FLOP in {} GPU-hours at MFU {} ({})", k.flops, count(k.gpu_seconds / 3600),
                     percent(k.mfu), k.mfu_basis));
  } else {  // all four: a rate that was measured against the run's own FLOPs
    const double share = k.flops / (k.gpu_seconds * k.peak);
    line(fmt::format("MFU: {} by FLOPs, GPUs and time; {} by the rate ({})", percent(share), percent(k.mfu),
                     k.mfu_basis));
    line(fmt::format("of the GPU-hours, {} did work at that rate; the rest is restarts, checkpoints and waiting",
                     percent(std::min(1.0, share / k.mfu))));
  }

  const double sparse_peak = 2 * k.peak;
  if (claimed > 0) {
    const double ratio = claimed / k.mfu;
    if (std::fabs(ratio - 1) <= 0.03)
      line(fmt::format("the claimed {} agrees", percent(claimed)));
    else if (k.sparsity && std::fabs(ratio - 0.5) <= 0.03)
      line(
          fmt::format("the claimed {} divides by the sparse peak of {} TFLOP/s (2:4 sparsity, which training does not "
                      "use): the right figure is {}",
                      percent(claimed), count(sparse_peak * 1e-12), percent(k.mfu)));
    else
      line(fmt::format("the claimed {} does not follow: it is {:.2f} times the right figure", percent(claimed), ratio));
  }
  // The factor two of 2:4 sparsity is the commonest fault of such sheets.
  if (k.sparsity && buying) {
    const double digits = std::pow(10, std::floor(std::log10(sparse_peak)) - 1);
    const double rounded = std::round(sparse_peak / digits) * digits;  // 1,979 becomes "2,000" in such sheets
    const double too_few = std::floor(k.flops / (k.days * kDay * rounded * kSheetMfu));
    line(fmt::format(
        "beware: a sheet that takes the sparse peak ({} TFLOP/s, \"{}\": 2:4 sparsity, which training does "
        "not use) at MFU {} says {} GPUs and buys {:.1f} times too few",
        count(sparse_peak * 1e-12), count(rounded * 1e-12), percent(kSheetMfu), count(too_few), k.gpus / too_few));
    line(fmt::format("  its {} GPUs would have to run at {} of the dense peak", count(too_few),
                     percent(k.flops / (too_few * k.days * kDay * k.peak))));
  } else if (k.sparsity && claimed == 0) {
    if (k.mfu > 0.75)
      line(fmt::format("beware: {} is above any published training run", percent(k.mfu)));
    else
      line(fmt::format("over the sparse peak ({} TFLOP/s) the same run would read {}: half, and wrong",
                       count(sparse_peak * 1e-12), percent(k.mfu / 2)));
  }
  if (!only_rate && k.mfu > 0 && k.mfu < 0.25)
    line(fmt::format(
        "question it: well-run dense training reaches 35 to 55 %; at {} much of the time went elsewhere, or "
        "one of the figures is of something else",
        percent(k.mfu)));
  return write_out(out);
}

const Register registration(50, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "audit", "check GPUs, days, FLOPs and MFU of a run against each other (three give the fourth)");
  o->job.add_to(*app, false);
  app->add_option("--gpu", o->gpu, "device: a built-in name (h100, a100-sxm-80 ...) or a file")->type_name("NAME|FILE");
  app->add_option("--flops", o->flops, "FLOPs of the whole run, such as 3e24")->check(CLI::PositiveNumber);
  app->add_option("--model", o->model, "built-in model or file: FLOPs = 6 x active parameters x --tokens")
      ->type_name("NAME|FILE");
  app->add_option("--tokens", o->tokens, "tokens of the whole run, such as 15e12")->check(CLI::PositiveNumber);
  app->add_option("--seq-len", o->seq_len, "with --model: count attention too (model_causal)")
      ->check(CLI::PositiveNumber);
  app->add_option("--days", o->days, "wall-clock days")->check(CLI::PositiveNumber);
  app->add_option("--gpus", o->gpus, "number of GPUs")->check(CLI::PositiveNumber);
  app->add_option("--gpu-hours", o->gpu_hours, "in place of --gpus with --days")->check(CLI::PositiveNumber);
  app->add_option("--mfu", o->mfu, "share of the dense peak, 0.40 or 40; a claim to check if all else is given")
      ->check(CLI::Range(1e-6, 100.0));
  app->add_option("--tflops", o->tflops, "achieved TFLOP/s a GPU")->check(CLI::PositiveNumber);
  app->add_option("--precision", o->precision, "of the peak")->check(CLI::IsMember({"bf16", "fp16", "fp8", "fp32"}));
  app->footer(
      "Examples:\n"
      "  windtunnel audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40        how many GPUs?\n"
      "  windtunnel audit --model llama3-8b --tokens 15e12 --gpu-hours 1.3e6  what MFU was that?\n"
      "  windtunnel audit --gpu h100 --tflops 400 --mfu 0.202                 is the claim right?\n"
      "  windtunnel audit examples/llama3-70b-1024-h100.yaml --days 90        at the MFU predicted for this job");
  app->callback([o, &exit] { exit = audit(*o); });
});

}  // namespace

}  // namespace wt::apps
