// PyTorch DistributedDataParallel beyond its buckets: gradients that are no views of them, and communication hooks.
//   no view         scaled into the bucket, reduced there, copied back when the backward is over: 4 more bytes a parameter
//   fp16, bf16      the bucket divided and cast to half, reduced, cast back beside what comes after: half the bytes
//   powersgd        arXiv:1905.13727, facts DDP-9. Each matrix M [n, m] of the bucket for which (n + m) r 2 < n m goes as
//                   P = M Q, all-reduced and made orthonormal, Q = M^T P, all-reduced, M = P Q^T; what is lost is added to
//                   the next step's (error feedback). The hook ends with a wait for the device, so nothing runs beside it.
// The plan is that of steps in which the hook compresses (start_powerSGD_iter and later); those before are `hook: none`.
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::BufferRef;
using plan::Compute;
using plan::Kernel;
using plan::Phase;
using plan::Role;
using plan::Scope;
using plan::Stream;
using plan::Wait;

namespace {

bool halves(const DdpSpec& d) { return d.hook == CommHook::fp16_compress || d.hook == CommHook::bf16_compress; }
DType half_of(const DdpSpec& d) { return d.hook == CommHook::fp16_compress ? DType::f16 : DType::bf16; }

Compute pass(Kernel kernel, DType dtype, int64_t n, int64_t read, int64_t written) {
  Compute op = streaming(kernel, dtype, 1, n, read, written, 1);
  op.dims = {n};
  return op;
}

}  // namespace

bool compresses(const DdpSpec& d, const std::vector<int64_t>& shape) {
  constexpr int64_t kLeastRate = 2;  // min_compression_rate
  if (shape.size() < 2) return false;
  const int64_t n = shape[0], m = shape[1];
  return (n + m) * d.powersgd_rank * kLeastRate < n * m;
}

bool has_ddp_path(const StrategySpec& s) {
  return s.data_parallel == DataParallel::ddp && (!s.ddp.bucket_view || s.ddp.hook != CommHook::none);
}

std::vector<JobFault> ddp_faults(const JobSpec& j) {
  std::vector<JobFault> out;
  const DdpSpec& d = j.strategy.ddp;
  if (d == DdpSpec{}) return out;
  if (j.strategy.data_parallel != DataParallel::ddp) {
    out.push_back({"strategy.ddp", "is of PyTorch's DistributedDataParallel", "with data_parallel: ddp"});
    return out;
  }
  if (d.hook != CommHook::none && j.model.moe)
    out.push_back({"strategy.ddp.hook", "hooks beside gradients of experts cannot be planned yet", "legal: none"});
  if (d.hook != CommHook::none && j.strategy.tensor > 1)
    out.push_back({"strategy.ddp.hook", "hooks beside tensor parallelism cannot be planned yet", "legal: none"});
  if (d.hook != CommHook::none && !d.bucket_view)
    out.push_back({"strategy.ddp.bucket_view", "false with a hook cannot be planned yet", "legal: true"});
  if (d.hook == CommHook::powersgd && j.strategy.pipeline > 1)
    out.push_back({"strategy.ddp.hook", "powersgd on pipeline stages cannot be planned yet",
                   "legal: none, fp16_compress, bf16_compress"});
  if (!d.no_sync && j.strategy.pipeline > 1)
    out.push_back({"strategy.ddp.no_sync", "false on pipeline stages cannot be planned yet", "legal: true"});
  return out;
}

