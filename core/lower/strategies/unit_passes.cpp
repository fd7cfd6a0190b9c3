// Sharded data parallelism, when it is moved: what UnitHooks adds to the forward and the backward of a micro-batch.
// Gathers and reductions of a unit share one communicator, so they run in the order of issue (stream `data`); what follows
// a reduce-scatter has a stream of its own (`replica`), and the casts before a gather another (`copy_in`).
//
//   host    | gather 0 | gather 1  block 0 | gather 2  block 1 | ...      forward: the host is ahead of the kernels
//   host    | gather L-1  head | gather L-2  block L-1  reduce L-1 | gather L-3 ...   backward, prefetch pre
//
// FSDP 1: the host waits until all but two units are free (facts FS1-5), and what a unit held can be used again when its
// kernels are over, which is when the next unit is under way; it casts and scales gradients on the stream of the reduction
// (FS1-7). FSDP 2: a gather goes to a buffer of its own and is copied out; a gather starts when the copy before
// the last (forward) or the last one (backward) is over; one reduce-scatter at a time (FS2-3 to FS2-5). DeepSpeed: gathers
// run ahead by what max_live_parameters leaves, gradients are copied to a bucket (DS-5, DS-11 to DS-13).
// The first gather of a pass waits for the kernels before it: their memory is what the gathers use.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Collective;
using plan::CollectiveKind;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Reduction;
using plan::Stream;
using plan::Wait;

namespace {

Wait of_op(uint32_t op, uint32_t back = 0) { return {Wait::Kind::op, op, back}; }

int64_t bytes_of(const Context& c, BufferRef r) { return c.plan.buffer(r.buffer).bytes().n; }
int64_t bytes_of(const Context& c, const Refs& refs) {
  int64_t n = 0;
  for (const BufferRef& r : refs) n += bytes_of(c, r);
  return n;
}
DType dtype_of(const Context& c, BufferRef r) { return c.plan.buffer(r.buffer).dtype; }

/// Copies, casts, scales, adds: bytes of what is read and of what is written.
Compute move(const Context& c, Kernel kernel, const Refs& reads, BufferRef to, double flops = 0) {
  const plan::Buffer& b = c.plan.buffer(to.buffer);
  Compute op = streaming(kernel, b.dtype, 1, b.elements(), bytes_of(c, reads), b.bytes().n, flops);
  if (kernel != Kernel::add) op.dims = {b.elements()};
  return op;
}
Compute move(const Context& c, BufferRef from, BufferRef to) {
  return move(c, dtype_of(c, from) == dtype_of(c, to) ? Kernel::copy : Kernel::cast, Refs{from}, to);
}

/// FSDP 1 divides before the reduction by about the root of the world, and by the rest after it (FS1-7).
int64_t division_before(int64_t world) {
  int64_t factor = 1;
  while (world % factor == 0 && static_cast<double>(world) / static_cast<double>(factor) > static_cast<double>(factor))
    factor *= 2;
  return factor;
}

}  // namespace

struct UnitHooks::State {
  const Context& c;
  const ChunkPart& part;
  UnitPass pass;
  std::vector<const Unit*> blocks{};  // of each layer, in the order of the pass
  bool torch = false, torch2 = false, zero2 = false, zero3 = false;
  bool cut = false;           // there is somebody to gather from
  bool whole_blocks = false;  // this pass finds them gathered
  int64_t layers = 0, ahead = 0, kept = 0, shard = 1, replicas = 1;
  bool behind = false;  // prefetched when the kernels of the block have been issued
  int64_t group = 1;    // layers whose gradients are reduced together

  // Of each unit: by which op a layer was asked for, in a segment before; in this iteration, by layer of it.
  std::map<std::pair<const Unit*, int64_t>, uint32_t> asked{};
  std::map<std::pair<const Unit*, int64_t>, uint32_t> asked_here{};
  std::map<std::pair<const Unit*, int64_t>, uint32_t> asked_next{};  // of this segment: becomes `asked` in the next
  std::map<const Unit*, uint32_t> copied{};                          // FSDP 2, in this iteration
  std::optional<uint32_t> reduction{}, reduction_here{};  // the last one in a segment before; in this iteration
  std::optional<uint32_t> reduction_next{};
  std::vector<int> offsets{};  // layers of this iteration whose gradients wait for the others

