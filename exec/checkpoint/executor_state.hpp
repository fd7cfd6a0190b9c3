// Between a running executor and checkpoints: what it holds, how far it has come, and back. Nothing is decided here.
#pragma once

#include <vector>

#include "core/base/result.hpp"
#include "exec/checkpoint/store.hpp"
#include "exec/execute.hpp"

namespace wt::exec {

/// Points into the executor's memory; valid as long as it is. After setup.
std::vector<Holding> holdings_of(const Executor&);

Progress progress_of(const Executor&);
/// The next step is the one after `progress`. The tensors must have been loaded.
void continue_from(Executor&, const Progress& progress);

}  // namespace wt::exec
