// windtunnel audit: the arithmetic of a run checked backwards. FLOPs = GPUs x time x dense peak x MFU: whatever one of
// the four is not given follows from the others; a job brings its predicted MFU, a model with a throughput its rate
// under every usual FLOP formula. Claims that only the sparse peak or another formula explains are named.
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "core/lower/lower.hpp"
#include "core/report/report.hpp"
#include "core/spec/names.hpp"
#include "core/spec/read.hpp"
#include "study/run_job.hpp"

namespace wt::apps {

namespace {

constexpr double kDay = 86400;
// A sheet that plans purchases and is passed around on the web counts an H100 as 2,000 TFLOP/s at an MFU of 55.2 %.
constexpr double kSheetMfu = 0.552, kSheetPeak = 2000e12;

struct Options {
  JobOptions job;
  std::string gpu = "h100", model, precision;  // precision: bf16 where none is given
  double flops = 0, tokens = 0, days = 0, gpu_hours = 0, mfu = 0, tflops = 0, tokens_per_s = 0;
  int64_t gpus = 0, seq_len = 0;
};

/// FLOPs of one token by one of the formulas that people report with.
struct PerToken {
  report::FlopFormula formula;
  double flops = 0;
};

/// What is known of the run, gathered from the words and, where one is given, the job.
struct Known {
  std::vector<PerToken> per_token;  // of --model: the one that is used first, all that can be computed after it
  std::string device, device_source, precision, basis, mfu_basis;
  bool sparsity = false;  // the vendor's sheets quote twice the dense peak
  double peak = 0, flops = 0, days = 0, mfu = 0, gpu_seconds = 0;
  double gpus = 0;
  int64_t per_node = 8;
};

std::string count(double n) {
  constexpr double kLongest = 1e15;  // more digits than anybody reads, fewer than an integer holds
  return n < kLongest ? with_commas(static_cast<int64_t>(std::llround(n))) : fmt::format("{:.3g}", n);
}
std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

/// `where`: what chose the number format, to be named if the device lacks it.
void take_device(Known& k, const DeviceSpec& d, DType dtype, std::string_view where, Diagnostics& faults) {
  k.device = d.name;
  k.device_source = d.source;
  k.sparsity =
      d.generation >= GpuGeneration::ampere && size_of(dtype) < 4 && (d.vendor == "nvidia" || d.vendor == "NVIDIA");
  const auto p = d.peak.find(dtype);
  if (p != d.peak.end()) {
    k.peak = p->second.n;
    return;
  }
  std::vector<std::string_view> legal;
  for (const auto& [other, peak] : d.peak)
    if (other != DType::f64) legal.push_back(spelled(other));  // not a value of --precision
  faults.push_back({std::string(where), fmt::format("{} has no {} matrix products", d.name, spelled(dtype)),
                    fmt::format("--precision {}", fmt::join(legal, ", "))});
}

/// All formulas where the length of a sequence is known; else the one that leaves attention out.
std::vector<PerToken> flops_per_token(const ModelSpec& model, int64_t seq_len) {
  std::vector<PerToken> out;
  TrainingSpec one;
  one.global_batch = 1;
  one.seq_len = seq_len > 0 ? seq_len : 1;
  for (const report::FlopFormula f : report::kFlopFormulas)
    if (report::applies(f, one) && (seq_len > 0 || f == report::FlopFormula::six_n))
      out.push_back({f, report::step_flops(model, one, f, 1) / static_cast<double>(one.seq_len)});
  return out;
}

void take_model(Known& k, const Options& o, Diagnostics& faults) {
  if (o.model.empty()) {
    if (o.tokens_per_s > 0 && o.job.path.empty())
      faults.push_back({"--tokens-per-s-per-gpu", "says nothing without a model", "give --model, and --seq-len"});
    return;
  }
  auto model = read_model(o.model);
  if (!model)
    faults.insert(faults.end(), model.errors().begin(), model.errors().end());
  else
    k.per_token = flops_per_token(model.value(), o.seq_len);
  if (o.tokens <= 0 && o.tokens_per_s <= 0)
    faults.push_back({"--tokens", "is needed with --model, or --tokens-per-s-per-gpu", "such as --tokens 15e12"});
}

void take_flops(Known& k, const Options& o, Diagnostics& faults) {
  if (o.flops > 0) {
    k.flops = o.flops;
    k.basis = fmt::format("{:.3g} FLOP as given", o.flops);
    if (o.tokens > 0) faults.push_back({"--flops", "says what --tokens says", "give one of them"});
    return;
  }
  if (k.per_token.empty() || o.tokens <= 0) return;
  const PerToken& used = k.per_token.front();
  k.flops = used.flops * o.tokens;
  k.basis = fmt::format("{}: {:.4g} FLOP a token{}, {:.3g} tokens: {:.3g} FLOP{}", report::id_of(used.formula),
                        used.flops, o.seq_len > 0 ? fmt::format(" at {} tokens a sequence", o.seq_len) : "", o.tokens,
                        k.flops, o.seq_len > 0 ? "" : "; attention is not in it (--seq-len counts it)");
}

/// One throughput under every formula: the figures that the same run may be quoted with.
std::string formula_table(const Known& k, double tokens_per_s) {
  std::string out =
      fmt::format("  {:<20} {:>12} {:>14} {:>8}  {}\n", "formula", "FLOP a token", "TFLOP/s a GPU", "MFU", "counts");
  for (const PerToken& f : k.per_token) {
    const double rate = f.flops * tokens_per_s;
    out += fmt::format("  {:<20} {:>12.3g} {:>14.1f} {:>8}  {}\n", report::id_of(f.formula), f.flops, rate * 1e-12,
                       percent(rate / k.peak), report::text_of(f.formula));
  }
  return out;
}

/// Which formula a quoted rate was made with.
std::string judge_rate(const Known& k, const Options& o) {
  const PerToken* nearest = &k.per_token.front();
  const auto distance = [&](const PerToken& f) { return std::fabs(f.flops * o.tokens_per_s / (o.tflops * 1e12) - 1); };
  for (const PerToken& f : k.per_token)
    if (distance(f) < distance(*nearest)) nearest = &f;
  if (distance(*nearest) <= 0.03)
    return fmt::format("the quoted {:g} TFLOP/s is the formula {}", o.tflops, report::id_of(nearest->formula));
  return fmt::format("the quoted {:g} TFLOP/s is none of these; the nearest, {}, gives {:.1f}", o.tflops,
                     report::id_of(nearest->formula), nearest->flops * o.tokens_per_s * 1e-12);
}

/// Exit code; kOk: go on.
int take_job(Known& k, const Options& o) {
  auto job = o.job.load();
  if (!job) return fail(job.errors(), kBadInput);
  auto plan = lower::lower(job.value());
  if (!plan) return fail(plan.errors(), kDoesNotFit);
  auto result = study::run_job(job.value(), std::move(plan.value()), {.breakdown = false});
  if (!result) return fail(result.errors(), kBadInput);  // prices out of range
  const study::JobResult& r = result.value();
  Diagnostics faults;
  take_device(k, r.job.cluster.device, r.job.training.compute_dtype, "training.precision", faults);
  if (!faults.empty()) return fail(faults, kBadInput);
  k.precision = spelled(r.job.training.compute_dtype);
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
  k.precision = o.precision.empty() ? "bf16" : o.precision;
  if (!o.job.path.empty()) {
    if (o.mfu > 0 || o.tflops > 0)
      return fail({{"audit", "a job brings its predicted MFU", "leave out --mfu and --tflops"}}, kBadInput);
    if (!o.model.empty()) return fail({{"audit", "a job brings its model", "leave out --model"}}, kBadInput);
    if (o.tokens_per_s > 0)
      return fail({{"audit", "a job brings its predicted rate", "leave out --tokens-per-s-per-gpu"}}, kBadInput);
    if (const int code = take_job(k, o); code != kOk) return code;
  } else {
    auto device = find_device(o.gpu);
    if (!device)
      faults = device.errors();
    else
      take_device(k, device.value(), parse_dtype(k.precision).value_or(DType::bf16),
                  o.precision.empty() ? "--gpu" : "--precision", faults);
    k.mfu = o.mfu > 1 ? o.mfu / 100 : o.mfu;
    k.mfu_basis = "as given";
  }
  take_model(k, o, faults);
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
  const bool throughput = o.tokens_per_s > 0 && !k.per_token.empty();
  const double rate = throughput ? k.per_token.front().flops * o.tokens_per_s : o.tflops * 1e12;  // FLOP/s of a GPU
  const double measured = k.peak > 0 ? rate / k.peak : 0;
  double claimed = 0;  // an MFU that something else given decides already
  if (measured > 0) {
    claimed = k.mfu;
    k.mfu = measured;
    k.mfu_basis = fmt::format("{:.4g} of {:.1f} TFLOP/s{}", rate * 1e-12, k.peak * 1e-12,
                              throughput ? fmt::format(", formula {}", report::id_of(k.per_token[0].formula)) : "");
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
         "--days (or --gpu-hours) and --mfu (or --tflops, --tokens-per-s-per-gpu with --model, or a JOB)",
         "three of the four; the fourth follows"});
  if (!faults.empty()) return fail(faults, kBadInput);