  State(const Context& context, const ChunkPart& p, UnitPass how) : c(context), part(p), pass(how) {
    const StrategySpec& s = c.strategy();
    torch2 = s.data_parallel == DataParallel::fsdp2;
    torch = torch2 || s.data_parallel == DataParallel::fsdp;
    zero2 = s.data_parallel == DataParallel::zero2;
    zero3 = s.data_parallel == DataParallel::zero3;
    const ShardSizes sizes = shard_sizes(c.job, c.n.dp);
    shard = sizes.shard;
    replicas = c.n.dp / shard;
    cut = shard > 1;
    layers = part.layers;
    for (const Unit& u : part.units)
      if (u.per_layer()) blocks.push_back(&u);
    if (!forward()) std::reverse(blocks.begin(), blocks.end());
    const int64_t block = std::max<int64_t>(1, layer_elements(c));
    if (torch) {
      kept = s.fsdp.keep_last;
      if (forward()) {
        ahead = s.fsdp.forward_prefetch ? 1 : 0;
      } else {
        ahead = s.fsdp.backward_prefetch == BackwardPrefetch::none ? 0 : 1;
        behind = s.fsdp.backward_prefetch == BackwardPrefetch::post;
      }
    }
    if (zero3) {
      // Each module asks for the next prefetch_elements until max_live_parameters are there: in the steady state that
      // limit is how far it is ahead. Blocks that the backward needs again within max_reuse_distance are not released.
      ahead = s.zero.prefetch_elements > 0 ? std::max<int64_t>(1, s.zero.max_live_parameters / block - 1) : 0;
      kept = std::min(s.zero.max_reuse_distance / (2 * block), s.zero.max_live_parameters / block);
    }
    ahead = std::min(ahead, layers);
    kept = std::min(kept, layers);
    if (zero2 || zero3) {
      const int64_t bucket = s.bucket_elements > 0 ? s.bucket_elements : 500'000'000;
      group = std::clamp<int64_t>(bucket / block, 1, std::max<int64_t>(1, layers));
    }
    whole_blocks = !forward() && !reshards(s);
  }

  bool forward() const { return pass.way == Way::forward; }
  Phase phase() const { return forward() ? Phase::forward : Phase::backward_input; }
  int64_t next(int64_t layer, int64_t steps) const { return forward() ? layer + steps : layer - steps; }
  bool exists(int64_t layer) const { return layer >= 0 && layer < layers; }
  /// Whether this pass gathers the block. Forward: all; backward: those that the forward released.
  bool gathers(int64_t layer) const {
    return exists(layer) && !whole_blocks && (forward() ? !skips_forward() : layer < layers - kept);
  }
  bool skips_forward() const { return forward() && !pass.first && keeps_across_micro_batches(c); }
  bool releases(int64_t layer) const {
    if (forward()) return reshards(c.strategy()) && layer < layers - kept;
    return !keeps_across_micro_batches(c) || pass.reduces;
  }
  bool limits() const {
    return c.strategy().data_parallel == DataParallel::fsdp && c.strategy().fsdp.limit_all_gathers;
  }

  static bool comes_and_goes(const Unit& u) {
    return std::any_of(u.flats.begin(), u.flats.end(), [](const Flat& f) { return !f.resident; });
  }
  enum What : uint32_t { gathered_by, copied_by };
  static constexpr uint32_t kReduced = 1;
  uint32_t label(const Unit& u, int64_t item, What what) const {
    const auto at = static_cast<uint32_t>(&u - part.units.data());
    return 2 + what + 2 * (static_cast<uint32_t>(item) * static_cast<uint32_t>(part.units.size()) + at);
  }
  /// Whether this reduction is the first of the step: the others add to what it leaves.
  bool begins(const Flat& f) const { return pass.first || f.accumulated.valid(); }
  bool lands(const Flat& f) const { return f.direct && begins(f); }

  Refs weights(const Unit& u, int offset) const {
    Refs out;
    for (const Flat& f : u.flats)
      for (const Flat::Member& m : f.members) {
        const Parameter& q = c.parameters[static_cast<size_t>(m.parameter)];
        if (q.per_layer == u.per_layer()) out.push_back(ref(q.weight, offset));
      }
    return out;
  }

  // ------------------------------------------------------------------------------------------------- gathers

