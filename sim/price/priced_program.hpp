// Blocks with segments unrolled and every op priced: what the engine runs. An op is half a cache line; its inputs are
// indices into a small array of times of its rank (stream tails, host, slots of ops that somebody waits for), so that
// evaluating it is a maximum of a few loads. Shared by all units that run the same program on equal group shapes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "sim/fold/fold.hpp"
#include "sim/price/pricing.hpp"
#include "sim/price/summary.hpp"

namespace wt::sim {

/// Times of one unit: indices into its row.
inline constexpr uint16_t kHost = plan::kStreams;       // the host has issued everything before
inline constexpr uint16_t kZero = plan::kStreams + 1;   // always 0: an unused wait
inline constexpr uint16_t kDrop = plan::kStreams + 2;   // written, never read: end of an op nobody waits for
inline constexpr uint16_t kSlots = plan::kStreams + 3;  // first slot

enum class OpKind : uint8_t {
  plain,             // takes its duration whatever else runs: copies, joins, kernels off the compute stream
  compute,           // on the compute stream: slower beside a collective
  local_collective,  // all its members are behind this unit
  collective,
  send,
  receive,
  host_wait,
  merge  // not of the plan: maximum of waits that do not fit in one op
};

struct FlatOp {
  int64_t duration : 60 = 0;  // ps, below kLongestOp
  OpKind kind : 4 = OpKind::plain;
  uint16_t out = kDrop;
  int64_t issue : 43 = 0;  // ps of the host, below kLongestIssue: an op of hundreds of kernels takes milliseconds
  uint8_t stream : 5 = 0;
  std::array<uint16_t, 4> waits{kZero, kZero, kZero, kZero};
  uint32_t aux = 0;            // compute: row of slowdowns; collective: UnitComm; send, receive: see below
  uint32_t instance : 24 = 0;  // op instance of the block
  uint32_t channels : 7 = 0;   // transfers: class of channels; 0: no later compute op can run beside it
  uint32_t in_pieces : 1 = 0;  // FlatBlock::pieces has more
};
inline constexpr int64_t kLongestOp = int64_t{1} << 59;     // ps: 6 days
inline constexpr int64_t kLongestIssue = int64_t{1} << 42;  // ps: 4 s
static_assert(plan::kStreams <= 32);
static_assert(sizeof(FlatOp) == 32);

/// Pipelined waits (plan::Wait::Kind::piece) of one op; the start is among FlatOp::waits.
struct Pieces {
  uint16_t first_out = kDrop;  // when its first piece is done
  uint16_t out_pieces = 1;
  uint16_t floor = kZero;  // ends no earlier than this time plus one piece of its own
  uint16_t floor_pieces = 1;
};

inline int64_t one_piece(int64_t duration, int64_t pieces) { return (duration + pieces - 1) / pieces; }

/// aux of a send or receive.
struct MessageAux {
  static uint32_t make(uint32_t size, uint32_t binding, plan::Direction d, bool receives) {
    return size | binding << 24 | uint32_t{d == plan::Direction::previous_stage} << 25 | uint32_t{receives} << 26;
  }
  static uint32_t size(uint32_t aux) { return aux & 0xffffff; }    // index into Fold::message_bytes
  static uint32_t binding(uint32_t aux) { return aux >> 24 & 1; }  // which (chunk, micro-batch) of the invocation
  static uint32_t port(uint32_t aux) { return aux >> 25 & 3; }     // next, previous; + 2 when it receives
};

struct FlatBlock {
  BlockId block;
  std::vector<FlatOp> ops;
  std::vector<Pieces> pieces;      // [op], or empty
  std::vector<Summary> summaries;  // in order; none unless asked for
  uint32_t instances = 0;          // of the plan: merges excluded
};

struct OrderEntry {
  uint32_t block = 0;               // PricedPlan::blocks
  std::array<uint16_t, 2> chunk{};  // of each binding
};

/// What one kind of unit does in a step.
struct UnitClass {
  ProgramId program;
  std::vector<OrderEntry> order;
  uint64_t instances = 0;
};

/// One communicator kind: collectives of a group on one stream, in order.
struct UnitComm {
  GroupId group;
  plan::Stream stream = plan::Stream::tensor;
};

struct PricedPlan {
  std::vector<FlatBlock> blocks;
  std::vector<UnitClass> classes;
  std::vector<uint32_t> class_of;              // [unit]
  std::vector<UnitComm> comms;                 // groups with members in several units
  std::vector<const plan::Compute*> computes;  // rows of slowdowns
  std::vector<int64_t> channels;               // [class - 1]
  uint32_t row = kSlots;                       // length of a unit's row of times
  uint32_t summaries = 0;
};

/// The plan must outlive the result. With `summaries`, blocks that are invoked often get them. Errors: a rank that uses a
/// group it is not in, a price out of range.
Result<PricedPlan> price_plan(const plan::Plan&, const Pricing&, const Fold&, bool summaries = false);

}  // namespace wt::sim
