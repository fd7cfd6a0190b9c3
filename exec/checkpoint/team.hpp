// The ranks that save and load together, as far as checkpoints need each other: everyone hears everyone's faults.
// Not a communicator. Calls are collective and come in the same order on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.hpp"
#include "core/base/result.hpp"
#include "exec/backend.hpp"

namespace wt::exec {

struct Team {
  RankId rank{0};
  int64_t size = 1;
  /// Everyone's text on every rank, by rank (Communicator::gather). Empty: one rank alone.
  std::function<Result<std::vector<std::string>>(std::string_view)> gather;

  static Team of(Communicator& communicator);
  /// Ok where no rank has a fault, else the faults of all ranks on all ranks; one that several have is told once.
  Status agree(const Diagnostics& mine) const;
  /// What rank 0 says.
  Result<std::vector<std::string>> from_first(const std::vector<std::string>& mine) const;
};

}  // namespace wt::exec
