// A run of ops that meets nobody else is a max-plus linear map: each time after it is a maximum over times before it,
// each plus a constant. The map is found once per block and then applied instead of the ops. Exact: integer maxima and
// sums only. Not for ops beside which a collective may run; the engine takes those one by one.
#pragma once

#include <cstdint>
#include <vector>

namespace wt::sim {

struct FlatOp;
struct Pieces;

struct Summary {
  uint32_t begin = 0, end = 0;     // ops of the block
  std::vector<uint16_t> inputs;    // times that the map reads
  std::vector<uint16_t> outputs;   // times that it writes
  std::vector<int64_t> weights;    // [output * inputs + input]; kNoPath: none
  static constexpr int64_t kNoPath = INT64_MIN / 4;
};

/// Maps of the longest runs of `ops`; `pieces` as in FlatBlock. Runs too short to gain or with too many inputs are left
/// out. `row`: length of a unit's row of times.
std::vector<Summary> summarise(const std::vector<FlatOp>& ops, const std::vector<Pieces>& pieces, uint32_t row);

}  // namespace wt::sim
