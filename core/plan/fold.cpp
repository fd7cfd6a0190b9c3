#include "core/plan/fold.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace wt::plan {
namespace {

/// What folding compares: two items repeat when their shapes are equal; their micro-batches then differ by the
/// difference of their bases. An item of no micro-batch follows any stride.
struct Item {
  uint32_t shape = 0;
  int64_t base = 0;
  bool free = false;
};

/// Shapes are numbered by content, not hashed: a collision would print a wrong order.
using Shapes = std::map<std::vector<int64_t>, uint32_t>;

uint32_t intern(Shapes& shapes, std::vector<int64_t> key) {
  return shapes.emplace(std::move(key), static_cast<uint32_t>(shapes.size())).first->second;
}

/// Micro-batch of the first invocation below the node that has one.
const Binding* first_binding(const FoldNode& n) {
  if (n.count == 0) return n.invocation.bindings ? n.invocation.binding.data() : nullptr;
  for (const FoldNode& b : n.body)
    if (const Binding* found = first_binding(b)) return found;
  return nullptr;
}

void append_shape(const FoldNode& n, int64_t base, std::vector<int64_t>& key) {
  if (n.count == 0) {
    const Invocation& v = n.invocation;
    key.insert(key.end(), {-1, int64_t{v.block.v}, v.bindings});
    for (size_t i = 0; i < std::min<size_t>(v.bindings, v.binding.size()); ++i)
      key.insert(key.end(), {v.binding[i].chunk, v.binding[i].micro_batch - base});
    return;
  }
  key.insert(key.end(), {-2, n.count, n.stride, static_cast<int64_t>(n.body.size())});
  for (const FoldNode& b : n.body) append_shape(b, base, key);
}

Item item_of(const FoldNode& n, Shapes& shapes) {
  const Binding* first = first_binding(n);
  Item item;
  item.base = first ? first->micro_batch : 0;
  item.free = first == nullptr;
  std::vector<int64_t> key;
  append_shape(n, item.base, key);
  item.shape = intern(shapes, std::move(key));
  return item;
}

/// By level: short repeats first, so that a round of rounds is folded from the inside.
constexpr size_t kLongestPeriod[kFoldDepth] = {2, 16, 64};

/// One level: replaces runs by folds so that the fewest nodes are printed.
void fold_once(std::vector<FoldNode>& nodes, Shapes& shapes, size_t longest_period) {
  const size_t n = nodes.size();
  std::vector<Item> items(n);
  for (size_t i = 0; i < n; ++i) items[i] = item_of(nodes[i], shapes);

  // Backwards over the order: best[i] is the cheapest print of nodes i ..., counted in nodes and braces; among equals
  // the one with the largest sum of squared counts, which puts a warm-up before the steady run, not into it.
  struct Best {
    int64_t cost = 0, squares = 0;
    uint32_t period = 0, count = 0;  // period 0: printed as it is
    int64_t stride = 0;
  };
  std::vector<Best> best(n + 1);
  // For each period L: how many items from i on equal the item L later, all with one stride.
  struct Run {
    size_t length = 0;
    int64_t stride = 0;
    bool any_stride = true;
  };
  const size_t periods = std::min(longest_period, n / 2);
  std::vector<Run> runs(periods + 1);
  for (size_t i = n; i-- > 0;) {
    best[i] = {best[i + 1].cost + 1, best[i + 1].squares, 0, 0, 0};
    for (size_t period = 1; period <= periods && i + period < n; ++period) {
      Run& run = runs[period];
      const Item &a = items[i], &b = items[i + period];
      if (a.shape != b.shape) {
        run = {};
        continue;
      }
      if (a.free) {
        ++run.length;
      } else {
        const int64_t stride = b.base - a.base;
        if (!run.any_stride && run.stride != stride) run.length = 0;
        ++run.length;
        run.stride = stride;
        run.any_stride = false;
      }
      const size_t most = 1 + run.length / period;
      // The last whole period may belong to the next run instead.
      for (size_t count = most; count >= 2 && count + 1 >= most; --count) {
        if (period * (count - 1) < 2) continue;  // saves nothing
        const Best& rest = best[i + period * count];
        const int64_t cost = rest.cost + static_cast<int64_t>(period) + 1;
        const int64_t squares = rest.squares + static_cast<int64_t>(count * count);
        if (cost < best[i].cost || (cost == best[i].cost && squares > best[i].squares))
          best[i] = {cost, squares, static_cast<uint32_t>(period), static_cast<uint32_t>(count),
                     run.any_stride ? 0 : run.stride};
      }
    }
  }

  std::vector<FoldNode> out;
  for (size_t i = 0; i < n;) {
    if (best[i].period == 0) {
      out.push_back(std::move(nodes[i++]));
      continue;
    }
    FoldNode f;
    f.count = best[i].count;
    f.stride = best[i].stride;
    const auto at = nodes.begin() + static_cast<std::ptrdiff_t>(i);
    f.body.assign(std::make_move_iterator(at), std::make_move_iterator(at + best[i].period));
    i += size_t{best[i].period} * best[i].count;
    out.push_back(std::move(f));
  }
  nodes = std::move(out);
}

}  // namespace

std::vector<FoldNode> fold(std::span<const Invocation> order) {
  std::vector<FoldNode> nodes;
  nodes.reserve(order.size());
  for (const Invocation& v : order) nodes.push_back({v, 0, 0, {}});
  Shapes shapes;
  for (size_t longest : kLongestPeriod) fold_once(nodes, shapes, longest);
  return nodes;
}

}  // namespace wt::plan