namespace {

/// P and Q of the bucket's matrices, each behind the other, and what their approximation lost.
void make_low_rank(Context& c, ChunkPart& part, ChunkPart::Bucket& k, size_t index) {
  const DdpSpec& d = c.strategy().ddp;
  const int64_t r = d.powersgd_rank;
  plan::Part& out = c.plan.parts[part.id.v];
  const auto name = [&](std::string_view what) {
    return fmt::format("powersgd_{}.{}.bucket{}", what, out.name, index);
  };
  const auto make = [&](std::string text, Scope scope, int64_t elements, bool view) {
    Buffer b;
    b.name = std::move(text);
    b.role = Role::bucket;
    b.dtype = c.grad;
    b.scope = scope;
    b.view = view;
    b.shape = {elements};
    const BufferId id = c.add_buffer(std::move(b));
    if (!view && scope == Scope::persistent) out.persistent.push_back(id);
    return id;
  };
  const Scope kept = d.powersgd_error_feedback ? Scope::persistent : Scope::invocation;
  int64_t left = 0, right = 0, whole = 0;
  for (const auto& member : k.members) {
    // A copy: the buffers made below may move the plan's.
    const auto shape = c.plan.buffer(c.parameters[static_cast<size_t>(member.parameter)].weight).shape;
    const Parameter& parameter = c.parameters[static_cast<size_t>(member.parameter)];
    const std::string suffix = fmt::format("{}.{}", parameter.name, std::max<int64_t>(member.layer, 0));
    const BufferId gradient = make(name("grad." + suffix), Scope::persistent, parameter.elements, true);
    out.views.push_back({gradient, k.gradient, 0, 0, member.offset, 0, {}});
    if (!compresses(d, shape)) {
      k.vectors.push_back(gradient);
      continue;
    }
    ChunkPart::Bucket::Matrix x{shape[0], shape[1], gradient, {}, {}, {}};
    x.p = make(name("p." + suffix), Scope::invocation, x.n * r, true);
    x.q = make(name("q." + suffix), Scope::persistent, x.m * r, true);
    c.plan.buffers[x.q.v].init = plan::Init::normal;
    c.plan.buffers[x.q.v].init_scale = 1;
    if (d.powersgd_error_feedback) x.error = make(name("error." + suffix), kept, x.n * x.m, true);
    k.matrices.push_back(x);
    left += x.n * r;
    right += x.m * r;
    whole += x.n * x.m;
  }
  if (k.matrices.empty()) return;
  k.left = make(name("p"), Scope::invocation, left, false);
  k.right = make(name("q"), Scope::persistent, right, false);
  if (d.powersgd_error_feedback) k.error = make(name("error"), kept, whole, false);
  left = right = whole = 0;
  for (const auto& x : k.matrices) {
    out.views.push_back({x.p, k.left, 0, 0, left, 0, {}});
    out.views.push_back({x.q, k.right, 0, 0, right, 0, {}});
    if (k.error.valid()) out.views.push_back({x.error, k.error, 0, 0, whole, 0, {}});
    left += x.n * r;
    right += x.m * r;
    whole += x.n * x.m;
  }
}

}  // namespace

void make_used_map(Context& c, ChunkPart& part) {
  if (c.strategy().data_parallel != DataParallel::ddp || !c.strategy().ddp.find_unused || !c.replicated()) return;
  plan::Part& out = c.plan.parts[part.id.v];
  int64_t parameters = 0;
  for (const auto& k : part.buckets) parameters += static_cast<int64_t>(k.members.size());
  Buffer b;
  b.name = fmt::format("used_parameters.{}", out.name);
  b.role = Role::scalar;
  b.dtype = DType::i32;
  b.scope = Scope::persistent;
  b.shape = {parameters};
  part.used = c.add_buffer(std::move(b));
  out.persistent.push_back(part.used);
}

void make_ddp_buffers(Context& c, ChunkPart& part, ChunkPart::Bucket& k, size_t index) {
  if (!has_ddp_path(c.strategy()) || c.copies(k) == 1) return;
  plan::Part& out = c.plan.parts[part.id.v];
  const DdpSpec& d = c.strategy().ddp;
  const auto make = [&](const char* what, Role role, DType dtype, int64_t elements, Scope scope) {
    Buffer b;
    b.name = fmt::format("{}.{}.bucket{}", what, out.name, index);
    b.role = role;
    b.dtype = dtype;
    b.scope = scope;
    b.shape = {elements};
    const BufferId id = c.add_buffer(std::move(b));
    if (scope == Scope::persistent) out.persistent.push_back(id);
    return id;
  };
  if (!d.bucket_view) k.bucket = make("ddp_bucket", Role::bucket, c.grad, k.elements, Scope::persistent);
  if (halves(d)) k.half = make("ddp_half", Role::bucket, half_of(d), k.elements, Scope::invocation);
  if (d.hook != CommHook::powersgd) return;
  make_low_rank(c, part, k, index);
}

