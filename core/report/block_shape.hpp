// A block unrolled for a walk over its spans: of each op instance what stands before it on its stream, and of each op
// under which term its time counts. Not of any rank or time: made once for a block, whoever runs it.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::report {

/// In the order of TimeBreakdown (core/report/report.hpp).
enum class Term : uint8_t {
  compute,
  exposed_tensor,
  exposed_data,
  exposed_pipeline,
  exposed_context,
  exposed_expert,
  bubble,
  offload,
  optimizer,
  host,
  other
};
inline constexpr size_t kTermCount = 11;

struct BlockShape {
  static constexpr uint32_t kNone = ~0u;
  /// Queues of a rank: the streams, then the ops at which the host waits.
  static constexpr size_t kHostWaits = plan::kStreams, kQueues = plan::kStreams + 1;

  enum class Transfer : uint8_t { none, collective, message };
  struct OpFacts {
    Term term = Term::host, waiting = Term::host;  // of its own work; while the others of its transfer are not there
    Transfer transfer = Transfer::none;
    plan::Stream stream = plan::Stream::compute;
    GroupId group;  // of a collective
  };
  struct Instance {
    uint32_t op = 0, segment = 0, iteration = 0;
    uint32_t before = kNone;     // instance before it on its stream
    uint32_t host_wait = kNone;  // last host wait before it
    uint32_t nth = 0;            // collective: of its group in the block; message: position in `messages`
  };

  BlockShape() = default;
  BlockShape(const plan::Plan&, const plan::Block&);

  /// Last instance on `queue` before instance `i` of this block; kNone: there is none in the block.
  uint32_t last_before(size_t queue, uint32_t i) const;

  const plan::Block* block = nullptr;  // null: not made yet
  std::vector<OpFacts> ops;
  std::vector<Instance> instances;
  std::vector<uint32_t> segment_first;                // first instance of each segment
  std::array<std::vector<uint32_t>, kQueues> queues;  // instances
  std::vector<uint32_t> kernels;                      // on the compute stream, without joins and host waits
  std::vector<uint32_t> messages;                     // sends and receives
  std::vector<std::pair<GroupId, std::vector<uint32_t>>> collectives;  // instances by group, in order
};

}  // namespace wt::report
