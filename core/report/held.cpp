#include "core/report/held.hpp"

#include <algorithm>
#include <array>

#include "core/base/check.hpp"
#include "core/report/allocator.hpp"

namespace wt::report {

namespace {

constexpr uint32_t kNobody = ~0u;

/// Micro-batches of a step that decide what the allocator holds: those until one more than ever are in flight has been
/// through, and the last, whose backward may differ. Those between repeat what was. The number of each among those kept,
/// kNobody for the others.
std::vector<uint32_t> deciding_micro_batches(const plan::Plan& plan, const std::vector<plan::Invocation>& order) {
  std::vector<uint32_t> number(static_cast<size_t>(plan.micro_batches));
  std::vector<uint8_t> uses(number.size());  // of chunk 0: 1 its forward was, 2 its backward
  int64_t in_flight = 0, most = 0;
  bool all = false;
  for (const plan::Invocation& i : order) {
    all |= i.bindings == 2;
    if (i.bindings != 1 || i.binding[0].chunk != 0 || plan.block(i.block).name.find("ward") == std::string::npos)
      continue;
    const int use = ++uses[i.binding[0].micro_batch];
    in_flight += use == 1 ? 1 : use == 2 ? -1 : 0;
    most = std::max(most, in_flight);
  }
  uint32_t next = 0;
  for (int64_t k = 0; k < plan.micro_batches; ++k)
    number[static_cast<size_t>(k)] = all || k < most + 2 || k + 1 == plan.micro_batches ? next++ : kNobody;
  return number;
}

bool is_backward(plan::Phase p) {
  return p == plan::Phase::recompute || p == plan::Phase::backward_input || p == plan::Phase::backward_weight;
}

}  // namespace

// DeepSpeed has no buffer of 16-bit gradients: autograd makes a tensor for each parameter in the backward, and the step
// drops them (with fp32 gradients in a buffer beside them: each backward drops those of the one before).
Requests::Requests(const JobSpec& job, const plan::Plan& plan, const std::vector<int64_t>& device)
    : plan_(plan),
      device_(device),
      tensors_(job.strategy.data_parallel == DataParallel::zero1 ||
               job.strategy.gradient_copies == GradientCopies::flat_step),
      low_(job.strategy.gradient_dtype == DType::f32 && working_dtype(job.training) != DType::f32),
      low_dtype_(working_dtype(job.training)),
      skipped_(plan.buffers.size()),
      first_(plan.buffers.size()),
      blocks_(plan.blocks.size()) {
  int64_t layers = 0;
  for (const plan::Part& p : plan.parts) layers = std::max(layers, p.layers);
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const plan::Buffer& b = plan.buffers[i];
    skipped_[i] = tensors_ && b.role == plan::Role::gradient && b.scope == plan::Scope::persistent &&
                  (low_ ? b.name.starts_with("low_grads") : true);
    uint32_t& region = b.scope == plan::Scope::persistent    ? chunks_
                       : b.scope == plan::Scope::micro_batch ? batches_
                                                             : ones_;
    first_[i] = region;
    region += b.per_layer ? static_cast<uint32_t>(layers + 2) : 1;  // layers -1 (none) to layers
  }
  for (size_t i = 0; i < plan.blocks.size(); ++i) unroll(plan.blocks[i], blocks_[i]);
}