namespace {

void reduce_half(BlockBuilder& b, const Context& c, const ChunkPart::Bucket& k, size_t index) {
  const DType half = half_of(c.strategy().ddp);
  const int64_t wide = k.elements * size_of(c.grad), narrow = k.elements * size_of(half);
  const BufferRef g = ref(k.gradient), x = ref(k.half);
  // bucket.to(half).div_(world): a cast and a pass over what it made.
  b.compute("compress gradients", Phase::reduce, pass(Kernel::cast, half, k.elements, wide, narrow), {g}, {x});
  Compute scale = pass(Kernel::scale, half, k.elements, narrow, narrow);
  scale.scalar = 1.0 / static_cast<double>(c.n.dp);
  b.compute("scale gradients", Phase::reduce, scale, {x}, {x});
  const BufferRef operand[] = {x}, whole[] = {g};
  const uint32_t sum =
      b.op(fmt::format("dp all-reduce {}", index), Phase::reduce, Stream::data,
           plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, half, c.copies_group(k), narrow},
           operand, operand);
  const Wait after[] = {{Wait::Kind::op, sum}};
  b.beside("decompress gradients", Phase::reduce, Stream::replica, pass(Kernel::cast, c.grad, k.elements, narrow, wide),
           operand, whole, after);
}

void reduce_low_rank(BlockBuilder& b, const Context& c, const ChunkPart::Bucket& k, size_t index);

}  // namespace

void reduce_ddp_bucket(BlockBuilder& b, const Context& c, const ChunkPart& part, size_t index) {
  const ChunkPart::Bucket& k = part.buckets[index];
  if (k.half.valid()) return reduce_half(b, c, k, index);
  if (c.strategy().ddp.hook == CommHook::powersgd) return reduce_low_rank(b, c, k, index);
  const int64_t bytes = k.elements * size_of(c.grad);
  Compute scale = pass(Kernel::scale, c.grad, k.elements, bytes, bytes);  // mul_out: into the bucket, by 1 / world
  scale.scalar = 1.0 / static_cast<double>(c.n.dp);
  b.compute("copy to bucket", Phase::reduce, scale, {ref(k.gradient)}, {ref(k.bucket)});
  const BufferRef operand[] = {ref(k.bucket)};
  b.op(fmt::format("{} all-reduce {}", k.expert ? "edp" : "dp", index), Phase::reduce, Stream::data,
       plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.grad, c.copies_group(k), bytes},
       operand, operand);
}

void finish_ddp(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  if (c.strategy().data_parallel != DataParallel::ddp || !c.replicated()) return;
  const DdpSpec& d = c.strategy().ddp;
  if (d.find_unused) {  // the map of used parameters, an integer each
    const BufferRef used[] = {ref(part.used)};
    b.op("dp all-reduce used parameters", Phase::reduce, Stream::data,
         plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, DType::i32, c.dp,
                          c.plan.buffer(part.used).bytes().n},
         used, used);
  }
  if (!has_ddp_path(c.strategy()) && d.no_sync && !d.find_unused) return;
  b.op("gradients reduced", Phase::reduce, Stream::compute, plan::Join{}, {}, {},
       {tail(Stream::data), tail(Stream::replica)});
  for (const auto& k : part.buckets) {
    if (!k.bucket.valid()) continue;
    const int64_t bytes = k.elements * size_of(c.grad);
    b.compute("copy from bucket", Phase::reduce, pass(Kernel::copy, c.grad, k.elements, bytes, bytes), {ref(k.bucket)},
              {ref(k.gradient)});
  }
}

