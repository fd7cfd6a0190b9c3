// Builds one block: ops are appended in issue order; cross-stream waits and storage lifetimes follow from the operands.
// Rules it applies, so that no strategy has to spell them:
//  - an op of a communication stream waits for everything issued before on the compute stream (what PyTorch does when a
//    collective is called);
//  - a compute op waits for the communication op of this block that last wrote one of its operands;
//  - invocation storage is reserved at its first write in a segment and released after its last use there; storage that
//    was written in an earlier segment or iteration is released after its last use in this one;
//  - micro-batch storage is reserved at its first write in a forward block and released after its last use in a
//    backward block.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::lower {

using Refs = std::vector<plan::BufferRef>;

class BlockBuilder {
 public:
  enum class Lifetimes : uint8_t { forward, backward, other };

  BlockBuilder(const plan::Plan& plan, std::string name, PartId part, Lifetimes lifetimes);

  /// Ops appended from here on belong to a new segment.
  void segment(int64_t first_layer, int64_t layer_step = 0, int64_t iterations = 1);

  /// Returns the index of the op. `extra` waits come on top of those the rules give.
  uint32_t op(std::string_view name, plan::Phase, plan::Stream, plan::Body,
              std::initializer_list<plan::BufferRef> reads, std::initializer_list<plan::BufferRef> writes,
              std::initializer_list<plan::Wait> extra = {});
  uint32_t op(std::string_view name, plan::Phase, plan::Stream, plan::Body, std::span<const plan::BufferRef> reads,
              std::span<const plan::BufferRef> writes, std::span<const plan::Wait> extra = {});

  /// A compute kernel on the compute stream.
  uint32_t compute(std::string_view name, plan::Phase phase, plan::Compute c,
                   std::initializer_list<plan::BufferRef> reads, std::initializer_list<plan::BufferRef> writes) {
    return op(name, phase, plan::Stream::compute, plan::Body(std::move(c)), reads, writes);
  }

  /// The next compute op waits for these too, and so do collectives and sends that are issued before it.
  void before_next_compute(plan::Wait wait) { pending_.push_back(wait); }

  /// The next op is pipelined with the one before it that it would wait for (Wait::Kind::piece), in `pieces` pieces: a
  /// compute op with the collective that writes its operand, a collective with the compute op before it.
  void pipeline_next(uint32_t pieces) { pieces_ = pieces; }

  /// Written and never read: released by the op that wrote it last.
  void discard(plan::BufferRef ref) { discarded_.push_back(ref); }
  /// Reserved or released explicitly, beside the rules, at the op added last.
  void reserve_here(plan::BufferRef ref);
  void release_here(plan::BufferRef ref);

  bool empty() const { return block_.ops.empty(); }
  plan::Block finish();

 private:
  void close_segment();

  const plan::Plan& plan_;
  plan::Block block_;
  Lifetimes lifetimes_;
  bool open_ = false;
  std::vector<plan::Wait> pending_;
  uint32_t pieces_ = 0;
  Refs discarded_;
  struct Explicit {
    uint32_t op;
    plan::BufferRef ref;
    bool reserve;
  };
  std::vector<Explicit> explicit_;
};

}  // namespace wt::lower