  /// Casts the shard and gathers it; returns the op that the weights are there after (of FSDP 2, before the copy).
  uint32_t gather(BlockBuilder& b, const Unit& u, int offset, std::vector<Wait> waits) {
    Refs from, to;
    std::optional<uint32_t> last;
    const bool from_near = !forward() && u.per_layer() && c.near.valid();
    for (const Flat& f : u.flats) {
      if (f.resident) continue;
      b.keep_out(f.weights);
      BufferRef have = ref(from_near ? f.near : f.shard, offset);
      if (!from_near && f.host.staged.valid()) {
        have = bring_in(b, f, offset, have, ref(f.host.staged, offset), waits, last);
      } else if (c.plan.buffer(have.buffer).space != plan::Space::device) {  // nobody to gather from
        bring_in(b, f, offset, have, ref(f.weights, offset), waits, last);
        b.reserve_here(ref(f.weights, offset));
        continue;
      }
      if (!from_near && dtype_of(c, have) != c.act) {
        const BufferRef narrow = ref(f.low.valid() ? f.low : f.weights, offset);
        std::vector<Wait> here = waits;
        if (last) here.push_back(of_op(*last));
        last = b.beside("cast shard", phase(), Stream::copy_in, move(c, have, narrow), Refs{have}, Refs{narrow}, here);
        if (!f.low.valid()) b.reserve_here(narrow);
        have = narrow;
      }
      if (!cut) continue;
      if (f.narrow.valid()) {
        const BufferRef eight = ref(from_near ? f.near_narrow : f.narrow, offset);
        std::vector<Wait> here = waits;
        if (last) here.push_back(of_op(*last));
        last =
            b.beside("weights to 8 bits", phase(), Stream::data, move(c, have, eight), Refs{have}, Refs{eight}, here);
        if (from_near) drop_near(b, f, offset);
        have = eight;
      }
      from.push_back(have);
      to.push_back(ref(f.narrow.valid() ? f.narrow_gathered : f.gathered.valid() ? f.gathered : f.weights, offset));
    }
    if (!from.empty()) {
      if (last) waits.push_back(of_op(*last));
      if (takes_lists()) {
        const Wait device[] = {tail(Stream::compute), tail(Stream::data)};
        b.beside("synchronize", phase(), Stream::copy_in, plan::HostWait{}, {}, {}, device);
      }
      last = b.beside(from_near ? "near all-gather" : "dp all-gather", phase(), Stream::data,
                      Collective{CollectiveKind::all_gather, Reduction::sum, dtype_of(c, from.front()),
                                 from_near ? c.near : c.shard, bytes_of(c, to)},
                      from, to, waits);
      for (const Flat& f : u.flats) {
        if (f.resident) continue;
        if (f.gathered.valid()) b.keep_out(f.gathered);
        if (!f.narrow.valid()) b.reserve_here(ref(f.gathered.valid() ? f.gathered : f.weights, offset));
        if (from_near && !f.narrow.valid()) drop_near(b, f, offset);
      }
      if (zero3) {  // on the stream of the gathers
        for (const Flat& f : u.flats) {
          if (f.narrow.valid()) {
            const BufferRef eight = ref(f.narrow_gathered, offset),
                            whole = ref(f.gathered.valid() ? f.gathered : f.weights, offset);
            const Wait gathered[] = {of_op(*last)};
            last = b.beside("weights from 8 bits", phase(), Stream::data, move(c, eight, whole), Refs{eight},
                            Refs{whole}, gathered);
            b.keep_out(whole.buffer);
            b.reserve_here(whole);
          }
          const Wait after[] = {of_op(*last)};
          if (f.gathered.valid()) {
            last = copy_out(b, f, offset, after, true);
          } else if (takes_lists() && !f.resident) {
            const BufferRef whole = ref(f.weights, offset);
            b.keep_out(f.weights);
            last = b.beside("copy out", phase(), Stream::data, listed(move(c, Kernel::copy, {whole}, whole)),
                            Refs{whole}, Refs{whole}, after);
          }
        }
      }
    }
    WT_CHECK(last.has_value(), "unit '{}' has nothing to gather", u.name);
    return *last;
  }

  /// What the forward kept of a gathered unit for this gather is not needed any more.
  static void drop_near(BlockBuilder& b, const Flat& f, int offset) {
    b.keep_out(f.near);
    b.release_here(ref(f.near, offset));
  }

  /// The shard from host memory, or from a file through it.
  BufferRef bring_in(BlockBuilder& b, const Flat& f, int offset, BufferRef from, BufferRef to,
                     std::span<const Wait> waits, std::optional<uint32_t>& last) {
    std::vector<Wait> there(waits.begin(), waits.end());
    if (f.host.swapped.valid()) {
      const BufferRef swapped = ref(f.host.swapped, offset);
      there.push_back(of_op(host_copy(b, c, "read shard", phase(), Stream::host, from, swapped, waits)));
      from = swapped;
    }
    last = host_copy(b, c, "shard to device", phase(), Stream::copy_in, from, to, there);
    return to;
  }

  /// A copy between a flat buffer and the tensors of a list, one kernel for each rank (ZeroSpec::list_collectives).
  bool takes_lists() const { return zero3 && c.strategy().zero.list_collectives; }
  Compute listed(Compute copy) const {
    if (takes_lists())
      copy.launches = static_cast<uint16_t>(std::clamp<int64_t>(shard, 1, std::numeric_limits<uint16_t>::max()));
    return copy;
  }

  uint32_t copy_out(BlockBuilder& b, const Flat& f, int offset, std::span<const Wait> waits, bool beside) {
    const BufferRef from = ref(f.gathered, offset), to = ref(f.weights, offset);
    const Refs reads{from}, writes{to};
    b.keep_out(f.gathered);
    b.keep_out(f.weights);
    const uint32_t op =
        beside ? b.beside("copy out", phase(), Stream::data, listed(move(c, from, to)), reads, writes, waits)
               : b.op("copy out", phase(), Stream::compute, move(c, from, to), reads, writes, waits);
    b.reserve_here(to);
    if (beside || !forward() || !c.plan.buffer(f.gathered).per_layer) b.release_here(from);
    return op;
  }

