// The digest: a hash of everything that the text form holds but the plan's name, without printing it.
// Not cryptographic. Invariant: the same on every machine and compiler (fixed-width words, no std::hash, lists by what
// they hold and not by where they lie in the pools); a new field of the plan must be added here.
// Cost: about a nanosecond for each invocation and a few for each field: under a millisecond for 1,024 ranks.
#include <bit>

#include "core/plan/plan_io.hpp"

namespace wt::plan {
namespace {

class Hasher {
 public:
  uint64_t value() const { return mix(state_ ^ count_); }

  void word(uint64_t v) {
    state_ = mix(state_ ^ v) + 0x9e3779b97f4a7c15ull;
    ++count_;
  }
  void number(int64_t v) { word(static_cast<uint64_t>(v)); }
  void real(double v) { word(std::bit_cast<uint64_t>(v + 0.0)); }  // -0 equals 0
  void text(std::string_view s) {
    word(s.size());
    uint64_t w = 0;
    int filled = 0;
    for (unsigned char c : s) {
      w |= uint64_t{c} << (8 * filled);
      if (++filled == 8) {
        word(w);
        w = 0;
        filled = 0;
      }
    }
    if (filled) word(w);
  }
  template <class Tag>
  void id(Id<Tag> v) {
    word(v.v);
  }
  template <class E>
  void value_of(E e) {
    word(static_cast<uint64_t>(e));
  }

