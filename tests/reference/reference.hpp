// Runs a plan in one process, in doubles, with real data: what any engine must compute. Every rank has its streams; an op
// starts when the plan's waits allow it, in an order that a seed draws, so a wait that is missing shows as a wrong value.
// Not an executor: no devices, no time, dropout not interpreted, element types ignored. Invariant: storage exists from the
// op that reserves it to the end of the op that releases it, holds NaN until it is written, and reading NaN is a Fault.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/plan/plan.hpp"
#include "tests/reference/kernels.hpp"
#include "tests/reference/races.hpp"

namespace wt::reference {

struct Options {
  uint64_t order_seed = 0;  // of the order in which ready ops of all ranks and streams run
  double learning_rate = 1e-3;
  bool same_tokens = false;  // the tokens of step 0 in every step
};

class Reference {
 public:
  /// Runs the setup. The plan must be valid and outlive this. Throws Fault.
  explicit Reference(const plan::Plan&, Options = {});

  /// One steady step; returns the loss over the global batch, before the update.
  double step();

  /// Elements of a weight in global order (row-major over the unsharded shape, padding included). Copies on several
  /// ranks must be equal, bit for bit, or this throws. `layer` of the model, -1 for what is of no layer.
  /// `owned`: only the pieces that a rank updates itself (plans that gather weights at the start of the next step).
  std::vector<double> weight(const std::string& name, int64_t layer = -1, bool owned = false);
  /// Adds to one element on every rank that holds it.
  void nudge(const std::string& name, int64_t layer, int64_t index, double delta);
  /// Names and layers of all weights, in no order that matters.
  std::vector<std::pair<std::string, int64_t>> weights() const;

 private:
  using Key =
      std::tuple<uint32_t, int64_t, int64_t, int64_t, int64_t>;  // buffer, layer, chunk, micro-batch, invocation
  struct Task : Issued {
    uint64_t match = UINT64_MAX;
    bool done = false, arrived = false;
  };
  struct Rank {
    RankId id;
    const plan::Program* program = nullptr;
    std::map<Key, std::unique_ptr<std::vector<double>>> storage;
    const std::vector<plan::Invocation>* order = nullptr;
    std::vector<Task> tasks;
    std::array<std::vector<uint32_t>, plan::kStreams> queue;
    std::array<size_t, plan::kStreams> next{};
  };
  struct Meeting {
    std::vector<std::pair<size_t, uint32_t>> members;  // (rank, task), in group order for collectives
    size_t wanted = 0, arrived = 0;
  };

  void run(size_t step_order, bool setup);
  void issue(Rank&);
  void match();
  bool ready(const Rank&, const Task&) const;
  void start(size_t rank, uint32_t task);
  void execute(Rank&, const Task&);
  void meet(const Meeting&);
  void finish(Rank&, Task&);
  [[noreturn]] void stuck() const;
  void reserve(Rank&, const Task&);
  void release(Rank&, const Task&);
  void load(Rank&, const Task&, const plan::BufferRef&);
  void fill_tokens(Rank&, const Task&, const plan::BufferRef&, const Operand&);
  std::string where(const Rank&, const Task&) const;
  Key key(const Rank&, const Task&, const plan::BufferRef&, BufferId) const;
  Operand operand(Rank&, const Task&, const plan::BufferRef&);
  Operand resolve(Rank&, const Task&, const plan::BufferRef&, BufferId, int64_t layer);
  std::vector<Operand> operands(Rank&, const Task&, plan::Range, bool read);
  void check_written(const Rank&, const Task&, const Operand&, const plan::BufferRef&) const;
  /// Calls f(element, global index, updated by this rank) for each element of the weight that the rank holds.
  template <class F>
  bool each_owned_element(Rank&, size_t chunk, const plan::View&, int64_t layer, F&& f);
  template <class F>
  void each_element(Rank&, const std::string& name, int64_t layer, F&& f);

  const plan::Plan& plan_;
  Options options_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::vector<Meeting> meetings_;
  int64_t step_ = 0, vocabulary_ = 0;
};

}  // namespace wt::reference
