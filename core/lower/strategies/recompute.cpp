// Activation recomputation: which layers keep what their backward needs and which run their forward again.
//   uniform n: groups of n layers keep the group's input only
//   block n:   the first n layers of each chunk keep their input only, the others keep everything
//   every n:   so does the last of each n layers (torchtitan's selective_ac_option)
//   selective: everything but the inside of attention (core_attention in core/lower/transformer.cpp)
// The layers that run the same ops become one segment, unless somebody must act between two of them (hooks).
#include <algorithm>
#include <numeric>
#include <span>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Phase;

namespace {

/// Layers [first, first + group * count): `group` layers share one checkpoint; group 0: nothing is recomputed. every > 1,
/// with group 1: only the last of each so many is.
struct Run {
  int64_t first, group, count, every = 1;
  bool remade(int64_t checkpoint) const { return group > 0 && (checkpoint + 1) % every == 0; }
};

std::vector<Run> runs_of(const RecomputeSpec& r, int64_t layers) {
  std::vector<Run> runs;
  auto add = [&](int64_t first, int64_t group, int64_t count) {
    if (count > 0) runs.push_back({first, group, count});
  };
  if (r.kind != RecomputeKind::full) {
    add(0, 0, layers);
  } else if (r.method == RecomputeMethod::block) {
    const int64_t n = std::min(r.layers, layers);
    add(0, 1, n);
    add(n, 0, layers - n);
  } else if (r.every > 1) {
    if (layers > 0) runs.push_back({0, 1, layers, r.every});
  } else {
    const int64_t n = std::min(r.layers, std::max<int64_t>(layers, 1)), whole = layers / n;
    add(0, n, whole);
    if (layers % n) add(whole * n, layers % n, 1);
  }
  return runs;
}

/// Dropout keeps its mask behind the last product, so nothing is left out.
bool stops_early(const Context& c) { return c.strategy().recompute.early_stop && !c.remade.output_mask.valid(); }

/// `at`: of the group's first layer, from the first of the segment. `kinds`: of its layers.
void group_forward(BlockBuilder& b, const Context& c, int64_t at, std::span<const LayerKind> kinds, bool again) {
  const BufferId hidden = c.edge.hidden, flow = c.tmp.flow;
  const auto group = static_cast<int64_t>(kinds.size());
  const bool stops = again && stops_early(c);
  for (int64_t j = at; j < at + group; ++j) {
    const LayerKind kind = kinds[static_cast<size_t>(j - at)];
    const BufferRef in = ref(j == at ? hidden : flow, j);
    const BufferRef out = ref(j + 1 < at + group || again ? flow : hidden, j + 1);
    layer_forward(b, c, c.remade, static_cast<int>(j), kind, in, out, again ? Phase::recompute : Phase::forward,
                  stops && j + 1 == at + group);
  }
}

void group_backward(BlockBuilder& b, const Context& c, int64_t at, std::span<const LayerKind> kinds) {
  const auto group = static_cast<int64_t>(kinds.size());
  const BufferId hidden = c.edge.hidden, flow = c.tmp.flow, d_hidden = c.tmp.d_hidden;
  group_forward(b, c, at, kinds, true);
  if (!stops_early(c)) b.discard(ref(flow, at + group));
  for (int64_t j = at + group - 1; j >= at; --j)
    layer_backward(b, c, c.remade, static_cast<int>(j), kinds[static_cast<size_t>(j - at)],
                   ref(j == at ? hidden : flow, j), ref(d_hidden, j + 1), ref(d_hidden, j));
}

std::span<const LayerKind> kinds_of(const ChunkPart& part, int64_t first, int64_t layers) {
  return std::span(part.kinds).subspan(static_cast<size_t>(first), static_cast<size_t>(layers));
}

/// Cuts `count` checkpoints into segments whose iterations, of `period` checkpoints each, are alike:
/// body(first, checkpoints of an iteration, iterations).
template <class Alike, class Body>
void cut(int64_t count, int64_t period, Alike alike, Body body) {
  for (int64_t i = 0; i < count;) {
    const int64_t n = std::min(period, count - i);
    auto same = [&](int64_t k) {
      for (int64_t q = 0; q < n; ++q)
        if (!alike(i + q, k + q)) return false;
      return true;
    };
    int64_t times = 1;
    while (i + (times + 1) * n <= count && same(i + times * n)) ++times;
    body(i, n, times);
    i += n * times;
  }
}

bool remakes_lone(const Context& c) {
  const RecomputeSpec& r = c.strategy().recompute;
  return r.kind == RecomputeKind::full && r.method == RecomputeMethod::uniform;
}

}  // namespace

