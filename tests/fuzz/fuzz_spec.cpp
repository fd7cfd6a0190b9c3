// Any bytes as a model, cluster, strategy, training or job file, and as one override of a good job: a spec or
// diagnostics, never an exception, an abort or a hang. A spec prints and reads back equal.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.hpp"
#include "core/spec/read.hpp"

namespace {

constexpr char kGoodJob[] =
    "model: {layers: 2, hidden: 64, ffn_hidden: 256, heads: 4, vocab: 128, max_context: 64, gated_mlp: false, "
    "activation: gelu, norm: layer_norm, position: learned, tied_embeddings: true}\n"
    "cluster:\n"
    "  device: {generation: other, memory: 16 GiB, memory_bandwidth: 1 TB/s, multiprocessors: 9, clock: 1 GHz, "
    "peak: {bf16: 1 TFLOP/s}, context_memory: 1 MiB}\n"
    "  node: {devices: 4, scale_up: {kind: nvswitch, bandwidth: 1 GB/s}, pcie_bandwidth: 1 GB/s, host_memory: 1 GiB}\n"
    "  nodes: 1\n"
    "training: {micro_batch: 1, global_batch: 8, seq_len: 32}\n";

template <class Spec, class Print, class Parse>
void check(wt::Result<Spec> first, Print print, Parse parse) {
  if (!first.ok()) {
    WT_CHECK(!first.errors().empty());
    for (const wt::Diagnostic& d : first.errors()) WT_CHECK(!d.what.empty(), "{}", d.where);
    return;
  }
  const std::string text = print(first.value());
  wt::Result<Spec> second = parse(text);
  WT_CHECK(second.ok(), "{}\n{}", wt::to_text(second.errors()), text);
  if constexpr (requires { second.value().warnings; }) second.value().warnings = first.value().warnings;
  if constexpr (requires { second.value().assumptions; }) second.value().assumptions = first.value().assumptions;
  WT_CHECK(second.value() == first.value(), "{}", text);
}

void check_job(const wt::Result<wt::JobSpec>& job) {
  if (job.ok())
    WT_CHECK(wt::count_parameters(job.value().model).total() > 0 && wt::active_parameters(job.value().model) > 0);
  check(job, wt::print_job, [](const std::string& text) { return wt::parse_job(text, "printed"); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto again = [](auto parse) {
    return [parse](const std::string& printed) { return parse(printed, "printed"); };
  };
  check(wt::parse_model(text, "fuzz"), wt::print_model, again(wt::parse_model));
  check(wt::parse_cluster(text, "fuzz"), wt::print_cluster, again(wt::parse_cluster));
  check(wt::parse_strategy(text, "fuzz"), wt::print_strategy, again(wt::parse_strategy));
  check(wt::parse_training(text, "fuzz"), wt::print_training, again(wt::parse_training));
  check_job(wt::parse_job(text, "/nowhere/job.yaml"));
  const std::string overrides[] = {text};
  check_job(wt::parse_job(kGoodJob, "/nowhere/job.yaml", overrides));
  return 0;
}
