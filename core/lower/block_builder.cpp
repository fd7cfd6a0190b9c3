#include "core/lower/block_builder.hpp"

#include <algorithm>
#include <iterator>

#include "core/base/check.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Op;
using plan::Range;
using plan::Scope;
using plan::Segment;
using plan::Stream;
using plan::Wait;

namespace {
/// For an op that is not of this block (only, half).
bool of_dropped(const Wait& w) { return w.kind != Wait::Kind::tail && w.index == UINT32_MAX; }
}  // namespace

BlockBuilder::BlockBuilder(const plan::Plan& plan, std::string name, PartId part, Lifetimes lifetimes)
    : plan_(plan), lifetimes_(lifetimes) {
  block_.name = std::move(name);
  block_.part = part;
}

void BlockBuilder::segment(int64_t first_layer, int64_t layer_step, int64_t iterations) {
  close_segment();
  block_.segments.push_back({static_cast<uint32_t>(block_.ops.size()), 0, static_cast<uint32_t>(iterations),
                             static_cast<int32_t>(first_layer), static_cast<int32_t>(layer_step)});
  open_ = true;
}

namespace {
uint64_t key_of(const BufferRef& r) {
  return uint64_t{r.buffer.v} << 32 | uint64_t{static_cast<uint16_t>(r.layer_offset)} << 8 | r.binding;
}
}  // namespace

uint32_t BlockBuilder::op(std::string_view name, plan::Phase phase, Stream stream, plan::Body body,
                          std::initializer_list<BufferRef> reads, std::initializer_list<BufferRef> writes,
                          std::initializer_list<Wait> extra) {
  return op(name, phase, stream, std::move(body), std::span(reads.begin(), reads.size()),
            std::span(writes.begin(), writes.size()), std::span(extra.begin(), extra.size()));
}

bool BlockBuilder::drops(plan::Phase phase, std::span<const BufferRef> reads) {
  const bool of_weight = phase == plan::Phase::backward_weight || phase == plan::Phase::reduce;
  dropped_ = half_ != Half::both && of_weight != (half_ == Half::weight);
  if (dropped_) {
    if (half_ == Half::input) read_later_.insert(read_later_.end(), reads.begin(), reads.end());
    if (half_ == Half::weight) pending_.clear();
    pieces_ = 0;
  }
  if (!only_.empty()) {
    const bool wanted = only_at_ < only_.size() && only_[only_at_];
    ++only_at_;
    if (!wanted) dropped_ = true, pieces_ = 0;
  }
  return dropped_;
}

uint32_t BlockBuilder::op(std::string_view name, plan::Phase phase, Stream stream, plan::Body body,
                          std::span<const BufferRef> reads, std::span<const BufferRef> writes,
                          std::span<const Wait> extra) {
  WT_CHECK(open_, "op '{}' outside a segment", name);
  if (drops(phase, reads)) return UINT32_MAX;
  const auto index = static_cast<uint32_t>(block_.ops.size());
  const auto first_wait = static_cast<uint32_t>(block_.waits.size());
  const bool receives = std::holds_alternative<plan::Receive>(body);
  const bool copies = stream == Stream::copy_in || stream == Stream::copy_out;
  if (stream != Stream::compute) {
    if (pieces_ > 1)
      block_.waits.push_back({Wait::Kind::piece, index - 1, 0, pieces_});
    else if (!receives && !copies) {
      block_.waits.push_back({Wait::Kind::tail, static_cast<uint32_t>(Stream::compute)});
      // What the next compute op waits for stands before this one too: no op of the compute stream carries it yet.
      block_.waits.insert(block_.waits.end(), pending_.begin(), pending_.end());
    }
  } else {
    // The last writer of each operand, if it is a communication op of this block.
    for (const BufferRef& r : reads) {
      const auto writer = last_writer_.find(key_of(r));
      if (writer == last_writer_.end() || block_.ops[writer->second].stream == Stream::compute) continue;
      const uint32_t k = writer->second;
      const Wait wait = pieces_ > 1 ? Wait{Wait::Kind::piece, k, 0, pieces_} : Wait{Wait::Kind::op, k};
      const auto first = block_.waits.begin() + first_wait;
      if (std::find(first, block_.waits.end(), wait) == block_.waits.end()) block_.waits.push_back(wait);
    }
    block_.waits.insert(block_.waits.end(), pending_.begin(), pending_.end());
    pending_.clear();
  }
  pieces_ = 0;
  for (auto a = when_read_.begin(); a != when_read_.end();) {
    const bool hit = std::any_of(reads.begin(), reads.end(), [&](const BufferRef& r) {
      return std::find(a->operands.begin(), a->operands.end(), r) != a->operands.end();
    });
    if (hit) block_.waits.push_back(a->wait);
    a = hit ? when_read_.erase(a) : a + 1;
  }
  for (const Wait& w : extra)
    if (!of_dropped(w) && std::find(block_.waits.begin() + first_wait, block_.waits.end(), w) == block_.waits.end())
      block_.waits.push_back(w);
  return append(name, phase, stream, std::move(body), reads, writes, first_wait);
}