  /// A unit outside the layers is asked for: its first reader waits.
  void gather_end(BlockBuilder& b, const Unit& u, bool behind_compute, bool read) {
    if (!comes_and_goes(u) || skips_forward()) return;
    std::vector<Wait> waits;
    if (behind_compute) waits.push_back(tail(Stream::compute));
    const uint32_t op = gather(b, u, 0, waits);
    const Wait after[] = {of_op(op)};
    if (torch2 && cut) {
      for (const Flat& f : u.flats) copy_out(b, f, 0, after, false);
    } else if (read && !weights(u, 0).empty()) {
      b.when_read(weights(u, 0), after[0]);
    } else {
      b.before_next_compute(after[0]);
    }
  }

  /// Before the layers: those that the first `ahead` of them need.
  void ask_first(BlockBuilder& b, int64_t first_layer_of_segment) {
    for (int64_t k = 0; k < ahead; ++k) {
      const int64_t layer = forward() ? k : layers - 1 - k;
      if (!gathers(layer)) continue;
      for (const Unit* u : blocks)
        if (comes_and_goes(*u)) asked[{u, layer}] = gather(b, *u, static_cast<int>(layer - first_layer_of_segment), {});
    }
  }

  /// Asks for a block. `back`: iterations whose kernels may still run (the rate limiter).
  void ask(BlockBuilder& b, const LayerPlace& at, int64_t steps, uint32_t back) {
    const int64_t layer = next(at.layer, steps);
    if (!gathers(layer)) return;
    const int offset = at.offset + static_cast<int>(layer - at.layer);
    if (limits() && cut) {
      const Wait waits[] = {BlockBuilder::labelled(BlockBuilder::kEndOfIteration, back)};
      b.beside("limit gathers", phase(), Stream::copy_in, plan::HostWait{}, {}, {}, waits);
    }
    for (const Unit* u : blocks) {
      if (!comes_and_goes(*u)) continue;
      std::vector<Wait> waits;
      if (torch2 && cut) {
        if (forward())
          waits.push_back(BlockBuilder::labelled(label(*u, at.item, copied_by), 2 - static_cast<uint32_t>(steps)));
        else if (steps == 0)
          waits.push_back(BlockBuilder::labelled(label(*u, at.item, copied_by), 1));
        else if (copied.contains(u))
          waits.push_back(of_op(copied.at(u)));
      }
      const uint32_t op = gather(b, *u, offset, waits);
      b.name_op(label(*u, at.item, gathered_by), op);
      asked_here[{u, at.item}] = op;
      for (int64_t t = 0; t < at.times; ++t) asked_next[{u, next(layer, t * at.items)}] = op;
    }
  }

  /// The weights of this block must be there from here on.
  void await(BlockBuilder& b, const LayerPlace& at, int64_t steps) {
    if (!gathers(at.layer)) return;
    for (const Unit* u : blocks) {
      if (!comes_and_goes(*u)) continue;
      std::vector<Wait> waits;
      if (steps == 0) {
        waits.push_back(of_op(asked_here.at({u, at.item})));
      } else {
        // Position p of the segment was asked for at p - steps: in this segment or before it.
        const int64_t back = at.item >= steps ? 0 : (steps - at.item + at.items - 1) / at.items;
        const int64_t from = at.item - steps + back * at.items;
        if (back == 0)
          waits.push_back(of_op(asked_here.at({u, from})));
        else if (at.times > back && gathers(next(at.layer, back * at.items)))
          waits.push_back(BlockBuilder::labelled(label(*u, from, gathered_by), static_cast<uint32_t>(back)));
        if (back > 0) {
          const int64_t latest = next(at.layer, (std::min(back, at.times) - 1) * at.items);
          if (const auto before = asked.find({u, latest}); before != asked.end())
            waits.push_back(of_op(before->second));
        }
      }
      if (torch2 && cut) {
        for (const Flat& f : u->flats) {
          copied[u] = copy_out(b, f, at.offset, waits, false);
          if (forward() && at.layer > 0) b.release_here(ref(f.gathered, at.offset - 1));
        }
        b.name_op(label(*u, at.item, copied_by), copied[u]);
      } else {
        for (const Wait& w : waits) b.when_read(weights(*u, at.offset), w);
      }
    }
  }

  /// Layers are built once for all iterations of a segment: here one begins.
  void begin_segment(const LayerPlace& at) {
    if (at.item > 0) return;
    asked_here.clear();
    copied.clear();
    offsets.clear();
    for (const auto& [key, op] : asked_next) asked[key] = op;
    asked_next.clear();
    if (reduction_next) reduction = reduction_next;
    reduction_next = reduction_here = std::nullopt;
  }

  /// FSDP 1 gives back a block when the one after it has been issued.
  bool late() const { return torch && !torch2; }
  int64_t given_back(int64_t layer) const { return late() ? next(layer, -1) : layer; }
  bool gives_back(int64_t layer) const { return exists(given_back(layer)) && releases(given_back(layer)); }

  void release(BlockBuilder& b, const Unit& u, int offset) {
    for (const Flat& f : u.flats) {
      if (f.resident) continue;
      b.keep_out(f.weights);
      b.release_here(ref(f.weights, offset));
    }
  }

  // ----------------------------------------------------------------------------------------------- gradients

