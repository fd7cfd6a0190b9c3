// Pure functions of (job, plan, trace): step time and where it went, MFU and HFU, memory. The command line, the studies
// and the window show the same numbers. No printing here (core/report/print.hpp), no simulation.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"
#include "core/trace/trace.hpp"

namespace wt::report {

// --- FLOP formulas (docs/flops.md): id, what it counts ------------------------------------------------------------

enum class FlopFormula : uint8_t {
  model_causal,         // matrix products + causal half of attention, padded vocabulary: Megatron-LM since 2025-03
  model_full,           // the same with full attention: Megatron-LM before
  six_n,                // 6 N per token
  palm,                 // 6 N + 12 L H Q T
  narayanan_recompute,  // 96 B s L h^2 (1 + s/6h + V/16Lh): full recompute counted
  trained_causal        // model_causal less the weight gradients of frozen products, with those of adapters (LoRA)
};
inline constexpr FlopFormula kFlopFormulas[] = {
    FlopFormula::model_causal, FlopFormula::model_full,          FlopFormula::six_n,
    FlopFormula::palm,         FlopFormula::narayanan_recompute, FlopFormula::trained_causal};
std::string_view id_of(FlopFormula);    // "model_causal"
std::string_view text_of(FlopFormula);  // what it counts, in a line
std::optional<FlopFormula> parse_formula(std::string_view id);
/// FLOPs of one step (forward and backward) of the global batch.
double step_flops(const ModelSpec&, const TrainingSpec&, FlopFormula, int64_t tensor_degree);
/// Whether the formula says something of such a training that model_causal does not.
bool applies(FlopFormula, const TrainingSpec&);
/// Parameters of the adapters of a whole model; 0 without any.
int64_t adapter_parameters(const ModelSpec&, const LoraSpec&);

// --- memory ---------------------------------------------------------------------------------------------------------

/// Items: "weights", "gradients", "master weights", "optimizer states", "activations", "logits", "temporaries",
/// "communication buffers", "copies", "other". Largest buffers: their name in the plan.
struct MemoryItem {
  std::string name;
  Bytes bytes;
  int64_t count = 1;
};

/// "load", "model built", "master weights built", "optimizer built", "start up" (with copies that start-up drops again),
/// "forward", "backward", "optimizer", "checkpoint" (between two steps); in this order, those that occur.
struct PhasePeak {
  std::string phase;
  Bytes peak;
};

struct StageMemory {
  int64_t stage = 0;     // pipeline rank
  Bytes peak, reserved;  // reserved = peak + cached + fragmentation + context + communicators
  // cached: what the caching allocator holds beyond the peak (core/report/allocator.hpp; not in memory_peaks);
  // fragmentation: the share that the job adds to it.
  Bytes cached, fragmentation, context, communicators;
  int64_t communicator_count = 0;
  std::string peak_phase;
  std::vector<MemoryItem> items;    // at the peak, largest first
  std::vector<MemoryItem> largest;  // largest single buffers at the peak
  std::vector<PhasePeak> phases;
};

struct MemoryReport {
  Bytes capacity;
  std::vector<StageMemory> stages;
  size_t peak_stage = 0;
  uint32_t peak_rank = 0;
  double host_gib_per_node = 0, checkpoint_gib = 0;
  Bytes host_needed, host_capacity;    // of a node: host_gib_per_node less the staged checkpoint; 0: not given
  Bytes nvme_needed, nvme_capacity;    // of a node: what offload keeps in files
  std::vector<MemoryItem> host_items;  // what host_gib_per_node adds up: of a node, those that are not zero
  std::string
      fits;  // "fits", "tight", "borderline", "out_of_memory" (product.md): of the device; the host's overflow is
             // "out_of_memory" too
  bool host_overflows() const { return host_capacity.n > 0 && host_needed > host_capacity; }
  bool nvme_overflows() const { return nvme_needed.n > 0 && nvme_needed > nvme_capacity; }
};

/// Replays the reservations of every program in issue order. Exact for what the plan owns.
MemoryReport memory_report(const JobSpec&, const plan::Plan&);
/// The same without items and largest buffers: for a search, which asks 10^5 times.
MemoryReport memory_peaks(const JobSpec&, const plan::Plan&);
/// What the plan itself owns at the highest point of a rank's setup and steps, on its device: no job, nothing added.
Bytes planned_peak(const plan::Plan&, RankId rank);
/// product.md: more than 8 % free "fits", 3 to 8 % "tight", within 3 % either way "borderline", above "out_of_memory".
std::string_view verdict(Bytes reserved, Bytes capacity);

// --- step -----------------------------------------------------------------------------------------------------------

/// Seconds of one rank by cause. Every instant of its step has one: while a kernel runs it is `compute` or `optimizer`;
/// while the compute stream is idle it is what the next kernel waits for, traced back through waits and streams:
///   exposed_*   the transfer itself     bubble  a transfer whose other side is not ready     offload  a copy
///   host        nothing but the gap between kernels: the host or the device has not started the next one
/// The terms add up to the step.
struct TimeBreakdown {
  double compute = 0, exposed_tensor = 0, exposed_data = 0, exposed_pipeline = 0, exposed_context = 0,
         exposed_expert = 0, bubble = 0, offload = 0, optimizer = 0, host = 0, other = 0;
  double total() const;
};
struct TimeTerm {
  std::string_view key;
  double TimeBreakdown::*seconds;
  std::string_view meaning;
};
/// In the order of the struct; key is the JSON key.
std::span<const TimeTerm> time_terms();

/// Ops of one name and stream ("again" marks what is recomputed).
struct OpClass {
  std::string name;
  plan::Stream stream = plan::Stream::compute;
  double seconds = 0;
  int64_t count = 0;
  double flops = 0, bytes = 0;  // of the plan's Work, or the bytes of a transfer
};

struct StageTime {
  int64_t stage = 0;
  uint32_t rank = 0;
  TimeBreakdown time;
};

/// What plan and trace alone say of a step.
struct StepTimes {
  Time step_time;
  uint32_t critical_rank = 0;       // where the step ends
  TimeBreakdown time;               // of the critical rank
  std::vector<StageTime> by_stage;  // the slowest rank of each pipeline stage in the trace
  std::vector<OpClass> op_classes;  // of the critical rank, largest first
  double bubble_fraction = 0;       // of a step, mean of by_stage: every stage has as many ranks
};

struct StepReport : StepTimes {
  double tokens_per_second = 0, tokens_per_second_per_gpu = 0;
  double model_tflops_per_gpu = 0, hardware_tflops_per_gpu = 0, mfu = 0, hfu = 0;
  double peak_tflops = 0;  // dense, of the compute dtype; mfu and hfu are shares of it, 0 if it is unknown
  FlopFormula formula = FlopFormula::model_causal;
  MemoryReport memory;
};

/// Of one step of the trace. Errors: the trace is not of this plan, is cut, or does not hold the step.
Result<StepTimes> step_times(const plan::Plan&, const trace::Trace&, uint32_t step);

/// The ops of one plan op's name and stream share a class: "reduce bucket 3" is "reduce bucket", what is recomputed "... again".
std::string class_of(const plan::Op&);

/// From the last step of the trace. Errors: the trace is not of this plan, or is cut.
Result<StepReport> step_report(const JobSpec&, const plan::Plan&, const trace::Trace&,
                               FlopFormula = FlopFormula::model_causal);

/// Rates and memory peaks from the step time alone: no breakdown, no items. For searches.
StepReport step_rates(const JobSpec&, const plan::Plan&, Time step_time, FlopFormula = FlopFormula::model_causal);
/// With memory peaks that were asked for before.
StepReport step_rates(const JobSpec&, const plan::Plan&, Time step_time, MemoryReport memory,
                      FlopFormula = FlopFormula::model_causal);

/// Matrix products and attention of the plan's Work, of all ranks, one steady step: recomputed work counts.
double hardware_flops(const plan::Plan&);

}  // namespace wt::report
