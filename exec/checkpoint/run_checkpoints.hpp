// Checkpoints of a run: loaded before its first step, saved while it goes on and at its end. When, not how (store.hpp).
// One for each rank; its calls are collective.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "exec/checkpoint/executor_state.hpp"

namespace wt::exec {

struct CheckpointOptions {
  std::string root;   // empty: none
  int64_t every = 0;  // steps; 0: only at the end
  int64_t keep = 2;
  bool asynchronous = false;
  bool resume = false;  // from the newest good one, where there is one
};

class RunCheckpoints {
 public:
  explicit RunCheckpoints(CheckpointOptions options) : options_(std::move(options)) {}

  /// After the executor's setup. What it went on from; nothing: from the start.
  Result<std::optional<Loaded>> begin(Executor&);
  /// After a step.
  Status stepped(Executor&);
  /// After the last one: the state is saved unless it just was, and on the disk when this returns.
  Status end(Executor&);

 private:
  Status save(Executor&);

  CheckpointOptions options_;
  std::vector<Holding> holdings_;
  std::optional<Saver> saver_;
  int64_t saved_ = -1;
  uint64_t digest_ = 0;
};

}  // namespace wt::exec