  /// Storage for the unit's gradients; what the backward adds to begins at zero.
  void open_gradients(BlockBuilder& b, const Unit& u, int offset) {
    if (std::all_of(u.flats.begin(), u.flats.end(), [](const Flat& f) { return f.frozen; })) return;
    Refs zero;
    for (const Flat& f : u.flats)
      for (const Flat::Member& m : f.members) {
        const Parameter& q = c.parameters[static_cast<size_t>(m.parameter)];
        if (f.frozen || is_product(m.parameter)) continue;
        if (q.per_layer == u.per_layer()) zero.push_back(ref(q.gradient, offset));
      }
    for (const Flat& f : u.flats)
      if (f.padding.valid()) zero.push_back(ref(f.padding, offset));
    if (zero.empty()) {
      b.op("gradients", Phase::backward_weight, Stream::compute, plan::Join{}, {}, {});
    } else {
      const int64_t n = bytes_of(c, zero);
      b.op("zero gradients", Phase::backward_weight, Stream::compute,
           streaming(Kernel::fill_zero, c.grad, 1, n / size_of(c.grad), 0, n, 0), {}, zero);
    }
    for (const Flat& f : u.flats)
      if (!f.frozen) b.reserve_here(ref(f.gradient, offset));
  }
  /// Of a model's unit: the layer's own.
  void zero_layer(BlockBuilder& b, int offset) {
    Refs zero;
    for (const Unit& u : part.units)
      if (!u.per_layer())
        for (const Flat& f : u.flats)
          for (const Flat::Member& m : f.members) {
            const Parameter& q = c.parameters[static_cast<size_t>(m.parameter)];
            if (q.per_layer && !q.frozen && !is_product(m.parameter)) zero.push_back(ref(q.gradient, offset));
          }
    if (zero.empty()) return;
    const int64_t n = bytes_of(c, zero);
    b.op("zero gradients", Phase::backward_weight, Stream::compute,
         streaming(Kernel::fill_zero, c.grad, 1, n / size_of(c.grad), 0, n, 0), {}, zero);
  }
  /// Written by a product; everything else is added to.
  bool is_product(int k) const {
    const ParameterIds& id = c.id;
    for (const Adapter& a : c.adapters)
      if (a.rank > 0 && (k == a.a || k == a.b)) return true;
    return k == id.qkv || k == id.proj || k == id.fc1 || k == id.fc2 || k == id.head;
  }

  /// With sequence parallelism: what each tensor rank has of its own rows only.
  std::optional<uint32_t> sum_over_tensor(BlockBuilder& b, const Unit& u, const std::vector<int>& at) {
    Refs some;
    for (int offset : at)
      for (const Flat& f : u.flats)
        for (const Flat::Member& m : f.members) {
          const Parameter& q = c.parameters[static_cast<size_t>(m.parameter)];
          if (!q.partial_over_tensor) continue;
          if (q.per_layer == u.per_layer()) {
            some.push_back(ref(q.gradient, q.per_layer ? offset : 0));
          } else {
            for (int64_t l = 0; l < layers; ++l) some.push_back(ref(q.gradient, static_cast<int>(l)));
          }
        }
    if (some.empty()) return std::nullopt;
    return b.op("tp all-reduce norms", Phase::reduce, Stream::tensor,
                Collective{CollectiveKind::all_reduce, Reduction::sum, c.grad, c.tp, bytes_of(c, some)}, some, some);
  }

