// A run of ops that meets nobody else is a function of few times, found once per block and then applied instead of the
// ops. Exact: integer maxima and sums only. Two forms:
//   linear    each time after it is a maximum over times before it, each plus a constant (max-plus). Where no kernel runs
//             beside a collective.
//   scenario  all of it follows from one time, the *base*, while every other time before it comes too early to matter;
//             how much too early is known for each. Holds with slowdown too, which depends on differences of times only.
#pragma once

#include <cstdint>
#include <vector>

namespace wt::sim {

struct FlatOp;
struct Pieces;

struct Summary {
  uint32_t begin = 0, end = 0;    // ops of the block
  std::vector<uint16_t> inputs;   // times that the map reads
  std::vector<uint16_t> outputs;  // times that it writes
  std::vector<int64_t> weights;   // [output * inputs + input]; kNoPath: none. Empty: not linear
  uint32_t id = 0;                // dense over the blocks of a priced plan
  static constexpr int64_t kNoPath = INT64_MIN / 4;
};

/// Maps of the longest runs of `ops`; `pieces` as in FlatBlock. Runs too short to gain or with too many inputs are left
/// out. `row`: length of a unit's row of times.
std::vector<Summary> summarise(const std::vector<FlatOp>& ops, const std::vector<Pieces>& pieces, uint32_t row);

}  // namespace wt::sim