void Requests::unroll(const plan::Block& block, Block& out) const {
  out.drops_gradients = tensors_ && low_ && block.name.starts_with("backward");
  for (const plan::Segment& s : block.segments) {
    // The requests of one iteration, then the others by the distance of their layers.
    const size_t begin = out.requests.size();
    std::vector<int32_t> step;
    auto add = [&](const plan::BufferRef& r, Act act, int64_t bytes) {
      const plan::Buffer& b = plan_.buffer(r.buffer);
      const int64_t layer = b.per_layer ? s.first_layer + r.layer_offset + 1 : 0;
      const Region region = b.scope == plan::Scope::persistent    ? Region::chunk
                            : b.scope == plan::Scope::micro_batch ? Region::micro_batch
                                                                  : Region::one;
      out.requests.push_back({first_[r.buffer.v] + static_cast<uint32_t>(layer), r.binding, act, region, bytes});
      step.push_back(b.per_layer ? s.layer_step : 0);
    };
    for (uint32_t o = s.first_op; o < s.first_op + s.op_count; ++o) {
      const plan::Op& op = block.ops[o];
      const plan::BufferRef* refs = block.refs.data();
      if (tensors_ && is_backward(op.phase))
        for (uint32_t k = 0; k < op.writes.count; ++k) {
          const plan::BufferRef& r = refs[op.writes.begin + k];
          const plan::Buffer& b = plan_.buffer(r.buffer);
          if (b.role == plan::Role::gradient && b.view)
            add(r, Act::touch, b.elements() * size_of(low_ ? low_dtype_ : b.dtype));
        }
      auto each = [&](const plan::Range& range, Act act) {
        for (uint32_t k = 0; k < range.count; ++k) {
          const plan::BufferRef& r = refs[range.begin + k];
          if (const int64_t bytes = device_[r.buffer.v]; bytes > 0 && !skipped_[r.buffer.v]) add(r, act, bytes);
        }
      };
      each(op.reserves, Act::reserve);
      each(op.releases, Act::release);
    }
    const size_t count = out.requests.size() - begin;
    for (uint32_t n = 1; n < s.iterations; ++n)
      for (size_t k = 0; k < count; ++k) {
        Request r = out.requests[begin + k];
        r.instance = static_cast<uint32_t>(static_cast<int64_t>(r.instance) + static_cast<int64_t>(n) * step[k]);
        out.requests.push_back(r);
      }
  }
}

Held Requests::run(const plan::Program& program, int64_t limit) {
  CachingAllocator& allocator = allocator_;
  allocator.restart(limit);
  const auto chunks = static_cast<uint32_t>(std::max<size_t>(1, program.chunks.size()));
  std::vector<uint32_t> numbers;
  uint32_t kept = 1;
  for (const plan::StepOrder& step : program.steps) {
    numbers = deciding_micro_batches(plan_, step.order);
    for (const uint32_t n : numbers)
      if (n != kNobody) kept = std::max(kept, n + 1);
  }
  // Who holds what, by region: instances of either half of an invocation, of each chunk, of each chunk and micro-batch.
  const size_t of_chunks = 2 * size_t{ones_}, of_batches = of_chunks + size_t{chunks} * chunks_;
  std::vector<CachingAllocator::Handle> live(of_batches + size_t{kept} * chunks * batches_, kNobody);
  std::vector<size_t> gradients;
  auto drop_gradients = [&] {
    for (const size_t at : gradients) {
      allocator.release(live[at]);
      live[at] = kNobody;
    }
    gradients.clear();
  };
  auto run = [&](const std::vector<plan::Invocation>& order, bool all) {
    for (const plan::Invocation& i : order) {
      std::array<size_t, 2> chunk{}, batch{};
      std::array<bool, 2> skip{true, true};  // of a pair each half decides for itself
      for (int k = 0; k < std::max<int>(i.bindings, 1); ++k) {
        const uint32_t n = all ? 0 : numbers[i.binding[static_cast<size_t>(k)].micro_batch];
        skip[static_cast<size_t>(k)] = n == kNobody;
        const size_t c = i.binding[static_cast<size_t>(k)].chunk;
        chunk[static_cast<size_t>(k)] = of_chunks + c * chunks_;
        batch[static_cast<size_t>(k)] = of_batches + (size_t{n} * chunks + c) * batches_;
      }
      if (skip[0] && skip[1]) continue;
      const Block& block = blocks_[i.block.v];
      if (block.drops_gradients) drop_gradients();
      for (const Request& r : block.requests) {
        if (r.region == Region::micro_batch && skip[r.binding]) continue;
        const size_t at = r.instance + (r.region == Region::one     ? size_t{r.binding} * ones_
                                        : r.region == Region::chunk ? chunk[r.binding]
                                                                    : batch[r.binding]);
        if (r.act == Act::release) {
          WT_CHECK(live[at] != kNobody, "released and not reserved");
          allocator.release(live[at]);
          live[at] = kNobody;
        } else if (r.act == Act::reserve || live[at] == kNobody) {
          live[at] = allocator.reserve(r.bytes);
          if (r.act == Act::touch) gradients.push_back(at);
        }
      }
    }
  };
  run(program.setup, true);
  for (int time = 0; time < 2; ++time)
    for (const plan::StepOrder& step : program.steps) {
      numbers = deciding_micro_batches(plan_, step.order);
      run(step.order, false);
      if (!low_) drop_gradients();
    }
  return {allocator.peak(), allocator.failed()};
}

}  // namespace wt::report
