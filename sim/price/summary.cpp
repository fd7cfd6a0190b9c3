#include "sim/price/summary.hpp"

#include <algorithm>
#include <array>

#include "sim/price/priced_program.hpp"

namespace wt::sim {
namespace {

constexpr size_t kMinOps = 6;     // below, applying the map costs as much as the ops
constexpr size_t kMaxInputs = 8;  // more would cost more than they save
using Lanes = std::array<int64_t, kMaxInputs>;

/// Later kernels do not run beside it, and its first piece does not stretch with its floor.
bool is_linear(const FlatOp& op, const Pieces* pieces) {
  return !op.channels && !(pieces && pieces->first_out != kDrop && pieces->floor != kZero);
}

/// Depends on nothing but the times of its own unit.
bool is_local(const FlatOp& op) {
  switch (op.kind) {
    case OpKind::plain:
    case OpKind::compute:
    case OpKind::local_collective:
    case OpKind::host_wait:
    case OpKind::merge: return true;
    case OpKind::collective:
    case OpKind::send:
    case OpKind::receive: return false;
  }
  return false;
}

class Builder {
 public:
  Builder(const std::vector<FlatOp>& ops, const std::vector<Pieces>& pieces, uint32_t row)
      : ops_(ops), pieces_(pieces), lane_of_(row), written_(row), times_(row) {}

  /// False: too many inputs.
  bool build(uint32_t begin, uint32_t end, Summary& out) {
    out.begin = begin;
    out.end = end;
    find_inputs(begin, end, out.inputs);
    if (out.inputs.size() > kMaxInputs) return false;
    bool linear = true;
    for (uint32_t i = begin; i < end; ++i) linear &= is_linear(ops_[i], pieces_of(i));
    find_outputs(end, out.outputs);
    if (!linear) return true;
    lanes_ = out.inputs.size();
    for (Lanes& t : times_) t.fill(Summary::kNoPath);
    for (size_t l = 0; l < lanes_; ++l) times_[out.inputs[l]][l] = 0;
    for (uint32_t i = begin; i < end; ++i) step(ops_[i], pieces_of(i));
    for (uint16_t t : out.outputs)
      out.weights.insert(out.weights.end(), times_[t].begin(), times_[t].begin() + static_cast<ptrdiff_t>(lanes_));
    return true;
  }

 private:
  const Pieces* pieces_of(uint32_t i) const { return ops_[i].in_pieces ? &pieces_[i] : nullptr; }

  template <class F>
  void for_each_input(uint32_t i, F&& f) const {
    f(kHost);
    f(ops_[i].stream);
    for (uint16_t w : ops_[i].waits) f(w);
    if (const Pieces* p = pieces_of(i)) f(p->floor);
  }

  void find_inputs(uint32_t begin, uint32_t end, std::vector<uint16_t>& inputs) {
    std::fill(written_.begin(), written_.end(), uint8_t{0});
    std::fill(lane_of_.begin(), lane_of_.end(), uint8_t{0});
    for (uint32_t i = begin; i < end; ++i) {
      for_each_input(i, [&](uint16_t t) {
        if (t == kZero || written_[t] || lane_of_[t]) return;
        lane_of_[t] = 1;
        inputs.push_back(t);
      });
      written_[kHost] = 1;
      written_[ops_[i].stream] = 1;
      written_[ops_[i].out] = 1;
      if (const Pieces* p = pieces_of(i)) written_[p->first_out] = 1;
    }
  }

  void find_outputs(uint32_t end, std::vector<uint16_t>& outputs) const {
    for (uint32_t t = 0; t < written_.size(); ++t)
      if (written_[t] && t != kDrop && (t < kSlots || read_later(static_cast<uint16_t>(t), end)))
        outputs.push_back(static_cast<uint16_t>(t));
  }

  void step(const FlatOp& op, const Pieces* pieces) {
    Lanes& host = times_[kHost];
    for (size_t l = 0; l < lanes_; ++l) host[l] += op.issue;
    Lanes ready = host;
    auto wait = [&](uint16_t t) {
      for (size_t l = 0; l < lanes_; ++l) ready[l] = std::max(ready[l], times_[t][l]);
    };
    wait(op.stream);
    for (uint16_t w : op.waits)
      if (w != kZero) wait(w);
    Lanes end = ready;
    for (size_t l = 0; l < lanes_; ++l) end[l] += op.duration;
    if (pieces && pieces->floor != kZero)
      for (size_t l = 0; l < lanes_; ++l)
        end[l] = std::max(end[l], times_[pieces->floor][l] + one_piece(op.duration, pieces->floor_pieces));
    if (op.kind == OpKind::host_wait) host = end;
    times_[op.stream] = end;
    times_[op.out] = end;
    if (pieces)
      for (size_t l = 0; l < lanes_; ++l)
        times_[pieces->first_out][l] = ready[l] + one_piece(op.duration, pieces->out_pieces);
  }

  bool read_later(uint16_t slot, uint32_t from) const {
    for (uint32_t i = from; i < ops_.size(); ++i) {
      bool reads = false;
      for_each_input(i, [&](uint16_t t) { reads |= t == slot; });
      if (reads) return true;
      const Pieces* p = pieces_of(i);
      if (ops_[i].out == slot || (p && p->first_out == slot)) return false;
    }
    return false;  // slots do not live beyond the block
  }

  const std::vector<FlatOp>& ops_;
  const std::vector<Pieces>& pieces_;
  std::vector<uint8_t> lane_of_, written_;
  std::vector<Lanes> times_;
  size_t lanes_ = 0;
};

}  // namespace

std::vector<Summary> summarise(const std::vector<FlatOp>& ops, const std::vector<Pieces>& pieces, uint32_t row) {
  std::vector<Summary> out;
  Builder builder(ops, pieces, row);
  const auto n = static_cast<uint32_t>(ops.size());
  for (uint32_t begin = 0; begin < n;) {
    uint32_t end = begin;
    while (end < n && is_local(ops[end])) ++end;
    if (Summary s; end - begin >= kMinOps && builder.build(begin, end, s)) out.push_back(std::move(s));
    begin = std::max(end, begin + 1);
  }
  return out;
}

}  // namespace wt::sim
