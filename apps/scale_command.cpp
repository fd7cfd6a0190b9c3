// windtunnel scale: one job on more and more GPUs, as a table: speed, efficiency, where it is lost, days and money.
#include <fmt/format.h>

#include <algorithm>

#include "apps/command.hpp"
#include "core/base/text.hpp"
#include "study/scale.hpp"

namespace wt::apps {

namespace {

constexpr int64_t kMostGpus = int64_t{1} << 20;

struct Options {
  JobOptions job;
  std::string gpus = "16..16384";
  bool weak = false, choose = false, json = false, csv = false;
  double price = 0, day_worth = 0;
  int64_t threads = 0;
};

std::optional<int64_t> gpus_of_text(std::string_view text) {
  const auto n = parse_int(text);
  return n && *n >= 1 && *n <= kMostGpus ? n : std::nullopt;
}

Result<std::vector<int64_t>> sizes_of(const std::string& text) {
  auto sizes = read_sizes(text, gpus_of_text);
  if (sizes && std::ranges::is_sorted(*sizes, std::ranges::less_equal{})) return std::move(*sizes);
  return Diagnostic{"--gpus", fmt::format("'{}' is no list of sizes", text), "16..16384 (doubling), or 64,128,512"};
}

int run(const Options& o) {
  auto sizes = sizes_of(o.gpus);
  auto job = o.job.load();
  Diagnostics faults;
  if (!sizes) faults = sizes.errors();
  if (!job) faults.insert(faults.end(), job.errors().begin(), job.errors().end());
  if (!faults.empty()) return fail(faults, kBadInput);
  if ((o.price > 0 || o.day_worth > 0) && job.value().training.total_tokens <= 0)
    return fail({{"--price", "needs the length of the run", "--set training.total_tokens=15e12"}}, kBadInput);
  study::ScaleOptions options;
  options.gpus = std::move(sizes.value());
  options.scaling = o.weak ? study::Scaling::weak : study::Scaling::strong;
  options.choose = o.choose;
  options.threads = static_cast<unsigned>(o.threads);
  options.stop = stop_on_interrupt();
  options.progress = progress_on_terminal("sizes");
  auto result = study::scale(job.value(), options);
  if (!result) return fail(result.errors(), kBadInput);
  const study::ScaleQuestion question{o.price, o.day_worth};
  const int written = write_out(o.json  ? study::print_scale_json(result.value(), options, question)
                                : o.csv ? study::print_scale_csv(result.value(), question)
                                        : study::print_scale_screen(result.value(), job.value(), options, question));
  if (written != kOk) return written;
  if (!result.value().complete)
    return fail({{"scale", "interrupted: the sizes that are missing were not tried", ""}}, kMachineFault);
  for (const study::ScalePoint& p : result.value().points)
    if (p.reason.empty()) return kOk;
  return kDoesNotFit;
}

const Register registration(41, [](CLI::App& parent, int& exit) {
  auto o = std::make_shared<Options>();
  CLI::App* app = parent.add_subcommand("scale", "one job on more and more GPUs: speed, efficiency, days, money");
  o->job.add_to(*app);
  app->add_option("--gpus", o->gpus, "sizes: FIRST..LAST doubles, or a list")
      ->type_name("SIZES")
      ->capture_default_str();
  app->add_flag("--weak", o->weak, "the batch grows with the GPUs; the default keeps it");
  app->add_flag("--choose", o->choose, "the best strategy at each size; the default holds the job's");
  app->add_option("--price", o->price, "of a GPU-hour")->check(number_between(0, 1e6))->type_name("MONEY");
  app->add_option("--day-worth", o->day_worth, "what a day earlier is worth: names the size that costs least")
      ->check(number_between(0, 1e12))
      ->type_name("MONEY");
  app->add_option("--threads", o->threads, "strategies simulated at once with --choose (default: one for each core)")
      ->check(count_to(1024))
      ->type_name("N");
  auto* json = app->add_flag("--json", o->json, "every size as JSON");
  app->add_flag("--csv", o->csv, "a row for each size")->excludes(json);
  app->footer(
      "Examples:\n"
      "  windtunnel scale examples/llama3-70b-1024-h100.yaml --gpus 128..16384\n"
      "  windtunnel scale job.yaml --gpus 8..1024 --weak\n"
      "  windtunnel scale job.yaml --choose --price 2.5 --day-worth 50000\n"
      "Exit code 3: no size runs.");
  app->callback([o, &exit] { exit = run(*o); });
});

}  // namespace

}  // namespace wt::apps