void lone_layer_forward(BlockBuilder& b, const Context& c, int j, LayerKind kind, BufferRef in, BufferRef out) {
  layer_forward(b, c, remakes_lone(c) ? c.remade : c.saved, j, kind, in, out, Phase::forward);
}

void lone_layer_backward(BlockBuilder& b, const Context& c, int j, LayerKind kind, BufferRef in, BufferRef d_out,
                         BufferRef d_in) {
  if (!remakes_lone(c)) return layer_backward(b, c, c.saved, j, kind, in, d_out, d_in);
  const bool stops = stops_early(c);
  layer_forward(b, c, c.remade, j, kind, in, ref(c.tmp.flow, j + 1), Phase::recompute, stops);
  if (!stops) b.discard(ref(c.tmp.flow, j + 1));
  layer_backward(b, c, c.remade, j, kind, in, d_out, d_in);
}

void layers_forward(BlockBuilder& b, const Context& c, const ChunkPart& part, LayerHooks* hooks) {
  for (const Run& r : runs_of(c.strategy().recompute, part.stack())) {
    const int64_t step = std::max<int64_t>(r.group, 1);
    const auto kinds = [&](int64_t checkpoint) { return kinds_of(part, r.first + checkpoint * step, step); };
    auto alike = [&](int64_t x, int64_t y) {
      return std::ranges::equal(kinds(x), kinds(y)) && r.remade(x) == r.remade(y) &&
             (!hooks || (step == 1 && hooks->alike(Way::forward, r.first + x, r.first + y)));
    };
    cut(r.count, std::lcm(hooks ? hooks->period(Way::forward) : 1, r.every), alike,
        [&](int64_t first, int64_t items, int64_t times) {
          b.segment(r.first + first * step, hooks && times == 1 ? 0 : items * step, times);
          for (int64_t item = 0; item < items; ++item) {
            const int64_t at = item * step;
            auto each = [&](void (LayerHooks::*hook)(BlockBuilder&, const LayerPlace&)) {
              for (int64_t j = 0; hooks && j < step; ++j)
                (hooks->*hook)(b, {r.first + first * step + at + j, static_cast<int>(at + j), item, items, times});
            };
            each(&LayerHooks::before_forward);
            if (!r.remade(first + item))
              layer_forward(b, c, c.saved, static_cast<int>(at), kinds(first + item).front(), ref(c.edge.hidden, at),
                            ref(c.edge.hidden, at + 1), Phase::forward);
            else
              group_forward(b, c, at, kinds(first + item), false);
            each(&LayerHooks::after_forward);
          }
        });
  }
}

void layers_backward(BlockBuilder& b, const Context& c, const ChunkPart& part, LayerHooks* hooks) {
  const auto runs = runs_of(c.strategy().recompute, part.stack());
  for (auto r = runs.rbegin(); r != runs.rend(); ++r) {
    const int64_t step = std::max<int64_t>(r->group, 1), last = r->first + (r->count - 1) * step;
    const auto kinds = [&](int64_t checkpoint) { return kinds_of(part, last - checkpoint * step, step); };
    const auto remade = [&](int64_t checkpoint) { return r->remade(r->count - 1 - checkpoint); };
    auto alike = [&](int64_t x, int64_t y) {
      return std::ranges::equal(kinds(x), kinds(y)) && remade(x) == remade(y) &&
             (!hooks || (step == 1 && hooks->alike(Way::backward, last - x, last - y)));
    };
    cut(r->count, std::lcm(hooks ? hooks->period(Way::backward) : 1, r->every), alike,
        [&](int64_t first, int64_t items, int64_t times) {
          b.segment(last - first * step, hooks && times == 1 ? 0 : -items * step, times);
          for (int64_t item = 0; item < items; ++item) {
            const int64_t at = -item * step;
            auto each = [&](void (LayerHooks::*hook)(BlockBuilder&, const LayerPlace&)) {
              for (int64_t j = step - 1; hooks && j >= 0; --j)
                (hooks->*hook)(b, {last - first * step + at + j, static_cast<int>(at + j), item, items, times});
            };
            each(&LayerHooks::before_backward);
            if (!remade(first + item))
              layer_backward(b, c, c.saved, static_cast<int>(at), kinds(first + item).front(), ref(c.edge.hidden, at),
                             ref(c.tmp.d_hidden, at + 1), ref(c.tmp.d_hidden, at));
            else
              group_backward(b, c, at, kinds(first + item));
            each(&LayerHooks::after_backward);
          }
        });
  }
}

}  // namespace wt::lower
