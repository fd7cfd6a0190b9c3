// Orders that several schedules with a split backward share. Not schedules: those are the files of schedules/.
#pragma once

#include "core/lower/schedule.hpp"

namespace wt::lower {

/// One chunk on each rank: forwards ahead, then a forward and an input gradient in turn, weight gradients behind.
/// `extra` micro-batches more than 1F1B are in flight on every rank: p + extra at most, 0 <= extra < p.
Orders zero_bubble_orders(const ScheduleInput&, int64_t extra);

/// Two chunks of a V on each rank. starts[k] of a rank: the place, in a pattern of six places that repeats for each
/// micro-batch, of forward chunk 0, forward chunk 1, input gradient chunk 1, input gradient chunk 0. Weight gradients
/// take the places that are left.
struct VPattern {
  int64_t starts[4];
};
Orders v_orders(const ScheduleInput&, VPattern (*pattern)(int64_t rank, int64_t pipeline));

/// The entry of a schedule that splits the backward and runs two chunks of a V on each rank.
constexpr Schedule on_a_v(std::string_view name, std::string_view cites,
                          Result<Orders> (*order)(const ScheduleInput&)) {
  return {.name = name,
          .cites = cites,
          .placement = plan::PlacementKind::zigzag,
          .splits_backward = true,
          .overlaps_p2p = true,
          .order = order,
          .peak_in_flight = nullptr};
}

}  // namespace wt::lower