  /// From the gradients of the layers at `at` to the sums of the shard. `again`: the segment has more iterations.
  void reduce(BlockBuilder& b, const Unit& u, const std::vector<int>& at, bool again) {
    const auto summed = sum_over_tensor(b, u, at);
    struct Piece {
      const Flat* f;
      int offset;
      BufferRef x;  // as sent
    };
    std::vector<Piece> pieces;
    for (int offset : at)
      for (const Flat& f : u.flats)
        if (!f.frozen) pieces.push_back({&f, offset, ref(f.gradient, offset)});
    if (pieces.empty()) return;

    const bool aside = torch && !torch2;  // FSDP 1 works on the reduction's stream, the others on the compute stream
    const bool adds_whole = pieces[0].f->accumulated.valid();
    if (summed && (!aside || adds_whole)) b.before_next_compute(of_op(*summed));

    // FSDP 1: weights are views that torch's split made of the flat one, so the backward of split joins their gradients.
    if (aside && !summed)
      for (const Piece& p : pieces)
        b.compute("join gradients", Phase::backward_weight, move(c, Kernel::copy, {p.x}, p.x), {p.x}, {p.x});

    // Whole gradients of several micro-batches.
    if (adds_whole) {
      for (Piece& p : pieces) {
        const BufferRef sum = ref(p.f->accumulated, p.offset);
        if (pass.first) {
          b.compute("keep gradients", Phase::reduce, move(c, p.x, sum), {p.x}, {sum});
          b.reserve_here(sum);
        } else {
          b.compute("add gradients", Phase::reduce, move(c, Kernel::add, {sum, p.x}, sum, 1), {sum, p.x}, {sum});
        }
        p.x = sum;
      }
      if (!pass.reduces) return;
    }

    const int64_t world = c.n.dp;
    const bool averages = torch2 && wire_dtype(c) != DType::f16;
    const bool reduces = world > 1;
    const bool divides = reduces && !averages;
    const int64_t before = torch && !torch2 ? division_before(world) : world;
    std::vector<Wait> ready{tail(Stream::compute)};
    if (summed) ready.push_back(of_op(*summed));
    auto work = [&](const char* name, Compute op, const Refs& reads, const Refs& writes) {
      if (aside) {
        ready = {of_op(b.beside(name, Phase::reduce, Stream::replica, std::move(op), reads, writes, ready))};
      } else {
        b.op(name, Phase::reduce, Stream::compute, std::move(op), reads, writes);
      }
    };
    if (!aside && reduces) {  // one reduction at a time: the buffer of the one before is used again
      if (reduction_here) {
        b.before_next_compute(of_op(*reduction_here));
      } else {
        if (again) b.before_next_compute(BlockBuilder::labelled(kReduced, 1));
        if (reduction) b.before_next_compute(of_op(*reduction));
      }
    }
    for (Piece& p : pieces) {
      if (p.f->wire.valid()) {
        const BufferRef sent = ref(p.f->wire, p.offset);
        work("copy in", listed(move(c, p.x, sent)), {p.x}, {sent});
        if (p.f->accumulated.valid()) b.release_here(p.x);
        p.x = sent;
      } else if (!torch && reduces) {
        work("copy in", listed(move(c, p.x, p.x)), {p.x}, {p.x});
      }
      if (divides) {
        Compute scale = move(c, Kernel::scale, {p.x}, p.x, 1);
        scale.scalar = 1.0 / static_cast<double>(before);
        work("scale gradients", scale, {p.x}, {p.x});
      }
    }

    const bool scatter = cut && !zero2;
    Refs sent, received;
    for (const Piece& p : pieces) {
      sent.push_back(p.x);
      const Flat& f = *p.f;
      received.push_back(!scatter ? p.x : ref(lands(f) ? f.shard_gradient : f.reduced, p.offset));
    }
    const std::vector<Wait> after = ready;
    std::optional<uint32_t> last;
    if (reduces) {
      last = b.beside(scatter ? "dp reduce-scatter" : "dp all-reduce", Phase::reduce, Stream::data,
                      Collective{scatter ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
                                 averages ? Reduction::average : Reduction::sum, wire_dtype(c),
                                 cut ? c.shard : c.replicas, bytes_of(c, sent)},
                      sent, received, after);
      for (const Piece& p : pieces) {
        if (scatter && lands(*p.f)) b.reserve_here(ref(p.f->shard_gradient, p.offset));
        if (scatter && p.f->accumulated.valid() && !p.f->wire.valid()) b.release_here(ref(p.f->accumulated, p.offset));
      }
      (u.per_layer() ? reduction_here : reduction) = *last;
    }

    // The shard: what is left of the division, the replicas' sum, the micro-batches' sum.
    std::vector<Wait> then = last ? std::vector<Wait>{of_op(*last)} : after;
    auto follow = [&](const char* name, plan::Body op, const Refs& reads, const Refs& writes) {
      then = {of_op(b.beside(name, Phase::reduce, Stream::replica, std::move(op), reads, writes, then))};
    };
    for (size_t i = 0; i < pieces.size() && divides; ++i) {
      if (before == world) continue;
      Compute scale = move(c, Kernel::scale, {received[i]}, received[i], 1);
      scale.scalar = static_cast<double>(before) / static_cast<double>(world);
      follow("scale shard", scale, {received[i]}, {received[i]});
    }
    if (cut && replicas > 1)
      follow("dp all-reduce replicas",
             Collective{CollectiveKind::all_reduce, averages ? Reduction::average : Reduction::sum, wire_dtype(c),
                        c.replicas, bytes_of(c, received)},
             received, received);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Flat& f = *pieces[i].f;
      if (updates_on_host(c.strategy())) {
        BufferRef piece = received[i];
        if (zero2 && cut) {
          const BufferRef own = ref(f.reduced, pieces[i].offset);
          Compute slice = move(c, Kernel::copy, {own}, own);
          slice.group = c.shard;
          follow("own part", slice, {piece}, {own});
          piece = own;
        }
        send_to_host(b, f, pieces[i].offset, piece, then);
        continue;
      }
      const BufferRef sum = ref(f.shard_gradient, pieces[i].offset);
      if (received[i] == sum) continue;
      BufferRef piece = received[i];
      if (zero2 && cut) {
        const BufferRef own = pass.first ? sum : ref(f.reduced, pieces[i].offset);
        Compute slice = move(c, Kernel::copy, {own}, own);
        slice.group = c.shard;
        follow("own part", slice, {piece}, {own});
        if (pass.first) b.reserve_here(own);
        piece = own;
      }
      if (piece == sum) continue;
      if (begins(f)) {
        follow("shard gradients", move(c, piece, sum), {piece}, {sum});
        b.reserve_here(sum);
      } else {
        follow("add shard gradients", move(c, Kernel::add, {sum, piece}, sum, 1), {sum, piece}, {sum});
      }
      if (f.accumulated.valid() && piece == ref(f.accumulated, pieces[i].offset)) b.release_here(piece);
    }
    if (zero2 && !c.strategy().overlap_grad_reduce) {  // DeepSpeed reduces on the compute stream
      b.before_next_compute(tail(Stream::data));
      b.before_next_compute(tail(Stream::replica));
    }
  }

  /// What is left of a micro-batch's gradient goes to the host, on the stream of the reduction as all frameworks do it
  /// (facts DS-8, DS-13, FS1-9, FS2-8). DeepSpeed brings the sum so far back to the device to add; FSDP adds on the host.
  void send_to_host(BlockBuilder& b, const Flat& f, int offset, BufferRef piece, std::vector<Wait>& then) {
    auto work = [&](const char* name, Compute op, const Refs& reads, const Refs& writes) {
      then = {of_op(b.beside(name, Phase::reduce, Stream::replica, std::move(op), reads, writes, then))};
    };
    auto copy = [&](const char* name, BufferRef from, BufferRef to) {
      then = {of_op(host_copy(b, c, name, Phase::reduce, Stream::replica, from, to, then))};
    };
    auto widen = [&] {
      if (!f.host.wide.valid() || dtype_of(c, piece) == dtype_of(c, ref(f.host.gradient))) return;
      const BufferRef wide = ref(f.host.wide, offset);
      work("gradients to fp32", move(c, piece, wide), {piece}, {wide});
      piece = wide;
    };
    const BufferRef target = ref(f.host.gradient, offset);
    if (torch) {
      widen();
      if (pass.first) return copy("gradients to host", piece, target);
      const BufferRef incoming = ref(f.host.incoming, offset);
      copy("gradients to host", piece, incoming);
      const BufferRef reads[] = {target, incoming}, writes[] = {target};
      const uint32_t op = host_kernel(b, "add on host", Phase::reduce,
                                      move(c, Kernel::add, {target, incoming}, target, 1), reads, writes, then);
      then = {of_op(op)};
      return;
    }
    const BufferRef sum = f.host.sum.valid() ? ref(f.host.sum, offset) : target;
    if (!pass.first) {
      const BufferRef before = ref(f.host.before, offset);
      copy("sums to device", sum, before);
      work("add gradients", move(c, Kernel::add, {before, piece}, before, 1), {before, piece}, {before});
      piece = before;
    }
    if (!pass.last) return copy("gradients to host", piece, sum);
    if (c.training().gradient_clipping > 0) {
      Compute op = flat(Kernel::square_sum, dtype_of(c, piece), c.plan.buffer(piece.buffer).elements(),
                        bytes_of(c, piece), 4, 2);
      Refs reads{piece};
      if (f.tensor_duplicate) {
        op.group = c.tp;
        reads.push_back(piece);
      }
      work("gradient norm", op, reads, {ref(c.grad_norm)});
    }
    widen();
    copy("gradients to host", piece, target);
  }

  void reduce_layers(BlockBuilder& b, const LayerPlace& at) {
    offsets.push_back(at.offset);
    if ((at.item + 1) % group != 0 && at.item + 1 < at.items) return;  // other hooks may lengthen an iteration
    const bool again = at.times > 1 && pass.reduces && c.n.dp > 1;
    for (const Unit* u : blocks) reduce(b, *u, offsets, again);
    offsets.clear();
    if (again && reduction_here) b.name_op(kReduced, *reduction_here);
    reduction_next = reduction_here;
  }

  const Unit* of_span(Unit::Span span) const {
    for (const Unit& u : part.units)
      if (u.span == span) return &u;
    return nullptr;
  }
  /// The whole weights go when nobody needs them in this step any more.
  void release_end(BlockBuilder& b, const Unit& u) {
    if (releases(-1)) release(b, u, 0);
  }
};

