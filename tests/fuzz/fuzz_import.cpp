// Any bytes as any foreign file: a job, or diagnostics and a list of what is missing; never an exception, an abort or a hang.
// The first byte chooses the name, so that every reader is reached; what is imported must read back.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/spec/read.hpp"
#include "import/import.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::array kNames = {"a.json", "a.yaml", "a.toml", "a.sh", "a.log", "hostfile", "a.slurm", "a"};
  if (size == 0) return 0;
  const std::string name = kNames[data[0] % kNames.size()];
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  wt::import::Options options;
  options.cluster = "dgx-h100";
  options.gpus = 16;
  options.set = {"training.seq_len=1024"};
  options.vars = {{"TP", "2"}};
  const wt::import::Imported in = wt::import::import_files({{name, text}}, options);
  for (const wt::Diagnostic& d : in.errors)
    if (d.what.empty()) std::abort();
  if (!in.job && in.errors.empty() && in.report.of(wt::import::Fate::missing).empty()) std::abort();
  if (in.job && !wt::parse_job(in.yaml, "again.yaml")) std::abort();
  if (wt::import::print(in.report, false).empty() && in.errors.empty()) std::abort();
  wt::import::print_json(in.report, in.errors, in.yaml);
  return 0;
}