namespace {

void reduce_low_rank(BlockBuilder& b, const Context& c, const ChunkPart::Bucket& k, size_t index) {
  const int64_t r = c.strategy().ddp.powersgd_rank, e = size_of(c.grad);
  const auto scaled = [&](BufferRef x, double factor) {
    const int64_t n = c.plan.buffer(x.buffer).elements();
    Compute op = pass(Kernel::scale, c.grad, n, n * e, n * e);
    op.scalar = factor;
    b.compute("scale gradients", Phase::reduce, op, {x}, {x});
  };
  const auto sum = [&](const char* what, const Refs& x) {
    int64_t bytes = 0;
    for (const BufferRef& one : x) bytes += c.plan.buffer(one.buffer).bytes().n;
    const uint32_t sent =
        b.op(fmt::format("dp all-reduce {} {}", what, index), Phase::reduce, Stream::data,
             plan::Collective{plan::CollectiveKind::all_reduce, plan::Reduction::sum, c.grad, c.copies_group(k), bytes},
             x, x);
    b.before_next_compute({Wait::Kind::op, sent});  // what follows reads views of it
  };
  const auto product = [&](const char* name, Compute op, BufferRef x, BufferRef y, BufferRef out) {
    b.compute(name, Phase::reduce, op, {x, y}, {out});
  };
  const double share = 1.0 / static_cast<double>(c.n.dp);
  Refs plain;  // what is not compressed
  for (const BufferId id : k.vectors) plain.push_back(ref(id));
  for (const BufferRef& x : plain) scaled(x, share);
  if (!plain.empty()) sum("uncompressed", plain);
  for (const auto& x : k.matrices) {
    const BufferRef m = ref(x.gradient);
    const int64_t n = x.n * x.m;
    if (x.error.valid()) {
      b.compute("add error", Phase::reduce, streaming(Kernel::add, c.grad, x.n, x.m, 2 * n * e, n * e, 1),
                {m, ref(x.error)}, {m});
      b.compute("keep input", Phase::reduce, pass(Kernel::copy, c.grad, n, n * e, n * e), {m}, {ref(x.error)});
    }
    product("powersgd p", gemm(x.n, r, x.m, c.grad, c.grad, false, false, false), m, ref(x.q), ref(x.p));
    if (&x != &k.matrices.front()) continue;
    b.keep_out(k.left);  // written and read by its views
    b.reserve_here(ref(k.left));
  }
  if (!k.matrices.empty()) {
    sum("p", {ref(k.left)});
    for (const auto& x : k.matrices) {
      // Column by column, each less its part along those before: r^2 passes over n values, twice 2 n r^2 FLOPs.
      Compute op = streaming(Kernel::orthogonalize, c.grad, x.n, r, x.n * r * (r + 1) / 2 * e, x.n * r * e,
                             2 * static_cast<double>(r), static_cast<int>(std::min<int64_t>(3 * r, 60000)));
      b.compute("powersgd orthogonalize", Phase::reduce, op, {ref(x.p)}, {ref(x.p)});
      product("powersgd q", gemm(x.m, r, x.n, c.grad, c.grad, true, false, false), ref(x.gradient), ref(x.p), ref(x.q));
    }
    sum("q", {ref(k.right)});
    scaled(ref(k.right), share);
    for (const auto& x : k.matrices) {
      product("powersgd decompress", gemm(x.n, x.m, r, c.grad, c.grad, false, true, false), ref(x.p), ref(x.q),
              ref(x.gradient));
      if (!x.error.valid()) continue;
      scaled(ref(x.p), -1);
      product("powersgd error", gemm(x.n, x.m, r, c.grad, c.grad, false, true, true), ref(x.p), ref(x.q), ref(x.error));
    }
  }
  // torch.cuda.synchronize at the end of the hook.
  b.op("hook waits for the device", Phase::reduce, Stream::compute, plan::HostWait{}, {}, {},
       {tail(Stream::compute), tail(Stream::data)});
  if (k.left.valid()) b.release_here(ref(k.left));
}

}  // namespace

}  // namespace wt::lower