  std::string out =
      fmt::format("{}: {:.1f} TFLOP/s {}, dense ({})\n", k.device, k.peak * 1e-12, k.precision, k.device_source);
  auto line = [&](const std::string& text) { out += text + "\n"; };
  if (k.flops > 0) line("work: " + k.basis);
  if (throughput) {
    line(fmt::format("{} tokens/s a GPU is, by formula:", count(o.tokens_per_s)));
    out += formula_table(k, o.tokens_per_s);
    if (k.per_token.size() == 1) line("  the formulas that count attention need --seq-len");
    if (o.tflops > 0) line(judge_rate(k, o));
  }
  bool buying = false;
  if (k.mfu == 0) {
    k.mfu = k.flops / (k.gpu_seconds * k.peak);
    line(fmt::format("MFU: {} ({:.1f} TFLOP/s a GPU) over {} GPU-hours", percent(k.mfu), k.mfu * k.peak * 1e-12,
                     count(k.gpu_seconds / 3600)));
    if (k.per_token.size() > 1) {
      line("the same run by the usual formulas:");
      out += formula_table(k, o.tokens / k.gpu_seconds);
    }
  } else if (only_rate) {
    line(fmt::format("MFU: {} ({})", percent(k.mfu), k.mfu_basis));
  } else if (k.gpu_seconds == 0 && k.gpus == 0) {
    buying = true;
    k.gpus = std::max(1.0, std::ceil(k.flops / (k.days * kDay * k.peak * k.mfu) - 1e-9));
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

  const double reached = std::max(k.mfu, k.gpu_seconds > 0 ? k.flops / (k.gpu_seconds * k.peak) : 0);
  if (reached > 1)
    line(fmt::format("impossible: {} is more than the GPUs can do at their dense peak; one of the numbers is wrong",
                     percent(reached)));

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
    const double need = k.flops / (k.days * kDay);  // FLOP/s of all GPUs
    const auto beware = [&](double peak, double mfu, std::string_view who) {
      const double too_few = std::floor(need / (peak * mfu));
      if (too_few < 1 || too_few >= k.gpus) return;  // nothing is bought, or not too little
      line(fmt::format("beware: {} {} GPUs and buys {:.1f} times too few", who, count(too_few), k.gpus / too_few));
      line(fmt::format("  {} GPUs would have to run at {} of the dense peak", count(too_few),
                       percent(need / (too_few * k.peak))));
    };
    const std::string sparse = fmt::format("the sparse peak ({} TFLOP/s: 2:4 sparsity, which training does not use)",
                                           count(sparse_peak * 1e-12));
    if (std::fabs(sparse_peak / kSheetPeak - 1) <= 0.03)
      beware(
          kSheetPeak, kSheetMfu,
          fmt::format("a sheet passed around on the web takes {} as {} and writes an MFU of {} into its cells: it says",
                      sparse, count(kSheetPeak * 1e-12), percent(kSheetMfu)));
    else
      beware(sparse_peak, k.mfu, fmt::format("a sheet that takes {} at the same MFU says", sparse));
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
  app->add_option("--gpu", o->gpu, "device: a built-in name (h100, a100-sxm-80 ...) or a file; h100 if not given")
      ->check(CLI::Validator(
          [](std::string& name) {  // a name that is none is told with the other words; what is wrong in a file, later
            const auto device = find_device(name);
            if (device.ok() || device.errors()[0].where != "--gpu") return std::string();
            return fmt::format("{} ({})", device.errors()[0].what, device.errors()[0].hint);
          },
          ""))
      ->type_name("NAME|FILE");
  app->add_option("--flops", o->flops, "FLOPs of the whole run, such as 3e24")
      ->check(number_between(1, 1e40))
      ->type_name("X");
  app->add_option("--model", o->model, "built-in model or file: FLOPs = 6 x active parameters x tokens")
      ->type_name("NAME|FILE");
  app->add_option("--tokens", o->tokens, "tokens of the whole run, such as 15e12")
      ->check(number_between(1, 1e25))
      ->type_name("X");
  app->add_option("--seq-len", o->seq_len,
                  "with --model: tokens of a sequence, so that attention counts too (model_causal)")
      ->check(count_to(int64_t{1} << 31))
      ->type_name("N");
  app->add_option("--days", o->days, "wall-clock days")->check(number_between(1e-6, 1e6))->type_name("X");
  app->add_option("--gpus", o->gpus, "number of GPUs")->check(count_to(1'000'000'000))->type_name("N");
  app->add_option("--gpu-hours", o->gpu_hours, "in place of --gpus with --days")
      ->check(number_between(1e-6, 1e15))
      ->type_name("X");
  app->add_option("--mfu", o->mfu, "share of the dense peak, 0.40 or 40; a claim to check if all else is given")
      ->check(number_between(1e-6, 100))
      ->type_name("X");
  app->add_option("--tflops", o->tflops, "achieved TFLOP/s a GPU; a claim to check if the throughput is given")
      ->check(number_between(1e-6, 1e6))
      ->type_name("X");
  app->add_option("--tokens-per-s-per-gpu", o->tokens_per_s, "with --model: the rate under every usual FLOP formula")
      ->check(number_between(1e-6, 1e12))
      ->type_name("X");
  app->add_option("--precision", o->precision, "of the peak; bf16 if not given")
      ->check(CLI::IsMember({"bf16", "fp16", "fp8", "fp32"}));
  app->footer(
      "Examples:\n"
      "  windtunnel audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40        how many GPUs?\n"
      "  windtunnel audit --model llama3-8b --tokens 15e12 --gpu-hours 1.3e6  what MFU was that?\n"
      "  windtunnel audit --gpu h100 --tflops 400 --mfu 0.202                 is the claim right?\n"
      "  windtunnel audit --model llama-13b --seq-len 2048 --gpu a100 --tokens-per-s-per-gpu 1845 --tflops 153\n"
      "                                                                       by which formula was it quoted?\n"
      "  windtunnel audit examples/llama3-70b-1024-h100.yaml --days 90        at the MFU predicted for this job");
  app->callback([o, &exit] { exit = audit(*o); });
});

}  // namespace

}  // namespace wt::apps
