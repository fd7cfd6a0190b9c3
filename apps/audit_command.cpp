// windtunnel audit: the arithmetic of a run checked backwards. FLOPs = GPUs x time x peak x MFU: whatever one of the four
// is not given follows from the others, over the dense peak; claims that only the sparse peak explains are named.
#include <fmt/format.h>

#include <cmath>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "core/spec/read.hpp"

namespace wt::apps {

namespace {

struct Options {
  std::string gpu = "h100", model, precision = "bf16";
  double flops = 0, tokens = 0, days = 0, mfu = 0, tflops = 0;
  int64_t gpus = 0;
};

int audit(const Options& o) {
  Diagnostics faults;
  auto device = find_device(o.gpu);
  if (!device) faults = device.errors();
  const auto dtype = parse_dtype(o.precision);
  double flops = o.flops;
  std::string basis = fmt::format("{:.3g} FLOP as given", flops);
  if (flops == 0 && !o.model.empty()) {
    auto model = read_model(o.model);
    if (!model) {
      faults.insert(faults.end(), model.errors().begin(), model.errors().end());
    } else if (o.tokens > 0) {
      const double n = static_cast<double>(active_parameters(model.value()));
      flops = 6 * n * o.tokens;
      basis = fmt::format(
          "6 N D with N = {:.2f} B active parameters, D = {:.3g} tokens: {:.3g} FLOP (attention not counted)", n * 1e-9,
          o.tokens, flops);
    } else {
      faults.push_back({"--tokens", "is needed with --model", ""});
    }
  }
  double mfu = o.mfu > 1 ? o.mfu / 100 : o.mfu;
  double peak = 0;
  if (device) {
    const auto p = device.value().peak.find(dtype.value_or(DType::bf16));
    if (p == device.value().peak.end())
      faults.push_back(
          {"--precision", fmt::format("{} has no {} matrix products", device.value().name, o.precision), ""});
    else
      peak = p->second.n;
  }
  if (o.tflops > 0 && peak > 0) {
    if (mfu > 0) faults.push_back({"--tflops", "says what --mfu says", "give one of them"});
    mfu = o.tflops * 1e12 / peak;
  }
  const int known = (flops > 0) + (o.gpus > 0) + (o.days > 0) + (mfu > 0);
  if (known < 3)
    faults.push_back(
        {"audit",
         fmt::format("{} of FLOPs (or --model with --tokens), --gpus, --days and --mfu (or --tflops) are given", known),
         "give three; the fourth follows"});
  if (!faults.empty()) return fail(faults, kBadInput);

  const double seconds = o.days * 86400;
  std::string out = fmt::format("{}: {:.1f} TFLOP/s {} dense ({})\n", device.value().name, peak * 1e-12, o.precision,
                                device.value().source);
  if (flops > 0) out += fmt::format("work: {}\n", basis);
  auto answer = [&](std::string line) { out += line + "\n"; };
  double gpus = static_cast<double>(o.gpus), days = o.days, share = mfu;
  if (known == 4) {
    share = flops / (gpus * seconds * peak);
    answer(fmt::format("MFU from FLOPs, GPUs and time: {:.1f} %; claimed {:.1f} %", share * 100, mfu * 100));
    if (std::fabs(share / mfu - 1) > 0.03)
      answer(fmt::format("the claim does not follow: it is {:.2f} times the right figure", mfu / share));
  } else if (o.gpus == 0) {
    gpus = std::ceil(flops / (seconds * peak * share) - 1e-9);
    answer(fmt::format("GPUs needed: {} at MFU {:.1f} % for {:g} days", with_commas(static_cast<int64_t>(gpus)),
                       share * 100, days));
  } else if (o.days == 0) {
    days = flops / (gpus * peak * share) / 86400;
    answer(fmt::format("days: {:.1f} on {} GPUs at MFU {:.1f} %", days, with_commas(o.gpus), share * 100));
  } else if (mfu == 0) {
    share = flops / (gpus * seconds * peak);
    answer(fmt::format("MFU: {:.1f} % ({:.1f} TFLOP/s a GPU)", share * 100, share * peak * 1e-12));
  } else {
    flops = gpus * seconds * peak * share;
    answer(fmt::format("work done: {:.3g} FLOP", flops));
  }
  answer(fmt::format("GPU-hours: {}", with_commas(static_cast<int64_t>(std::llround(gpus * days * 24)))));

  // The factor two of 2:4 sparsity is the commonest fault of such sheets.
  const bool has_sparsity = device.value().generation >= GpuGeneration::ampere &&
                            (device.value().vendor == "nvidia" || device.value().vendor == "NVIDIA");
  if (has_sparsity) {
    if (o.gpus == 0) {
      const double claimed = 0.552;  // 1.38 times 0.40: an MFU that only appears beside a sparse peak in such sheets
      const double sparse = std::floor(flops / (seconds * 2 * peak * claimed));
      answer(fmt::format(
          "beware: over the sparse peak of {:.0f} TFLOP/s (2:4 sparsity, which training does not use) and an MFU of "
          "{:.1f} % a sheet says {} GPUs and buys {:.1f} times too few",
          2 * peak * 1e-12, claimed * 100, with_commas(static_cast<int64_t>(sparse)), gpus / sparse));
    } else if (share > 0.75) {
      answer(fmt::format(
          "beware: {:.1f} % is above any published training run; over the sparse peak it would read {:.1f} %",
          share * 100, share * 50));
    } else {
      answer(fmt::format("over the sparse peak ({:.0f} TFLOP/s) the same run would read {:.1f} %: half, and wrong",
                         2 * peak * 1e-12, share * 50));
    }
  }
  return write_out(out);
}

const Register registration(50, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand(
      "audit", "check GPUs, days, FLOPs and MFU of a run against each other (three give the fourth)");
  app->add_option("--gpu", o->gpu, "device: a built-in name (h100, a100-sxm-80gb ...) or a file");
  app->add_option("--flops", o->flops, "FLOPs of the whole run, such as 3e24")->check(CLI::PositiveNumber);
  app->add_option("--model", o->model, "built-in model or file: FLOPs = 6 x active parameters x --tokens");
  app->add_option("--tokens", o->tokens, "tokens of the whole run, such as 15e12")->check(CLI::PositiveNumber);
  app->add_option("--days", o->days, "wall-clock days")->check(CLI::PositiveNumber);
  app->add_option("--gpus", o->gpus, "number of GPUs")->check(CLI::PositiveNumber);
  app->add_option("--mfu", o->mfu, "share of the dense peak, 0.40 or 40")->check(CLI::Range(1e-6, 100.0));
  app->add_option("--tflops", o->tflops, "TFLOP/s a GPU, in place of --mfu")->check(CLI::PositiveNumber);
  app->add_option("--precision", o->precision, "bf16, fp16, fp8, fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp8", "fp32"}));
  app->footer("Example, \"3e24 FLOPs in 90 days\":\n  windtunnel audit --flops 3e24 --days 90 --gpu h100 --mfu 0.40");
  app->callback([o, &exit] { exit = audit(*o); });
});

}  // namespace

}  // namespace wt::apps
