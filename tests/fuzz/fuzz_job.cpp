// Any bytes as a job file, and as one override of a good job: a value or diagnostics, never an exception, an abort or a
// hang. What reads must print and read back equal.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/spec/read.hpp"

namespace {

const char kGood[] =
    "model: {layers: 2, hidden: 64, ffn_hidden: 256, heads: 4, vocab: 128, max_context: 64, gated_mlp: false, "
    "activation: gelu, norm: layer_norm, position: learned, tied_embeddings: true}\n"
    "cluster:\n"
    "  device: {generation: other, memory: 16 GiB, memory_bandwidth: 1 TB/s, multiprocessors: 9, clock: 1 GHz, "
    "peak: {bf16: 1 TFLOP/s}, context_memory: 1 MiB}\n"
    "  node: {devices: 4, scale_up: {kind: nvswitch, bandwidth: 1 GB/s}, pcie_bandwidth: 1 GB/s, host_memory: 1 GiB}\n"
    "  nodes: 1\n"
    "training: {micro_batch: 1, global_batch: 8, seq_len: 32}\n";

void check(const wt::Result<wt::JobSpec>& job) {
  if (!job.ok()) {
    for (const wt::Diagnostic& d : job.errors())
      if (d.what.empty()) std::abort();
    return;
  }
  const wt::ModelSpec& m = job.value().model;
  if (wt::count_parameters(m).total() <= 0 || wt::active_parameters(m) <= 0) std::abort();
  wt::Result<wt::JobSpec> again = wt::parse_job(wt::print_job(job.value()), "again.yaml");
  if (!again.ok()) std::abort();
  again.value().warnings = job.value().warnings;
  if (!(again.value() == job.value())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check(wt::parse_job(text, "/nowhere/job.yaml"));
  const std::string overrides[] = {text};
  check(wt::parse_job(kGood, "/nowhere/job.yaml", overrides));
  return 0;
}
