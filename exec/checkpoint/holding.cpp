#include "exec/checkpoint/holding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace wt::exec {

std::string to_text(const TensorName& t) {
  return fmt::format("{}{}{}", t.role == plan::Role::weight ? "" : fmt::format("{} of ", plan::to_text(t.role)), t.name,
                     t.layer >= 0 ? fmt::format(", layer {}", t.layer) : "");
}

int64_t Layout::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> Layout::global_shape() const {
  std::vector<int64_t> out = shape;
  for (const Cut& c : cuts) out[c.dim] *= c.parts;
  return out;
}

std::string fault_of(const Layout& l) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 64;  // bytes of it can still be counted
  int64_t whole = 1;
  auto grow = [&](int64_t by) {
    if (by <= 0 || whole > kMost / by) return false;
    whole *= by;
    return true;
  };
  for (const int64_t n : l.shape)
    if (!grow(n)) return fmt::format("a dim of {}", n);
  for (const Cut& c : l.cuts) {
    if (c.dim >= l.shape.size()) return fmt::format("a cut of dim {} of {}", c.dim, l.shape.size());
    if (!grow(c.parts) || c.index < 0 || c.index >= c.parts) return fmt::format("share {} of {}", c.index, c.parts);
    if (c.blocks <= 0 || l.shape[c.dim] % c.blocks != 0)
      return fmt::format("{} blocks of a dim of {}", c.blocks, l.shape[c.dim]);
  }
  const int64_t all = l.elements();
  if (l.first < 0 || l.count < 0 || l.first > all || l.count > all - l.first)
    return fmt::format("elements {} to {} of {}", l.first, l.first + l.count, all);
  return "";
}

std::vector<Segment> segments_of(const Layout& l) {
  // The longest run that stays together in both: the dims inside the innermost cut one, times what its cuts leave whole.
  int64_t run = 1;
  for (size_t d = l.shape.size(); d-- > 0;) {
    int64_t share = l.shape[d];
    bool cut = false;
    for (const Cut& c : l.cuts)
      if (c.dim == d && c.parts > 1) {
        share = std::gcd(share, l.shape[d] / c.blocks);
        cut = true;
      }
    run *= share;
    if (cut) break;
  }
  auto global_of = [&](int64_t local) {
    int64_t index = 0, inner = l.elements();
    for (size_t d = 0; d < l.shape.size(); ++d) {
      inner /= l.shape[d];
      int64_t at = local / inner, size = l.shape[d];
      local %= inner;
      for (const Cut& c : l.cuts) {
        if (c.dim != d) continue;
        const int64_t share = l.shape[d] / c.blocks;
        at = at / share * share * c.parts + c.index * share + at % share;
        size *= c.parts;
      }
      index = index * size + at;
    }
    return index;
  };
  std::vector<Segment> out;
  const int64_t end = l.first + l.count;
  for (int64_t begin = l.first; begin < end;) {
    const int64_t until = std::min(end, (begin / run + 1) * run);
    const Segment s{global_of(begin), begin - l.first, until - begin};
    if (!out.empty() && out.back().global + out.back().count == s.global)
      out.back().count += s.count;  // local elements follow each other anyway
    else
      out.push_back(s);
    begin = until;
  }
  std::sort(out.begin(), out.end(), [](const Segment& a, const Segment& b) { return a.global < b.global; });
  return out;
}

}  // namespace wt::exec
