// A forward and the backward of another micro-batch as one block (an invocation of two bindings): both issue in turns, each
// until it has issued an exchange of experts, so that the exchange is beside the compute of the other. The order within
// each stays; layers are unrolled, since the forward goes up while the backward goes down.
// The backward begins: its exchange is the first to hide (Megatron combined_1f1b.py, DeepSeek's DualPipe).
//
//   compute   unpermute'      | attention, permute | experts'           | experts          | permute', attention' ...
//   expert         combine'   |          dispatch  |        dispatch'   |       combine    |         combine' of the next
#include <algorithm>
#include <array>

#include "core/base/check.hpp"
#include "core/lower/context.hpp"

namespace wt::lower {

using plan::Block;
using plan::Op;
using plan::Range;
using plan::Segment;
using plan::Wait;

namespace {

constexpr uint32_t kNone = UINT32_MAX;

struct Instance {
  uint32_t op = 0, iteration = 0, segment = 0;
};

/// One of the two blocks while it is issued.
struct Side {
  const Block* block;
  uint8_t binding;
  std::vector<Instance> instances{};            // unrolled
  std::vector<std::vector<uint32_t>> placed{};  // [op][iteration] its place in the pair; kNone: not yet
  size_t next = 0;

  Side(const Block& b, uint8_t which) : block(&b), binding(which), placed(b.ops.size()) {
    for (uint32_t s = 0; s < b.segments.size(); ++s)
      for (uint32_t i = 0; i < b.segments[s].iterations; ++i)
        for (uint32_t k = 0; k < b.segments[s].op_count; ++k) instances.push_back({b.segments[s].first_op + k, i, s});
  }
  bool done() const { return next == instances.size(); }
  const Op& op(size_t at) const { return block->ops[instances[at].op]; }
  int64_t layer(size_t at) const {
    const Segment& s = block->segments[instances[at].segment];
    return s.first_layer < 0 ? -1 : s.first_layer + int64_t{s.layer_step} * instances[at].iteration;
  }
  /// Whether the other side may go on after it: the last of the collectives that move rows of experts together.
  bool yields(size_t at) const { return moves_rows(op(at)) && (at + 1 == instances.size() || !moves_rows(op(at + 1))); }
  static bool moves_rows(const Op& o) {
    const auto* c = std::get_if<plan::Collective>(&o.body);
    return c && o.stream == plan::Stream::expert && c->dtype != DType::i32;
  }
};

class Pair {
 public:
  Pair(const Block& forward, const Block& backward) : sides_{Side(forward, 0), Side(backward, 1)} {
    for (size_t i = 0; i < sides_[0].instances.size(); ++i) layers_ = std::max(layers_, sides_[0].layer(i));
    out_.name = forward.name + " & " + backward.name;
    out_.part = forward.part;
  }

  Block build() {
    size_t turn = 1;
    while (!sides_[0].done() || !sides_[1].done()) {
      if (sides_[turn].done()) turn = 1 - turn;
      Side& side = sides_[turn];
      bool yields = false;
      while (!side.done() && !yields) {
        yields = side.yields(side.next);
        append(side);
      }
      turn = 1 - turn;
    }
    return std::move(out_);
  }

 private:
  void append(Side& side) {
    const size_t at = side.next++;
    const Instance& instance = side.instances[at];
    const Op& from = side.op(at);
    // Segments count layers of the forward's part; the backward's may have more.
    const auto layer = static_cast<int32_t>(std::min(side.layer(at), layers_));
    const auto beyond = static_cast<int16_t>(side.layer(at) - layer);
    const auto place = static_cast<uint32_t>(out_.ops.size());
    // A segment for each run of ops of one layer.
    if (out_.segments.empty() || out_.segments.back().first_layer != layer)
      out_.segments.push_back({place, 0, 1, layer, 0});
    ++out_.segments.back().op_count;

    Op o = from;
    o.waits.begin = static_cast<uint32_t>(out_.waits.size());
    for (uint32_t w = from.waits.begin; w < from.waits.begin + from.waits.count; ++w)
      if (const auto wait = moved(side, instance, side.block->waits[w])) out_.waits.push_back(*wait);
    o.waits.count = static_cast<uint32_t>(out_.waits.size()) - o.waits.begin;
    for (Range Op::*range : {&Op::reads, &Op::writes, &Op::reserves, &Op::releases}) {
      const Range refs = from.*range;
      (o.*range).begin = static_cast<uint32_t>(out_.refs.size());
      for (uint32_t i = refs.begin; i < refs.begin + refs.count; ++i) {
        plan::BufferRef r = side.block->refs[i];
        r.binding = side.binding;
        r.layer_offset = static_cast<int16_t>(r.layer_offset + beyond);
        out_.refs.push_back(r);
      }
    }
    out_.ops.push_back(std::move(o));
    side.placed[instance.op].push_back(place);
  }

  /// The same wait in the pair; nothing where it is for an iteration before the first.
  std::optional<Wait> moved(const Side& side, const Instance& waiter, const Wait& wait) const {
    if (wait.kind == Wait::Kind::tail) return wait;
    const std::vector<uint32_t>& places = side.placed[wait.index];
    const Segment& s = side.block->segments[waiter.segment];
    const bool here = wait.index >= s.first_op && wait.index < s.first_op + s.op_count;
    if (here && waiter.iteration < wait.iterations_back) return std::nullopt;
    const size_t iteration = here ? waiter.iteration - wait.iterations_back : places.size() - 1;
    WT_CHECK(iteration < places.size(), "'{}' waits for an op behind it", side.block->name);
    // Cut in pieces only where both are in one segment still.
    const bool together = !out_.segments.empty() && places[iteration] >= out_.segments.back().first_op;
    return Wait{wait.kind == Wait::Kind::piece && !together ? Wait::Kind::op : wait.kind, places[iteration], 0,
                wait.kind == Wait::Kind::piece && together ? wait.pieces : 0};
  }

  std::array<Side, 2> sides_;
  int64_t layers_ = 0;  // of the forward's part: where its last ops stand
  Block out_;
};

}  // namespace

plan::Block pair_blocks(const plan::Block& forward, const plan::Block& backward) {
  return Pair(forward, backward).build();
}

}  // namespace wt::lower
