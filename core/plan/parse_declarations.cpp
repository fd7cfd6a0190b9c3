// What a plan declares before its blocks: mesh, placement, groups, buffers, parts. A declaration with a fault still takes
// its name, so that later lines are not faulted for it.
#include "core/plan/parser.hpp"

namespace wt::plan {

bool Parser::mesh() {
  if (!once(seen_mesh_, "mesh")) return false;
  int64_t ranks = 1;
  if (lex_.kind == Token::line_end || lex_.kind == Token::end) return true;
  do {
    Axis a;
    const int64_t line = lex_.line, column = lex_.column;
    if (!name(a.name, "an axis")) return false;
    if (plan_.mesh.find(a.name)) return fail_at(line, column, fmt::format("axis '{}' is declared twice", a.name));
    if (!integer(a.size, 1, kMostRanks / ranks, "the size of an axis")) return false;
    ranks *= a.size;
    plan_.mesh.axes.push_back(std::move(a));
  } while (accept(','));
  return true;
}

bool Parser::placement() {
  Placement& p = plan_.placement;
  return once(seen_placement_, "placement") && spelled(p.kind, kPlacementNames, "a placement") && expect("pipeline") &&
         integer(p.pipeline, 1, UINT16_MAX, "the pipeline size") && expect("chunks") &&
         integer(p.chunks, 1, UINT16_MAX, "the number of chunks");
}

bool Parser::micro_batches() {
  return once(seen_batches_, "micro_batches") &&
         integer(plan_.micro_batches, 1, UINT16_MAX + 1, "the number of micro-batches") && expect("size") &&
         integer(plan_.micro_batch_size, 1, INT32_MAX, "the micro-batch size") && expect("sequence") &&
         integer(plan_.sequence, 1, INT32_MAX, "the sequence length");
}

bool Parser::axis(AxisId& id) {
  const int64_t line = lex_.line, column = lex_.column;
  std::string n;
  if (!name(n, "an axis")) return false;
  const auto found_axis = plan_.mesh.find(n);
  if (!found_axis) return fail_at(line, column, fmt::format("unknown axis '{}'", n));
  id = *found_axis;
  return true;
}

bool Parser::filter(AxisFilter& f) {
  if (!axis(f.axis) || !expect("in")) return false;
  do {
    int64_t v = 0;
    if (!integer(v, 0, plan_.mesh.axes[f.axis.v].size - 1, "a coordinate")) return false;
    f.values.push_back(v);
  } while (accept(','));
  return true;
}

bool Parser::group() {
  lex_.next();
  Group g;
  const bool named = declare(g, plan_.groups, groups_, "group");
  bool ok = named && expect(':');
  if (ok && !accept("alone")) {
    ok = expect("over");
    while (ok) {
      AxisId a;
      ok = axis(a);
      if (ok) g.axes.push_back(a);
      if (!ok || !accept(',')) break;
    }
  }
  if (ok && accept("where")) {
    g.filter.emplace();
    ok = filter(*g.filter);
  }
  if (named) plan_.groups.push_back(std::move(g));
  return ok;
}

bool Parser::buffer() {
  lex_.next();
  Buffer b;
  const bool named = declare(b, plan_.buffers, buffers_, "buffer");
  auto rest = [&] {
    if (!expect(':') || !spelled(b.role, kRoleNames, "a role") || !spelled(b.dtype, kDTypeNames, "an element type"))
      return false;
    if (!expect('[')) return false;
    int64_t most = kMostBytes;
    if (!lex_.is(']')) do {
        int64_t d = 0;
        if (!integer(d, 0, most, "a dim")) return false;
        if (d > 0) most /= d;
        b.shape.push_back(d);
      } while (accept(','));
    if (!expect(']') || !spelled(b.space, kSpaceNames, "a space") || !spelled(b.scope, kScopeNames, "a scope"))
      return false;
    b.per_layer = accept("per_layer");
    b.view = accept("view");
    while (accept("shard")) {
      Shard s;
      int64_t dim = 0;
      if (!integer(dim, 0, UINT8_MAX, "a dim") || !expect("over") || !known(s.group, groups_, plan_.groups, "group"))
        return false;
      s.dim = static_cast<uint8_t>(dim);
      if (accept("blocks") && !integer(s.blocks, 1, kAny, "the number of blocks")) return false;
      b.shards.push_back(s);
    }
    if (accept("init") && !spelled(b.init, kInitNames, "an init")) return false;
    if (accept("scale") && !real(b.init_scale, "the scale of the init")) return false;
    return true;
  };
  const bool ok = named && rest();
  if (named) plan_.buffers.push_back(std::move(b));
  return ok;
}

bool Parser::part() {
  lex_.next();
  inside_ = Inside::part;
  Part p;
  const bool named = declare(p, plan_.parts, parts_, "part");
  bool ok = named && expect(':') && expect("layers") && integer(p.layers, 0, INT16_MAX, "the number of layers") &&
            expect("parameters") && integer(p.parameters, 0, kAny, "the number of parameters");
  if (ok) {
    p.embedding = accept("embedding");
    p.head = accept("head");
  }
  plan_.parts.push_back(std::move(p));  // a faulty part keeps its lines
  return ok;
}

bool Parser::persistent() {
  if (inside_ != Inside::part) return fail("'persistent' outside a part");
  lex_.next();
  do {
    BufferId id;
    if (!known(id, buffers_, plan_.buffers, "buffer")) return false;
    plan_.parts.back().persistent.push_back(id);
  } while (accept(','));
  return true;
}

bool Parser::view() {
  if (inside_ != Inside::part) return fail("'view' outside a part");
  lex_.next();
  View v;
  if (!known(v.buffer, buffers_, plan_.buffers, "buffer")) return false;
  if (accept("layers") && (!integer(v.first_layer, 0, INT16_MAX, "the first layer") || !expect('+') ||
                           !integer(v.layers, 0, INT16_MAX, "the number of layers")))
    return false;
  if (!expect("in") || !known(v.base, buffers_, plan_.buffers, "buffer") || !expect("at") ||
      !integer(v.offset, 0, kMostBytes, "the offset"))
    return false;
  if (accept("stride") && !integer(v.layer_stride, -kMostBytes, kMostBytes, "the stride")) return false;
  if (accept("piece") && (!expect("of") || !known(v.shard_group, groups_, plan_.groups, "group"))) return false;
  plan_.parts.back().views.push_back(v);
  return true;
}

}  // namespace wt::plan
