// Activation recomputation (facts MG-28): which layers keep what their backward needs and which run their forward again.
//   uniform n: groups of n layers keep the group's input only
//   block n:   the first n layers of each chunk keep their input only, the others keep everything
//   selective: everything but the inside of attention (core_attention in core/lower/transformer.cpp)
// The layers that run the same ops become one segment, unless somebody must act between two of them (hooks).
#include <algorithm>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Phase;

namespace {

/// Layers [first, first + group * count): `group` layers share one checkpoint; group 0: nothing is recomputed.
struct Run {
  int64_t first, group, count;
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
  } else {
    const int64_t n = std::min(r.layers, std::max<int64_t>(layers, 1)), whole = layers / n;
    add(0, n, whole);
    if (layers % n) add(whole * n, layers % n, 1);
  }
  return runs;
}

void group_forward(BlockBuilder& b, const Context& c, int64_t group, bool again) {
  const BufferId hidden = c.edge.hidden, flow = c.tmp.flow;
  for (int64_t j = 0; j < group; ++j) {
    const BufferRef in = ref(j == 0 ? hidden : flow, j);
    const BufferRef out = ref(j + 1 < group || again ? flow : hidden, j + 1);
    layer_forward(b, c, c.remade, static_cast<int>(j), in, out, again ? Phase::recompute : Phase::forward);
  }
}

void group_backward(BlockBuilder& b, const Context& c, int64_t group) {
  const BufferId hidden = c.edge.hidden, flow = c.tmp.flow, d_hidden = c.tmp.d_hidden;
  group_forward(b, c, group, true);
  b.discard(ref(flow, group));
  for (int64_t j = group - 1; j >= 0; --j)
    layer_backward(b, c, c.remade, static_cast<int>(j), ref(j == 0 ? hidden : flow, j), ref(d_hidden, j + 1),
                   ref(d_hidden, j));
}

}  // namespace

void layers_forward(BlockBuilder& b, const Context& c, const ChunkPart& part, LayerHooks* hooks) {
  for (const Run& r : runs_of(c.strategy().recompute, part.layers)) {
    const int64_t step = std::max<int64_t>(r.group, 1);
    auto body = [&] {
      if (r.group == 0)
        layer_forward(b, c, c.saved, 0, ref(c.edge.hidden, 0), ref(c.edge.hidden, 1), Phase::forward);
      else
        group_forward(b, c, r.group, false);
    };
    if (!hooks) {
      b.segment(r.first, step, r.count);
      body();
      continue;
    }
    for (int64_t i = 0; i < r.count; ++i) {
      b.segment(r.first + i * step);
      for (int64_t j = 0; j < step; ++j) hooks->before_forward(b, r.first + i * step + j, static_cast<int>(j));
      body();
    }
  }
}

void layers_backward(BlockBuilder& b, const Context& c, const ChunkPart& part, LayerHooks* hooks) {
  const auto runs = runs_of(c.strategy().recompute, part.layers);
  for (auto r = runs.rbegin(); r != runs.rend(); ++r) {
    const int64_t step = std::max<int64_t>(r->group, 1), last = r->first + (r->count - 1) * step;
    auto body = [&] {
      if (r->group == 0)
        layer_backward(b, c, c.saved, 0, ref(c.edge.hidden, 0), ref(c.tmp.d_hidden, 1), ref(c.tmp.d_hidden, 0));
      else
        group_backward(b, c, r->group);
    };
    if (!hooks) {
      b.segment(last, -step, r->count);
      body();
      continue;
    }
    for (int64_t i = r->count - 1; i >= 0; --i) {
      b.segment(r->first + i * step);
      body();
      for (int64_t j = step - 1; j >= 0; --j) hooks->after_backward(b, r->first + i * step + j);
    }
  }
}

}  // namespace wt::lower