uint32_t BlockBuilder::beside(std::string_view name, plan::Phase phase, Stream stream, plan::Body body,
                              std::span<const BufferRef> reads, std::span<const BufferRef> writes,
                              std::span<const Wait> waits) {
  WT_CHECK(open_, "op '{}' outside a segment", name);
  if (drops(phase, reads)) return UINT32_MAX;
  const auto first_wait = static_cast<uint32_t>(block_.waits.size());
  std::copy_if(waits.begin(), waits.end(), std::back_inserter(block_.waits),
               [](const Wait& w) { return !of_dropped(w); });
  return append(name, phase, stream, std::move(body), reads, writes, first_wait);
}

uint32_t BlockBuilder::append(std::string_view name, plan::Phase phase, Stream stream, plan::Body body,
                              std::span<const BufferRef> reads, std::span<const BufferRef> writes,
                              uint32_t first_wait) {
  const auto index = static_cast<uint32_t>(block_.ops.size());
  Op o;
  o.name = name;
  o.phase = phase;
  o.stream = stream;
  o.waits = {first_wait, static_cast<uint32_t>(block_.waits.size()) - first_wait};
  o.reads = {static_cast<uint32_t>(block_.refs.size()), static_cast<uint32_t>(reads.size())};
  block_.refs.insert(block_.refs.end(), reads.begin(), reads.end());
  o.writes = {static_cast<uint32_t>(block_.refs.size()), static_cast<uint32_t>(writes.size())};
  block_.refs.insert(block_.refs.end(), writes.begin(), writes.end());
  o.body = std::move(body);
  // Compute writers only where they take the place of a communication op: few operands are in the table.
  for (const BufferRef& w : writes)
    if (stream != Stream::compute) {
      last_writer_[key_of(w)] = index;
    } else if (const auto before = last_writer_.find(key_of(w)); before != last_writer_.end()) {
      before->second = index;
    }
  block_.ops.push_back(std::move(o));
  return index;
}

std::vector<BufferId> BlockBuilder::saved_by_layer(int layer_offset) const {
  std::vector<BufferId> found;
  for (size_t k = block_.segments.back().first_op; k < block_.ops.size(); ++k) {
    const Range& writes = block_.ops[k].writes;
    for (uint32_t i = 0; i < writes.count; ++i) {
      const BufferRef& r = block_.refs[writes.begin + i];
      const plan::Buffer& b = plan_.buffer(r.buffer);
      const bool saved = b.role == plan::Role::activation && b.scope == Scope::micro_batch && b.per_layer && !b.view;
      if (saved && r.layer_offset == layer_offset && std::find(found.begin(), found.end(), r.buffer) == found.end())
        found.push_back(r.buffer);
    }
  }
  return found;
}

void BlockBuilder::reserve_here(BufferRef ref) {
  if (dropped_) return;
  explicit_.push_back({static_cast<uint32_t>(block_.ops.size() - 1), ref, true});
}
void BlockBuilder::release_here(BufferRef ref) {
  if (dropped_) return;
  explicit_.push_back({static_cast<uint32_t>(block_.ops.size() - 1), ref, false});
}

/// Puts ops in the place of labels.
void BlockBuilder::name_waits() {
  const Segment& s = block_.segments.back();
  for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
    const Range range = block_.ops[k].waits;
    for (uint32_t w = range.begin; w < range.begin + range.count; ++w) {
      uint32_t& index = block_.waits[w].index;
      if (block_.waits[w].kind != Wait::Kind::op || index < kFirstLabel) continue;
      uint32_t found = UINT32_MAX;
      if (index == kFirstLabel + kEndOfIteration) {
        for (uint32_t last = s.first_op + s.op_count; last-- > s.first_op && found == UINT32_MAX;)
          if (block_.ops[last].stream == Stream::compute) found = last;
      } else {
        for (const Label& l : labels_)
          if (kFirstLabel + l.label == index) found = l.op;
      }
      WT_CHECK(found != UINT32_MAX, "op '{}' waits for label {}, which names no op", block_.ops[k].name,
               index - kFirstLabel);
      index = found;
    }
  }
  labels_.clear();
}

