// Dense typed indices: a BufferId cannot be passed where a BlockId is wanted.
#pragma once

#include <compare>
#include <cstdint>

namespace wt {

template <class Tag>
struct Id {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t v = kNone;
  constexpr bool valid() const { return v != kNone; }
  constexpr auto operator<=>(const Id&) const = default;
};

using RankId = Id<struct RankTag>;
using AxisId = Id<struct AxisTag>;
using GroupId = Id<struct GroupTag>;
using BufferId = Id<struct BufferTag>;
using PartId = Id<struct PartTag>;
using BlockId = Id<struct BlockTag>;
using ProgramId = Id<struct ProgramTag>;

}  // namespace wt