UnitHooks::UnitHooks(const Context& c, const ChunkPart& part, UnitPass pass)
    : s_(std::make_unique<State>(c, part, pass)) {}
UnitHooks::~UnitHooks() = default;

void UnitHooks::begin(BlockBuilder& b) {
  State& s = *s_;
  if (s.forward()) {
    for (const Unit::Span span : {Unit::Span::root, Unit::Span::embedding})
      if (const Unit* u = s.of_span(span)) s.gather_end(b, *u, true, true);
    if (!s.part.embedding && !s.skips_forward())  // no unit of an embedding is gathered first: the update must be over
      for (const Stream stream : {Stream::copy_in, Stream::data})
        b.beside("update over", Phase::forward, stream, plan::Join{}, {}, {}, std::array{tail(Stream::compute)});
    s.ask_first(b, 0);
    return;
  }
  // Alone, weights come from the host by themselves.
  if ((s.cut || shard_space(s.c.strategy()) != plan::Space::device) && !s.whole_blocks)
    b.beside("forward over", Phase::backward_input, s.cut ? Stream::data : Stream::copy_in, plan::Join{}, {}, {},
             std::array{tail(Stream::compute)});
  for (const Unit::Span span : {Unit::Span::root, Unit::Span::head})
    if (const Unit* u = s.of_span(span)) s.open_gradients(b, *u, 0);
  if (!s.behind) s.ask_first(b, s.layers);
}

