// Builds one block: ops are appended in issue order; cross-stream waits and storage lifetimes follow from the operands.
// Rules it applies, so that no strategy has to spell them:
//  - an op of a communication stream waits for everything issued before on the compute stream (what PyTorch does when a
//    collective is called);
//  - a compute op waits for the communication op of this block that last wrote one of its operands;
//  - invocation storage is reserved at its first write in a segment and released after its last use there; storage that
//    was written in an earlier segment or iteration is released after its last use in this one;
//  - micro-batch storage is reserved at its first write in a forward block and released after its last use in a
//    backward block;
//  - where the backward is split in two blocks, what a weight gradient reads outlives the block of input gradients
//    (hand_on), and is reserved there if it was made there.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::lower {

using Refs = std::vector<plan::BufferRef>;

/// For everything issued before on the stream.
inline plan::Wait tail(plan::Stream s) { return {plan::Wait::Kind::tail, static_cast<uint32_t>(s)}; }

class BlockBuilder {
 public:
  enum class Lifetimes : uint8_t { forward, backward, other };
  /// A backward in two blocks: `input` leaves weight gradients out, `weight` everything but those and their reduction.
  enum class Half : uint8_t { both, input, weight };

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

  /// An op that waits for `waits` alone, beside its predecessor on its stream: what runs ahead of the compute stream.
  uint32_t beside(std::string_view name, plan::Phase, plan::Stream, plan::Body, std::span<const plan::BufferRef> reads,
                  std::span<const plan::BufferRef> writes, std::span<const plan::Wait> waits);

  /// The first op that reads one of `operands` in this segment waits for this too.
  void when_read(std::span<const plan::BufferRef> operands, plan::Wait wait) {
    when_read_.push_back({{operands.begin(), operands.end()}, wait});
  }

  /// A wait for an op of this segment that is appended later, `iterations_back` (1 or more) iterations ago. name_op says
  /// which op the label means; kEndOfIteration is the last op of the compute stream.
  static constexpr uint32_t kEndOfIteration = 0;
  static plan::Wait labelled(uint32_t label, uint32_t iterations_back) {
    return {plan::Wait::Kind::op, kFirstLabel + label, iterations_back};
  }
  void name_op(uint32_t label, uint32_t op) { labels_.push_back({label, op}); }

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
  /// The rules leave the storage of this buffer alone: it is reserved and released explicitly.
  void keep_out(BufferId buffer) { kept_out_.push_back(buffer); }

  /// Ops appended from here on belong to the half or are dropped, with what is said of them.
  void half(Half half) { half_ = half, dropped_ = false; }
  /// Buffers of micro-batch scope that a backward makes for its weight gradients.
  void hand_on(std::span<const BufferId> buffers) { handed_.assign(buffers.begin(), buffers.end()); }

  /// Of the ops appended from here on those with a 1 at their position are kept; an empty list ends it.
  void only(std::span<const uint8_t> wanted) { only_ = wanted, only_at_ = 0, dropped_ = false; }
  /// Remembers how many ops there are.
  void mark() { marks_.push_back(static_cast<uint32_t>(block_.ops.size())); }
  const std::vector<uint32_t>& marks() const { return marks_; }
  /// What ops of this segment wrote of the layer at this offset for its backward.
  std::vector<BufferId> saved_by_layer(int layer_offset) const;

  bool empty() const { return block_.ops.empty(); }
  plan::Block finish();

 private:
  void close_segment();
  void name_waits();
  bool drops(plan::Phase, std::span<const plan::BufferRef> reads);
  uint32_t append(std::string_view name, plan::Phase, plan::Stream, plan::Body, std::span<const plan::BufferRef> reads,
                  std::span<const plan::BufferRef> writes, uint32_t first_wait);

  static constexpr uint32_t kFirstLabel = UINT32_MAX - 4096;  // above every index of an op
  const plan::Plan& plan_;
  plan::Block block_;
  Lifetimes lifetimes_;
  bool open_ = false;
  std::unordered_map<uint64_t, uint32_t> last_writer_;  // op that wrote an operand last, if a communication op ever did
  std::vector<plan::Wait> pending_;
  uint32_t pieces_ = 0;
  Refs discarded_;
  struct Explicit {
    uint32_t op;
    plan::BufferRef ref;
    bool reserve;
  };
  std::vector<Explicit> explicit_;
  struct Awaited {
    Refs operands;
    plan::Wait wait;
  };
  std::vector<Awaited> when_read_;
  struct Label {
    uint32_t label, op;
  };
  std::vector<Label> labels_;
  std::vector<BufferId> kept_out_, handed_;
  Half half_ = Half::both;
  bool dropped_ = false;  // the op added last
  std::span<const uint8_t> only_;
  size_t only_at_ = 0;
  std::vector<uint32_t> marks_;
  Refs read_later_;  // of this segment, by the weight gradients
};

}  // namespace wt::lower