 private:
  static constexpr uint64_t mix(uint64_t x) {  // splitmix64's finaliser: a bijection with full avalanche
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  uint64_t state_ = 0x57696e6474756e6eull;
  uint64_t count_ = 0;
};

void hash(Hasher& h, const AxisFilter& f) {
  h.id(f.axis);
  h.word(f.values.size());
  for (int64_t v : f.values) h.number(v);
}

void hash(Hasher& h, const Body& body) {
  h.word(body.index());
  if (const auto* c = std::get_if<Compute>(&body)) {
    h.value_of(c->kernel);
    h.value_of(c->dtype);
    for (int64_t d : c->dims) h.number(d);
    h.word(uint64_t{c->transpose_a} | uint64_t{c->transpose_b} << 1 | uint64_t{c->accumulate} << 2 |
           uint64_t{c->causal} << 3 | uint64_t{c->gated} << 4 | uint64_t{c->function} << 8 |
           uint64_t{c->launches} << 16 | uint64_t{c->pieces} << 32);
    h.id(c->group);
    if (c->document != 0) h.number(c->document);  // kept digests are of plans without
    h.real(c->scalar);
    h.real(c->work.flops);
    h.number(c->work.bytes_read);
    h.number(c->work.bytes_written);
  } else if (const auto* collective = std::get_if<Collective>(&body)) {
    h.value_of(collective->kind);
    h.value_of(collective->reduction);
    h.value_of(collective->dtype);
    h.id(collective->group);
    h.number(collective->bytes);
    if (collective->copies != 0) h.number(collective->copies);  // kept digests are of plans without
  } else if (const auto* send = std::get_if<Send>(&body)) {
    h.value_of(send->to);
    h.number(send->bytes);
  } else if (const auto* receive = std::get_if<Receive>(&body)) {
    h.value_of(receive->from);
    h.number(receive->bytes);
  } else if (const auto* copy = std::get_if<Copy>(&body)) {
    h.value_of(copy->from);
    h.value_of(copy->to);
    h.number(copy->bytes);
  }
}

void hash(Hasher& h, const Block& b) {
  h.text(b.name);
  h.id(b.part);
  h.word(b.segments.size());
  for (const Segment& s : b.segments) {
    h.word(s.first_op);
    h.word(s.op_count);
    h.word(s.iterations);
    h.number(s.first_layer);
    h.number(s.layer_step);
  }
  h.word(b.ops.size());
  for (const Op& o : b.ops) {
    h.text(o.name);
    h.value_of(o.phase);
    h.value_of(o.stream);
    hash(h, o.body);
    h.word(o.waits.count);
    for (uint32_t i = 0; i < o.waits.count; ++i) {
      const Wait& w = b.waits[o.waits.begin + i];
      h.value_of(w.kind);
      h.word(w.index);
      h.word(w.iterations_back);
      h.word(w.pieces);
    }
    for (const Range& range : {o.reads, o.writes, o.reserves, o.releases}) {
      h.word(range.count);
      for (uint32_t i = 0; i < range.count; ++i) {
        const BufferRef& r = b.refs[range.begin + i];
        h.word(uint64_t{r.buffer.v} | uint64_t{static_cast<uint16_t>(r.layer_offset)} << 32 |
               uint64_t{r.binding} << 48);
      }
    }
  }
}

void hash(Hasher& h, const std::vector<Invocation>& order) {
  h.word(order.size());
  for (const Invocation& v : order) {
    h.word(uint64_t{v.block.v} | uint64_t{v.bindings} << 32);
    for (size_t i = 0; i < v.bindings && i < v.binding.size(); ++i)
      h.word(uint64_t{v.binding[i].chunk} << 16 | v.binding[i].micro_batch);
  }
}

}  // namespace

namespace {

enum class Name : uint8_t { left_out, hashed };

uint64_t digest(const Plan& p, Name name) {
  Hasher h;
  h.number(p.version);
  if (name == Name::hashed) h.text(p.name);
  h.word(p.seed);
  h.word(p.mesh.axes.size());
  for (const Axis& a : p.mesh.axes) {
    h.text(a.name);
    h.number(a.size);
  }
  h.value_of(p.placement.kind);
  for (int64_t v : {p.placement.pipeline, p.placement.chunks, p.micro_batches, p.micro_batch_size, p.sequence})
    h.number(v);
  h.word(p.groups.size());
  for (const Group& g : p.groups) {
    h.text(g.name);
    h.word(g.axes.size());
    for (AxisId a : g.axes) h.id(a);
    h.word(g.filter.has_value());
    if (g.filter) hash(h, *g.filter);
  }
  h.word(p.buffers.size());
  for (const Buffer& b : p.buffers) {
    h.text(b.name);
    h.value_of(b.role);
    h.value_of(b.dtype);
    h.value_of(b.space);
    h.value_of(b.scope);
    h.word(uint64_t{b.per_layer} | uint64_t{b.view} << 1);
    h.word(b.shape.size());
    for (int64_t d : b.shape) h.number(d);
    h.word(b.shards.size());
    for (const Shard& s : b.shards) {
      h.word(s.dim);
      h.id(s.group);
      h.number(s.blocks);
    }
    h.value_of(b.init);
    h.real(b.init_scale);
  }
  h.word(p.parts.size());
  for (const Part& part : p.parts) {
    h.text(part.name);
    h.word(uint64_t{part.embedding} | uint64_t{part.head} << 1);
    h.number(part.layers);
    h.word(part.persistent.size());
    for (BufferId b : part.persistent) h.id(b);
    h.word(part.views.size());
    for (const View& v : part.views) {
      h.id(v.buffer);
      h.id(v.base);
      for (int64_t n : {v.first_layer, v.layers, v.offset, v.layer_stride}) h.number(n);
      h.id(v.shard_group);
    }
    h.number(part.parameters);
  }
  h.word(p.blocks.size());
  for (const Block& b : p.blocks) hash(h, b);
  h.word(p.programs.size());
  for (const Program& program : p.programs) {
    h.text(program.name);
    hash(h, program.when);
    h.word(program.chunks.size());
    for (PartId id : program.chunks) h.id(id);
    h.word(program.first_layer.size());
    for (int64_t v : program.first_layer) h.number(v);
    hash(h, program.setup);
    h.word(program.steps.size());
    for (const StepOrder& s : program.steps) {
      h.text(s.name);
      hash(h, s.order);
    }
  }
  h.word(p.assumptions.size());
  for (const std::string& a : p.assumptions) h.text(a);
  return h.value();
}

}  // namespace

uint64_t digest(const Plan& p) { return digest(p, Name::left_out); }

bool is_digest_of(uint64_t value, const Plan& p) { return value == digest(p) || value == digest(p, Name::hashed); }

}  // namespace wt::plan