void UnitHooks::head(BlockBuilder& b) {
  State& s = *s_;
  const Unit* u = s.of_span(Unit::Span::head);
  if (s.forward()) {
    if (u) s.gather_end(b, *u, false, true);
    return;
  }
  if (u) {
    s.release_end(b, *u);
    s.reduce(b, *u, {0}, false);
  }
  if (s.behind) s.ask_first(b, s.layers);
}

void UnitHooks::embedding(BlockBuilder& b) {
  State& s = *s_;
  s.begin_segment({});
  const Unit* u = s.of_span(Unit::Span::embedding);
  if (!u) return;
  const bool comes_back = reshards(s.c.strategy());
  if (s.forward()) {
    if (comes_back) s.release(b, *u, 0);
    return;
  }
  if (comes_back) s.gather_end(b, *u, false, false);
  s.open_gradients(b, *u, 0);
}

void UnitHooks::finish(BlockBuilder& b) {
  State& s = *s_;
  if (s.forward()) {
    for (const Unit* u : s.blocks)
      for (const Flat& f : u->flats)
        if (s.torch2 && f.gathered.valid() && s.layers > 0 && !s.skips_forward()) {
          b.keep_out(f.gathered);
          b.release_here(ref(f.gathered, -1));
        }
    if (s.late() && s.releases(s.layers - 1))
      for (const Unit* u : s.blocks) s.release(b, *u, -1);
    return;
  }
  if (s.late() && s.releases(0))
    for (const Unit* u : s.blocks) s.release(b, *u, 0);
  for (const Unit::Span span : {Unit::Span::embedding, Unit::Span::root})
    if (const Unit* u = s.of_span(span)) {
      s.release_end(b, *u);
      s.reduce(b, *u, {0}, false);
    }
}

int64_t UnitHooks::period(Way way) const { return way == Way::backward ? s_->group : 1; }

bool UnitHooks::alike(Way, int64_t x, int64_t y) const {
  const State& s = *s_;
  auto same = [&](int64_t layer) {
    return std::array{s.gathers(layer), s.ahead > 0 && s.gathers(s.next(layer, s.ahead)), s.gives_back(layer),
                      s.torch2 && s.forward() && layer == 0};
  };
  return same(x) == same(y);
}

void UnitHooks::before_forward(BlockBuilder& b, const LayerPlace& at) {
  State& s = *s_;
  s.begin_segment(at);
  if (s.ahead == 0) s.ask(b, at, 0, 2);
  s.await(b, at, s.ahead);
  if (s.ahead > 0) s.ask(b, at, s.ahead, 2);
  if (s.c.narrow()) narrow_layer(b, s.c, s.part.kinds[static_cast<size_t>(at.layer)], at.offset, Phase::forward);
}

void UnitHooks::after_forward(BlockBuilder& b, const LayerPlace& at) {
  State& s = *s_;
  if (!s.gives_back(at.layer)) return;
  for (const Unit* u : s.blocks) {
    for (const Flat& f : u->flats) {
      if (!f.near.valid()) continue;
      const BufferRef from = ref(f.weights, at.offset), to = ref(f.near, at.offset);
      Compute slice = move(s.c, Kernel::copy, {to}, to);
      slice.group = s.c.near;
      b.keep_out(f.near);
      b.compute("near shard", Phase::forward, slice, {from}, {to});
      b.reserve_here(to);
    }
    s.release(b, *u, at.offset + static_cast<int>(s.given_back(at.layer) - at.layer));
  }
}

void UnitHooks::before_backward(BlockBuilder& b, const LayerPlace& at) {
  State& s = *s_;
  s.begin_segment(at);
  if (s.ahead == 0) s.ask(b, at, 0, 2);
  s.await(b, at, s.ahead);
  if (s.ahead > 0 && !s.behind) s.ask(b, at, s.ahead, 2);
  for (const Unit* u : s.blocks) s.open_gradients(b, *u, at.offset);
  s.zero_layer(b, at.offset);
  if (s.c.narrow()) narrow_layer(b, s.c, s.part.kinds[static_cast<size_t>(at.layer)], at.offset, Phase::backward_input);
}

void UnitHooks::after_backward(BlockBuilder& b, const LayerPlace& at) {
  State& s = *s_;
  if (s.gives_back(at.layer))
    for (const Unit* u : s.blocks) s.release(b, *u, at.offset + static_cast<int>(s.given_back(at.layer) - at.layer));
  if (s.behind) s.ask(b, at, s.ahead, 1);
  s.reduce_layers(b, at);
}

}  // namespace wt::lower