void BlockBuilder::close_segment() {
  if (!open_) return;
  open_ = false;
  Segment& s = block_.segments.back();
  s.op_count = static_cast<uint32_t>(block_.ops.size()) - s.first_op;
  if (s.op_count == 0) {
    block_.segments.pop_back();
    read_later_.clear();
    return;
  }
  name_waits();
  WT_CHECK(when_read_.empty(), "segment at op {}: nothing reads what {} waits stand for", s.first_op,
           when_read_.size());

  struct Use {
    BufferRef ref;
    uint32_t first, last;
    bool written_first, read;
  };
  std::vector<Use> uses;
  uses.reserve(s.op_count * 2);
  auto touch = [&](const BufferRef& r, uint32_t op, bool write) {
    for (auto u = uses.rbegin(); u != uses.rend(); ++u)
      if (u->ref == r) {
        // A collective that overwrites what was read begins a new life: the storage in between is free.
        const Op& o = block_.ops[op];
        if (write && u->read && u->last != op && std::holds_alternative<plan::Collective>(o.body)) break;
        u->last = op;
        u->read |= !write;
        return;
      }
    uses.push_back({r, op, op, write, !write});
  };
  for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
    const Op& o = block_.ops[k];
    for (uint32_t i = 0; i < o.reads.count; ++i) touch(block_.refs[o.reads.begin + i], k, false);
    for (uint32_t i = 0; i < o.writes.count; ++i) touch(block_.refs[o.writes.begin + i], k, true);
  }

  std::vector<std::pair<uint32_t, BufferRef>> reserves, releases;
  for (const Use& u : uses) {
    const plan::Buffer& b = plan_.buffer(u.ref.buffer);
    if (b.view || b.scope == Scope::persistent || b.scope == Scope::rank) continue;
    if (std::find(kept_out_.begin(), kept_out_.end(), u.ref.buffer) != kept_out_.end()) continue;
    const bool dropped = std::find(discarded_.begin(), discarded_.end(), u.ref) != discarded_.end();
    const bool later = std::find(read_later_.begin(), read_later_.end(), u.ref) != read_later_.end();
    const bool handed = std::find(handed_.begin(), handed_.end(), u.ref.buffer) != handed_.end();
    if (later && b.scope != Scope::invocation) {
      // Gathered for a recomputed part and again for the backward: one storage.
      const bool again = std::any_of(uses.cbegin(), uses.cbegin() + (&u - uses.data()),
                                     [&](const Use& earlier) { return earlier.ref == u.ref; });
      if (u.written_first && handed && !again) reserves.emplace_back(u.first, u.ref);
    } else if (b.scope == Scope::invocation || handed) {
      if (u.written_first) reserves.emplace_back(u.first, u.ref);
      // Nothing but what a backward hands on crosses segments; a forward's leftovers are of no use to anyone.
      if (u.read || dropped || lifetimes_ == Lifetimes::forward) releases.emplace_back(u.last, u.ref);
    } else {
      if (u.written_first && lifetimes_ == Lifetimes::forward) reserves.emplace_back(u.first, u.ref);
      if ((u.read && lifetimes_ == Lifetimes::backward) || dropped) releases.emplace_back(u.last, u.ref);
    }
  }
  for (const Explicit& e : explicit_) (e.reserve ? reserves : releases).emplace_back(e.op, e.ref);
  explicit_.clear();
  discarded_.clear();
  read_later_.clear();

  auto by_op = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(reserves.begin(), reserves.end(), by_op);
  std::stable_sort(releases.begin(), releases.end(), by_op);
  auto assign = [&](const std::vector<std::pair<uint32_t, BufferRef>>& list, Range Op::*range) {
    for (size_t i = 0; i < list.size();) {
      Op& o = block_.ops[list[i].first];
      (o.*range).begin = static_cast<uint32_t>(block_.refs.size());
      const uint32_t op = list[i].first;
      for (; i < list.size() && list[i].first == op; ++i) block_.refs.push_back(list[i].second);
      (o.*range).count = static_cast<uint32_t>(block_.refs.size()) - (o.*range).begin;
    }
  };
  assign(reserves, &Op::reserves);
  assign(releases, &Op::releases);
}

plan::Block BlockBuilder::finish() {
  close_segment();
  return std::move(block_);
}

}  // namespace wt::lower
