// windtunnel campaign: the whole training run with failures, checkpoints and restarts: days, goodput, money, percentiles.
#include <fmt/format.h>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "study/campaign.hpp"
#include "study/run_job.hpp"
#include "study/run_loop.hpp"

namespace wt::apps {

namespace {

struct Options {
  JobOptions job;
  std::string like = "default";
  double per_gpu_hour = -1, detection_min = -1, restart_min = -1, repair_hours = 24, interval_min = 0;
  double storage = 0, blocks = -1, preemptions = 0, back_hours = 1, notice_s = 120, price = 0;
  double loader = 0;
  int64_t spares = 0, seeds = 1000, seed = 1, threads = 0, evaluate_every = 0, evaluation_batches = 0;
  bool elastic = false, json = false;
};

Result<study::FailureRates> rates_of(const Options& o) {
  auto all = study::failure_rates();
  if (!all) return all.errors();
  std::vector<std::string_view> names;
  for (const study::FailureRates& f : all.value()) {
    names.push_back(f.name);
    if (f.name != o.like) continue;
    study::FailureRates out = f;
    constexpr double kMinute = 60;
    if (o.detection_min >= 0) out.detection_s = o.detection_min * kMinute;
    if (o.restart_min >= 0) out.restart_s = o.restart_min * kMinute;
    if (o.per_gpu_hour >= 0) {
      out.per_gpu_hour = o.per_gpu_hour;
      out.source = "as given";
    }
    return out;
  }
  return Diagnostic{"--like", fmt::format("no failure rates '{}'", o.like), suggest(o.like, names)};
}

/// The options go before what the job says.
LoopSpec loop_of(const Options& o, LoopSpec l) {
  if (o.loader > 0) l.loader = o.loader;
  if (o.evaluate_every > 0) l.evaluate_every = o.evaluate_every;
  if (o.evaluation_batches > 0) l.evaluation_batches = o.evaluation_batches;
  return l;
}

int run(const Options& o) {
  auto job = o.job.load();
  auto rates = rates_of(o);
  Diagnostics faults;
  if (!job) faults = job.errors();
  if (!rates) faults.insert(faults.end(), rates.errors().begin(), rates.errors().end());
  if (job) {
    LoopSpec& l = job.value().training.loop;
    l = loop_of(o, l);
    if ((l.evaluate_every > 0) != (l.evaluation_batches > 0))
      faults.push_back({l.evaluate_every > 0 ? "--evaluation-batches" : "--evaluate-every", "is missing",
                        "evaluations need both: how often, and how many batches"});
  }
  if (job && job.value().training.total_tokens <= 0)
    faults.push_back(
        {"training.total_tokens", "a campaign needs the length of the run", "--set training.total_tokens=15e12"});
  if (!faults.empty()) return fail(faults, kBadInput);
  auto result = study::run_job(job.value());
  if (!result) return fail(result.errors(), kDoesNotFit);
  const study::JobResult& r = result.value();
  const NodeSpec& node = r.job.cluster.node;

  study::Campaign c;
  c.work_s = r.job.training.total_tokens / r.report.tokens_per_second;
  c.nodes = r.job.cluster.nodes;
  c.gpus_per_node = node.devices;
  c.failures = rates.value();
  c.spare_nodes = o.spares;
  constexpr double kHour = 3600, kMinute = 60;
  c.repair_s = o.repair_hours * kHour;
  c.elastic = o.elastic;
  c.preemptions_per_node_s = o.preemptions / kHour;
  c.preempted_s = o.back_hours * kHour;
  c.notice_s = o.notice_s;
  const double storage = o.storage > 0 ? o.storage : c.failures.storage_gb_s * static_cast<double>(c.nodes);
  const double bytes = r.report.memory.checkpoint_gib * static_cast<double>(int64_t{1} << 30);
  c.checkpoint_s = bytes / (storage * 1e9);
  c.checkpoint_blocks_s = o.blocks >= 0 ? std::min(o.blocks, c.checkpoint_s) : c.checkpoint_s;
  c.interval_s = o.interval_min * kMinute;
  const study::LoopShares shares = study::loop_shares(r.job, r.report.step_time.seconds());
  c.stall_share = shares.stall;
  c.evaluation_share = shares.evaluation;

  study::CampaignOptions options;
  options.seeds = o.seeds;
  options.first_seed = static_cast<uint64_t>(o.seed);
  options.threads = static_cast<unsigned>(o.threads);
  options.stop = stop_on_interrupt();
  const study::CampaignResult campaign = study::run_campaign(c, options);
  const study::CampaignQuestion question{r.job, r.report.step_time.seconds(), o.price, r.report.memory.checkpoint_gib,
                                         storage};
  std::string text =
      o.json ? study::print_campaign_json(campaign, question) : study::print_campaign_screen(campaign, question);
  if (!o.json && o.storage <= 0)
    text += fmt::format("  assumed   storage of {:.3g} GB/s for each node (--storage)\n", c.failures.storage_gb_s);
  if (const int code = write_out(text); code != kOk) return code;
  if (!campaign.complete)
    return fail({{"campaign", "interrupted: the runs that are missing were not simulated", ""}}, kMachineFault);
  return r.report.memory.fits == "out_of_memory" ? kDoesNotFit : kOk;
}

const Register registration(42, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app =
      parent.add_subcommand("campaign", "the whole run with failures and checkpoints: days, goodput, money");
  o->job.add_to(*app);
  const auto number = [&](const char* name, double& to, double least, double most, const char* type, const char* text) {
    return app->add_option(name, to, text)->check(number_between(least, most))->type_name(type);
  };
  std::vector<std::string> names;
  if (const auto all = study::failure_rates())
    for (const study::FailureRates& f : all.value()) names.push_back(f.name);
  app->add_option("--like", o->like, "failure rates of: " + fmt::format("{}", fmt::join(names, ", ")))
      ->type_name("NAME")
      ->capture_default_str();
  number("--failures-per-gpu-hour", o->per_gpu_hour, 0, 1, "RATE", "interruptions of the job, in place of --like's");
  number("--detection-minutes", o->detection_min, 0, 1e5, "MIN", "from a fault to the decision (default: --like's)");
  number("--restart-minutes", o->restart_min, 0, 1e5, "MIN", "from there to the first new step (default: --like's)");
  app->add_option("--spare-nodes", o->spares, "nodes that stand by")
      ->check(whole_between(0, int64_t{1} << 20))
      ->type_name("N");
  number("--repair-hours", o->repair_hours, 0, 1e5, "H", "until a broken node is back")->capture_default_str();
  app->add_flag("--elastic", o->elastic, "without a spare the run goes on with fewer nodes");
  number("--spot", o->preemptions, 0, 1e3, "RATE", "spot nodes: preemptions per node-hour");
  number("--spot-back-hours", o->back_hours, 0, 1e5, "H", "mean time until a preempted node is back")
      ->capture_default_str();
  number("--spot-notice", o->notice_s, 0, 1e5, "S", "warning before a preemption")->capture_default_str();
  number("--storage", o->storage, 1e-3, 1e6, "GB/s", "at which a checkpoint is written, all nodes together");
  number("--checkpoint-blocks", o->blocks, 0, 1e6, "S",
         "asynchronous: training stands for so long (default: all of it)");
  number("--interval-minutes", o->interval_min, 1e-2, 1e6, "MIN",
         "of training between checkpoints (default: the best)");
  number("--loader", o->loader, 1e-6, 1e12, "SEQ/S",
         "sequences a second that the data loaders of one node deliver (training.loop.loader)");
  const auto count = [&](const char* name, int64_t& to, const char* type, const char* text) {
    app->add_option(name, to, text)->check(count_to(int64_t{1} << 40))->type_name(type);
  };
  count("--evaluate-every", o->evaluate_every, "STEPS", "steps between two evaluations (training.loop.evaluate_every)");
  count("--evaluation-batches", o->evaluation_batches, "N",
        "global batches of an evaluation, forward alone (training.loop.evaluation_batches)");
  number("--price", o->price, 0, 1e6, "MONEY", "of a GPU-hour");
  app->add_option("--seeds", o->seeds, "runs")->check(count_to(10'000'000))->type_name("N")->capture_default_str();
  app->add_option("--seed", o->seed, "of the first run")->check(count_to(int64_t{1} << 62))->type_name("N");
  app->add_option("--threads", o->threads, "runs at once (default: one for each core)")
      ->check(count_to(1024))
      ->type_name("N");
  app->add_flag("--json", o->json, "as JSON");
  app->footer(
      "Examples:\n"
      "  windtunnel campaign examples/llama3-70b-1024-h100.yaml --spare-nodes 2 --storage 200\n"
      "  windtunnel campaign job.yaml --like llama3 --checkpoint-blocks 5 --price 2.5\n"
      "  windtunnel campaign job.yaml --spot 0.05 --elastic\n"
      "Exit code 3: the job does not fit (its campaign is printed all the same).");
  app->callback([o, &exit] { exit = run(*o); });
});

}  // namespace

}  // namespace wt::apps
