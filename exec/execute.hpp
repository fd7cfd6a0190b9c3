// Interprets a plan on one rank's machine: the host issues the script's tasks to streams in the plan's order, blocks where
// the plan says so, and reads back loss, norm and times. Not a scheduler: order, overlap and memory are the plan's.
// Clocks: every instant is on the rank's own steady clock until it leaves here; then it counts from the end of the step
// before on the slowest rank (the first step: from a barrier), by the communicator's clock offsets. So the largest end of
// a step over all ranks is its time, and what the host does between two steps belongs to the second.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/trace/trace.hpp"
#include "exec/backend.hpp"
#include "exec/script.hpp"
#include "exec/training.hpp"

namespace wt::exec {

struct ExecuteOptions {
  ScriptOptions script;
  LearningRate learning_rate;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  const TokenSource* tokens = nullptr;  // must outlive the executor
};

/// What no machine can help, known from the plan alone: fp16 without the gradient norm that its loss scale is kept by.
Status executable(const plan::Plan&, const ScriptOptions&);

/// What all ranks reserve together, for those who put them on one machine.
Result<Bytes> reserved_by_all(const plan::Plan&, const ScriptOptions&);

/// How far training has come: with the persistent storage, all that a run needs to go on.
struct TrainingState {
  int64_t step = 0;     // steps done, the next one's number: decides its tokens
  int64_t skipped = 0;  // of them, without an update
  LossScale loss_scale;
};

/// Equal on every rank.
struct StepOutcome {
  int64_t step = 0;
  double loss = 0;  // of the global batch, before the update
  double learning_rate = 0, loss_scale = 1;
  double gradient_norm = 0;  // before clipping; 0: the plan does not clip
  bool skipped = false;      // fp16: a gradient was infinite
  Time time;                 // from the end of the step before to this one's, on the slowest rank
};

class Executor {
 public:
  /// All ranks together: makes the script, reserves its memory, checks that the device has every kernel, connects. Fails on
  /// every rank if it fails on one. Plan, machine and options' tokens must outlive it. The plan must be valid.
  static Result<std::unique_ptr<Executor>> create(const plan::Plan&, Machine&, const ExecuteOptions&);

  /// The plan's setup, with initial weights.
  Status setup();
  /// One step of a variant (index into Program::steps). A failure on any rank is a failure on all; there is no step after.
  Result<StepOutcome> step(size_t variant = 0);
  /// Of the step that was last, in issue order: for a trace.
  const std::vector<trace::Span>& spans() const { return spans_; }
  Time clock_uncertainty() const { return Time::ps(clock_.uncertainty_ps); }

  const plan::Plan& plan() const { return plan_; }
  const Script& script() const { return script_; }
  Machine& machine() { return machine_; }
  const ExecuteOptions& options() const { return options_; }
  TrainingState& state() { return state_; }
  const TrainingState& state() const { return state_; }
  /// Storage that persists; host access by Device::read and write.
  Operand operand(const Persistent&) const;

 private:
  Executor(const plan::Plan&, Machine&, const ExecuteOptions&);
  Status prepare();
  Status issue(const Tasks&, std::vector<Interval>* host_times);
  Status load(const Tasks&, const ScriptTask&);
  Status host_wait(const Tasks&, Ticket);
  void stage(const Tasks&, int64_t step);
  KernelContext context_of(const ScriptTask&) const;
  Result<StepOutcome> finish(const Tasks&);
  Result<double> scalar(const Place&, DType);
  Status agree(const Status& mine, const char* what);

  const plan::Plan& plan_;
  const plan::Program& program_;
  Machine& machine_;
  const ExecuteOptions options_;
  const RankId rank_;
  Script script_;
  std::array<std::byte*, kSpaces> arenas_{};
  const Persistent *loss_ = nullptr, *norm_ = nullptr;  // where this rank has them
  bool scaled_ = false;

  TrainingState state_;
  StepValues values_;
  bool overflow_ = false;

  /// Tokens on their way to the device: those of this step, and the next one's, filled while this one runs.
  struct Staged {
    const Tasks* tasks = nullptr;
    int64_t step = -1;
    std::vector<std::vector<int32_t>> rows;  // of each copy task
    std::vector<Operand> operands;
  };
  std::array<Staged, 2> staged_;
  size_t copies_ = 0;  // copy tasks issued in this step

  std::array<std::optional<Ticket>, plan::kStreams> last_;
  std::vector<Interval> host_times_;  // of the HostWaits, in order
  std::vector<trace::Span> spans_;
  Communicator::ClockOffset clock_;
  int64_t zero_ps_ = 0;  // of the next step, on the clock of rank 0
};

struct RunOptions {
  ExecuteOptions execute;
  int64_t warmup = 1, steps = 10;  // the run is over when so many steps together were done, by itself or before it
  trace::Sink* sink = nullptr;     // receives the measured steps of this rank, numbered from 0
  /// Called on rank 0 after each step; `measured` is false for warm-ups.
  std::function<void(const StepOutcome&, bool measured)> on_step;
  /// Called on every rank's thread, all together: after the setup (it may continue from an earlier state), after each step,
  /// after the last one. A failure ends the run.
  std::function<Status(Executor&)> begin, stepped, end;
  /// Called on every rank's thread after that.
  std::function<void(Executor&)> inspect;
};

struct RunSummary {
  std::vector<StepOutcome> steps;        // that this run did, warm-ups first
  int64_t warmups = 0;                   // of them
  Time median;                           // of the measured steps
  Time clock_uncertainty;                // the largest of all ranks
  std::array<ArenaUse, kSpaces> arenas;  // of this rank
};

/// Warm-up and measured steps on this rank; all ranks call it.
Result<RunSummary> run_rank(const plan::Plan&, Machine&, const RunOptions&);
/// Ranks as threads of this process, one for each machine. The summary of rank 0, or the reason why the job stopped.
Result<RunSummary> run_ranks(const plan::Plan&, std::vector<Machine>&, const RunOptions&);

/// What a trace of a run says about itself.
trace::Meta trace_meta(const plan::Plan&, const RunSummary&);

}  // namespace wt::exec
