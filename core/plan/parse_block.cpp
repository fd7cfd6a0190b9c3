// Blocks of a plan: segments and ops, with bodies, buffers and waits. An op with a fault keeps its number: waits name it.
#include "core/plan/parser.hpp"

namespace wt::plan {

bool Parser::block() {
  lex_.next();
  inside_ = Inside::block;
  block_ops_ = 0;
  Block b;
  const bool named = declare(b, plan_.blocks, blocks_, "block");
  bool ok = named;
  if (ok && accept("of")) ok = known(b.part, parts_, plan_.parts, "part");
  if (!named) b.name = fmt::format("\n{}", plan_.blocks.size());  // keeps its lines; never found by name
  plan_.blocks.push_back(std::move(b));
  return ok;
}

bool Parser::segment() {
  if (inside_ != Inside::block) return fail("'segment' outside a block");
  lex_.next();
  Block& b = plan_.blocks.back();
  Segment s;
  s.first_op = static_cast<uint32_t>(b.ops.size());
  int64_t first = -1, step = 0, times = 1;
  const bool ok = (!accept("layer") || integer(first, -1, INT16_MAX, "a layer")) &&
                  (!accept("step") || integer(step, INT16_MIN, INT16_MAX, "a step")) &&
                  (!accept("times") || integer(times, 1, kMostOps, "a count"));
  s.first_layer = static_cast<int32_t>(first);
  s.layer_step = static_cast<int32_t>(step);
  s.iterations = static_cast<uint32_t>(times);
  b.segments.push_back(s);
  return ok;
}

bool Parser::ref(BufferRef& r) {
  if (!known(r.buffer, buffers_, plan_.buffers, "buffer")) return false;
  if (accept('[')) {
    int64_t offset = 0;
    if (!integer(offset, INT16_MIN, INT16_MAX, "a layer offset") || !expect(']')) return false;
    r.layer_offset = static_cast<int16_t>(offset);
  }
  if (accept('@')) {
    int64_t binding = 0;
    if (!integer(binding, 0, 1, "a binding")) return false;
    r.binding = static_cast<uint8_t>(binding);
  }
  return true;
}

bool Parser::refs(std::vector<BufferRef>& list) {
  if (!expect('(')) return false;
  if (accept(')')) return true;
  do {
    BufferRef r;
    if (!ref(r)) return false;
    list.push_back(r);
  } while (accept(','));
  return expect(')');
}

bool Parser::compute(Compute& c) {
  if (!spelled(c.dtype, kDTypeNames, "an element type")) return false;
  if (accept('[')) {
    size_t n = 0;
    do {
      if (n == c.dims.size()) return fail("a kernel has at most 5 dims");
      if (!integer(c.dims[n++], 0, kAny, "a dim")) return false;
    } while (accept(','));
    if (!expect(']')) return false;
  }
  int64_t v = 0;
  while (lex_.kind == Token::word) {
    if (accept("transpose_a"))
      c.transpose_a = true;
    else if (accept("transpose_b"))
      c.transpose_b = true;
    else if (accept("accumulate"))
      c.accumulate = true;
    else if (accept("causal"))
      c.causal = true;
    else if (accept("gated"))
      c.gated = true;
    else if (accept("function")) {
      if (!integer(v, 0, UINT8_MAX, "a function")) return false;
      c.function = static_cast<uint8_t>(v);
    } else if (accept("launches")) {
      if (!integer(v, 0, UINT16_MAX, "a number of launches")) return false;
      c.launches = static_cast<uint16_t>(v);
    } else if (accept("pieces")) {
      if (!integer(v, 0, UINT16_MAX, "a number of pieces")) return false;
      c.pieces = static_cast<uint16_t>(v);
    } else if (accept("document")) {
      if (!integer(v, 0, int64_t{1} << 40, "tokens of a document")) return false;
      c.document = v;
    } else if (accept("over")) {
      if (!known(c.group, groups_, plan_.groups, "group")) return false;
    } else if (accept("scalar")) {
      if (!real(c.scalar, "a scalar")) return false;
    } else {
      break;
    }
  }
  return true;
}

bool Parser::collective(Collective& c) {
  if (lex_.kind == Token::word)
    if (const auto r = value_of<Reduction>(kReductionNames, lex_.text)) {
      c.reduction = *r;
      lex_.next();
    }
  if (!spelled(c.dtype, kDTypeNames, "an element type") || !expect("over") ||
      !known(c.group, groups_, plan_.groups, "group") || !bytes(c.bytes))
    return false;
  return !accept("copies") || integer(c.copies, 1, kAny, "copies of a row");
}

bool Parser::body(Op& o) {
  if (accept("send")) {
    Send s;
    const bool ok = spelled(s.to, kDirectionNames, "a direction") && bytes(s.bytes);
    o.body = s;
    return ok;
  }
  if (accept("receive")) {
    Receive r;
    const bool ok = spelled(r.from, kDirectionNames, "a direction") && bytes(r.bytes);
    o.body = r;
    return ok;
  }
  if (accept("move")) {
    Copy c;
    const bool ok = spelled(c.from, kSpaceNames, "a space") && expect("to") && spelled(c.to, kSpaceNames, "a space") &&
                    bytes(c.bytes);
    o.body = c;
    return ok;
  }
  if (accept("host_wait")) return o.body = HostWait{}, true;
  if (accept("join")) return o.body = Join{}, true;
  if (lex_.kind == Token::word) {
    if (const auto k = value_of<CollectiveKind>(kCollectiveNames, lex_.text)) {
      lex_.next();
      Collective c;
      c.kind = *k;
      const bool ok = collective(c);
      o.body = c;
      return ok;
    }
    if (const auto k = value_of<Kernel>(kKernelNames, lex_.text)) {
      lex_.next();
      Compute c;
      c.kernel = *k;
      const bool ok = compute(c);
      o.body = c;
      return ok;
    }
  }
  std::vector<std::string_view> all = {"send", "receive", "move", "host_wait", "join"};
  all.insert(all.end(), kCollectiveNames.begin(), kCollectiveNames.end());
  all.insert(all.end(), kKernelNames.begin(), kKernelNames.end());
  std::string hint;
  if (suggestions_++ < kMostSuggestions) hint = suggest(lex_.text, all);
  return fail(fmt::format("expected what the op does, found {}", found()), hint);
}

bool Parser::waits(Block& b, Op& o) {
  while (accept("wait")) {
    Wait w;
    int64_t v = 0;
    if (accept("tail")) {
      Stream s = Stream::compute;
      if (!spelled(s, kStreamNames, "a stream")) return false;
      w.kind = Wait::Kind::tail;
      w.index = static_cast<uint32_t>(s);
    } else {
      if (accept("piece"))
        w.kind = Wait::Kind::piece;
      else if (!expect("op"))
        return false;
      if (!integer(v, 0, kMostOps, "an op")) return false;
      w.index = static_cast<uint32_t>(v);
    }
    if (accept("back")) {
      if (!integer(v, 0, kMostOps, "iterations")) return false;
      w.iterations_back = static_cast<uint32_t>(v);
    }
    if (accept("pieces")) {
      if (!integer(v, 0, UINT16_MAX, "a number of pieces")) return false;
      w.pieces = static_cast<uint32_t>(v);
    }
    b.waits.push_back(w);
    ++o.waits.count;
  }
  return true;
}

bool Parser::op() {
  if (inside_ != Inside::block) return fail("an op outside a block");
  Block& b = plan_.blocks.back();
  if (b.segments.empty()) return fail("an op before the first segment of its block");
  Segment& segment = b.segments.back();
  block_ops_ += segment.iterations;
  if (block_ops_ > kMostOps) return fail(fmt::format("block '{}' has more than {} op instances", b.name, kMostOps));
  const auto index = static_cast<int64_t>(b.ops.size());
  Op o;
  const int64_t line = lex_.line, column = lex_.column;
  int64_t label = 0;
  bool ok = integer(label, 0, kAny, "the number of the op");
  if (ok && label != index)
    ok = fail_at(line, column, fmt::format("op {} stands where op {} should: waits name these numbers", label, index));
  o.waits.begin = static_cast<uint32_t>(b.waits.size());
  auto list = [&](Range& range, const std::vector<BufferRef>& refs) {
    range = {static_cast<uint32_t>(b.refs.size()), static_cast<uint32_t>(refs.size())};
    b.refs.insert(b.refs.end(), refs.begin(), refs.end());
  };
  auto rest = [&] {
    if (!spelled(o.stream, kStreamNames, "a stream") || !spelled(o.phase, kPhaseNames, "a phase") ||
        !text(o.name, "the name of the op") || !expect(':') || !body(o))
      return false;
    std::vector<BufferRef> reads, writes, reserves, releases;
    if (lex_.is('(')) {
      if (!refs(reads)) return false;
      if (lex_.is_arrow()) {
        lex_.next();
        if (!refs(writes)) return false;
      }
    }
    if (!waits(b, o)) return false;
    while (lex_.is('+') || lex_.is('-')) {
      auto& to = lex_.is('+') ? reserves : releases;
      lex_.next();
      BufferRef r;
      if (!ref(r)) return false;
      to.push_back(r);
    }
    list(o.reads, reads);
    list(o.writes, writes);
    list(o.reserves, reserves);
    list(o.releases, releases);
    if (lex_.is("work")) {
      auto* c = std::get_if<Compute>(&o.body);
      if (!c) return fail("'work' belongs to compute kernels");
      lex_.next();
      if (!real(c->work.flops, "floating-point operations") || !expect("flops") ||
          !integer(c->work.bytes_read, 0, kAny, "bytes") || !expect("read") ||
          !integer(c->work.bytes_written, 0, kAny, "bytes") || !expect("written"))
        return false;
    }
    return true;
  };
  ok = ok && rest();
  b.ops.push_back(std::move(o));  // a faulty op keeps its number
  ++segment.op_count;
  return ok;
}

}  // namespace wt::plan
