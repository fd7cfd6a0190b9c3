// DualPipe-V (the cut-in-half DualPipe): two chunks of a V on each rank; a forward of one chunk and a backward of the other
// stand side by side. Here they run one after the other, forward first: what the overlap of their kernels and messages
// saves is not modelled. Backwards are whole but at both ends, where input gradients go first and weight gradients fill.
// Needs 2 p micro-batches.
#include <fmt/format.h>

#include "core/lower/zero_bubble.hpp"

namespace wt::lower {
namespace {

class Rank {
 public:
  explicit Rank(std::vector<Slot>& slots) : slots_(slots) {}
  void forward(int32_t chunk) { slots_.push_back({Pass::forward, chunk, forward_[chunk]++}); }
  void backward(int32_t chunk, bool split) {
    const int32_t i = backward_[chunk]++;
    slots_.push_back({split ? Pass::backward_input : Pass::backward, chunk, i});
    if (split) waiting_.push_back({Pass::backward_weight, chunk, i});
  }
  void weight() { slots_.push_back(waiting_[next_++]); }

 private:
  std::vector<Slot>& slots_;
  int32_t forward_[2] = {0, 0}, backward_[2] = {0, 0};
  std::vector<Slot> waiting_;
  size_t next_ = 0;
};

Result<Orders> order(const ScheduleInput& in) {
  if (auto refused = refuse_chunks(in, "dualpipe-v", 2)) return *refused;
  const int64_t p = in.pipeline, m = in.micro_batches;
  if (m < 2 * p)
    return Diagnostic{"training.global_batch",
                      fmt::format("gives {} micro-batches, fewer than 2 x strategy.pipeline {}", m, p),
                      fmt::format("legal: {} micro-batches or more", 2 * p)};
  Orders orders(static_cast<size_t>(p));
  for (int64_t r = 0; r < p; ++r) {
    Rank rank(orders[static_cast<size_t>(r)]);
    for (int64_t i = 0; i < 2 * (p - r - 1); ++i) rank.forward(0);
    for (int64_t i = 0; i < r + 1; ++i) rank.forward(0), rank.forward(1);
    for (int64_t i = 0; i < p - r - 1; ++i) rank.backward(1, true), rank.weight(), rank.forward(1);
    for (int64_t i = 0; i < m - 2 * p + r + 1; ++i) {
      rank.forward(0), rank.backward(1, false);
      rank.forward(1), rank.backward(0, false);
    }
    for (int64_t i = 0; i < p - r - 1; ++i) rank.backward(1, false), rank.forward(1), rank.backward(0, false);
    bool split = false;
    for (int64_t i = 0; i < r + 1; ++i) {
      const bool middle = i == (r + 1) / 2;
      split |= middle && r % 2 == 1;
      rank.backward(1, split);
      split |= middle && r % 2 == 0;
      rank.backward(0, split);
    }
    for (int64_t i = 0; i < p - r - 1; ++i) rank.weight(), rank.backward(0, true);
    for (int64_t i = 0; i < r + 1; ++i) rank.weight();
  }
  return orders;
}

}  // namespace

extern const Schedule schedules_dualpipe_v;
const Schedule schedules_dualpipe_v =
    on_a_v("dualpipe-v", "DeepSeek-AI 2025, DualPipe (github.com/deepseek-ai/DualPipe, dualpipev.py)", order);

}  // namespace wt::lower
