#include "sim/cost/compute_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/text.hpp"
#include "sim/collective/collective_cost.hpp"
#include "sim/cost/attention_model.hpp"
#include "sim/cost/gemm_model.hpp"
#include "sim/cost/hosts.hpp"
#include "sim/cost/kernel_set.hpp"
#include "sim/cost/measured_kernels.hpp"
#include "sim/price_seconds.hpp"

namespace wt::sim {
namespace {

using plan::Compute;
using plan::Kernel;

/// What moves the bytes of a kernel that memory bounds.
enum class Class : uint8_t { stream, pointwise, norm, norm_backward, reduce, loss, gather, scatter, transpose };

Class class_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::norm_forward:
    case Kernel::qk_norm_forward:
    case Kernel::softmax_forward:
    case Kernel::softmax_backward: return Class::norm;
    case Kernel::norm_backward:
    case Kernel::qk_norm_backward: return Class::norm_backward;
    case Kernel::bias_gradient:
    case Kernel::square_sum:
    case Kernel::position_backward:
    case Kernel::orthogonalize: return Class::reduce;
    case Kernel::loss_max:
    case Kernel::loss_sums:
    case Kernel::loss_forward:
    case Kernel::loss_backward: return Class::loss;
    case Kernel::permute:
    case Kernel::unpermute:
    case Kernel::embedding_forward: return Class::gather;
    case Kernel::embedding_backward: return Class::scatter;
    case Kernel::concat_columns:
    case Kernel::slice_columns:
    case Kernel::split_latent:
    case Kernel::join_latent:
    case Kernel::latent_assemble:
    case Kernel::latent_scatter:
    case Kernel::split_columns:
    case Kernel::split_qkv:
    case Kernel::join_qkv:
    case Kernel::gather_sequence:
    case Kernel::deal_sequence:
    case Kernel::transpose: return Class::transpose;
    case Kernel::add:
    case Kernel::copy:
    case Kernel::regroup:
    case Kernel::fill_zero:
    case Kernel::scale:
    case Kernel::cast: return Class::stream;
    default: return Class::pointwise;
  }
}

double share_of(const Facts& f, Class c) {
  switch (c) {
    case Class::stream: return 1;
    case Class::pointwise: return f.class_pointwise;
    case Class::norm: return f.class_norm;
    case Class::norm_backward: return f.class_norm_backward;
    case Class::reduce: return f.class_reduce;
    case Class::loss: return f.class_loss;
    case Class::gather: return f.class_gather;
    case Class::scatter: return f.class_scatter;
    case Class::transpose: return f.class_transpose;
  }
  return 1;
}

bool is_matrix(Kernel kernel) {
  switch (kernel) {
    case Kernel::gemm:
    case Kernel::grouped_gemm:
    case Kernel::attention_forward:
    case Kernel::attention_backward:
    case Kernel::latent_attention_forward:
    case Kernel::latent_attention_backward:
    case Kernel::block_attention_forward:
    case Kernel::block_attention_backward:
    case Kernel::scores_forward:
    case Kernel::context_forward:
    case Kernel::context_backward:
    case Kernel::scores_backward: return true;
    default: return false;
  }
}

}  // namespace

struct ComputeCost::Impl {
  DeviceSpec device;
  std::vector<HostProfile> hosts;
  bool measured = false;                   // a kernel set was read
  std::optional<MeasuredKernels> kernels;  // the device's own curves
  Facts facts;
  GemmModel gemm;
  AttentionModel attention;
  double clock = 1;  // in training, relative to the chip that was measured
  std::string own_source, gemm_source, attention_source, memory_source, model_source;

  Chip chip(DType dtype) const {
    Chip c;
    // What the device file leaves out is that of the measured chip; products in a dtype without a rate are refused before.
    if (const auto peak = device.peak.find(dtype); peak != device.peak.end())
      c.flops_per_second = peak->second.n;
    else
      c.flops_per_second = facts.peak(size_of(dtype));
    if (const auto plain = device.peak.find(DType::f32); plain != device.peak.end())
      c.plain_flops_per_second = plain->second.n;
    c.multiprocessors =
        device.multiprocessors > 0 ? static_cast<double>(device.multiprocessors) : facts.multiprocessors;
    c.memory_bytes_per_second = device.memory_bandwidth.n;
    c.l2_bytes = static_cast<double>(device.l2_cache.n);
    c.power_w = device.power_watts > 0 ? device.power_watts : facts.power_w;
    return c;
  }

  CostEstimate result(double seconds, Bound bound, double rate, double peak, std::string_view source) const {
    return {price_seconds(seconds), bound, peak > 0 ? rate / peak : 0, source};
  }

  CostEstimate roofline(const Compute& op) const {
    const Chip c = chip(op.dtype);
    const double bytes = static_cast<double>(op.work.bytes_read + op.work.bytes_written);
    const double compute = is_matrix(op.kernel) && c.flops_per_second > 0 ? op.work.flops / c.flops_per_second : 0;
    const double memory = c.memory_bytes_per_second > 0 ? bytes / c.memory_bytes_per_second : 0;
    if (compute >= memory) return result(compute, Bound::compute, c.flops_per_second, c.flops_per_second, "roofline");
    return result(memory, Bound::memory, 1, 1, "roofline");
  }

  std::optional<CostEstimate> own_curve(const Compute& op) const {
    const auto e = kernels ? kernels->estimate(op) : std::nullopt;
    if (!e) return std::nullopt;
    const double bytes = static_cast<double>(op.work.bytes_read + op.work.bytes_written);
    if (e->flops_share >= 0.5)
      return result(e->seconds, Bound::compute, op.work.flops / e->seconds, chip(op.dtype).flops_per_second,
                    own_source);
    const Bound bound = e->bytes_share + e->flops_share >= 0.5 ? Bound::memory : Bound::launch;
    return result(e->seconds, bound, bytes / e->seconds, device.memory_bandwidth.n, own_source);
  }

  CostEstimate gemm_estimate(const GemmShape& s, const Chip& c, int calls) const {
    const auto e = gemm.estimate(s, c, Regime::training);
    const double rate = s.flops() / e.seconds;
    return result(e.seconds * calls, e.memory_bound ? Bound::memory : Bound::compute,
                  e.memory_bound ? (s.groups * (s.m * s.k + s.n * s.k) * static_cast<double>(s.bytes) +
                                    s.groups * s.m * s.n * (s.output + s.accumulate)) /
                                       e.seconds
                                 : rate,
                  e.memory_bound ? c.memory_bytes_per_second : c.flops_per_second,
                  e.measured ? gemm_source : model_source);
  }

  CostEstimate product(const Compute& op) const {
    GemmShape s;
    const int pieces = std::max<int>(1, op.pieces);
    s.m = static_cast<double>(op.dims[0]) / pieces;
    s.n = static_cast<double>(op.dims[1]);
    s.k = static_cast<double>(op.dims[2]);
    s.groups = op.dims[3] > 1 ? static_cast<double>(op.dims[3]) : 1;
    s.bytes = size_of(op.dtype);
    s.layout = op.transpose_a ? Layout::nt : op.transpose_b ? Layout::tn : Layout::nn;
    // What C costs is what the op writes; an accumulating product reads the same again.
    const double elements = std::max(1.0, s.groups * s.m * s.n * pieces);
    s.output = std::clamp(static_cast<double>(op.work.bytes_written) / elements, 1.0, 8.0);
    if (op.work.bytes_written == 0) s.output = op.accumulate ? 4 : s.bytes == 1 ? 2 : static_cast<double>(s.bytes);
    s.accumulate = op.accumulate ? s.output : 0;
    return gemm_estimate(s, chip(op.dtype), pieces);
  }

  CostEstimate unfused(const Compute& op) const {
    const auto [batch, seq, heads, kv_heads, head] = op.dims;
    GemmShape s;
    s.groups = static_cast<double>(batch * heads);
    s.bytes = size_of(op.dtype);
    s.output = static_cast<double>(s.bytes);
    s.m = static_cast<double>(seq);
    const Chip c = chip(op.dtype);
    const double long_side = static_cast<double>(seq), short_side = static_cast<double>(head);
    const auto scores = [&] {
      s.n = long_side, s.k = short_side, s.layout = Layout::tn;
      return gemm_estimate(s, c, 1);
    };
    const auto context = [&] {
      s.n = short_side, s.k = long_side, s.layout = Layout::nn;
      return gemm_estimate(s, c, 1);
    };
    switch (op.kernel) {
      case Kernel::scores_forward: return scores();
      case Kernel::context_forward: return context();
      case Kernel::context_backward: {  // dP = dO V^T, dV = P^T dO
        CostEstimate both = scores();
        both.time += context().time;
        return both;
      }
      default: {  // dQ = dS K, dK = dS^T Q
        CostEstimate both = context();
        both.time += both.time;
        return both;
      }
    }
  }

  CostEstimate flash(const Compute& op) const {
    AttentionShape s;
    s.batch = static_cast<double>(op.dims[0]);
    s.seq = static_cast<double>(op.dims[1]);
    s.heads = static_cast<double>(op.dims[2]);
    s.kv_heads = static_cast<double>(op.dims[3]);
    s.head_dim = static_cast<double>(op.dims[4]);
    const bool latent = op.kernel == Kernel::latent_attention_forward || op.kernel == Kernel::latent_attention_backward;
    if (latent) {  // q and k are wider than v: the mean, as the measured points are entered
      s.kv_heads = s.heads;
      s.head_dim = static_cast<double>(op.dims[3] + op.dims[4]) / 2;
    }
    const bool block = op.kernel == Kernel::block_attention_forward || op.kernel == Kernel::block_attention_backward;
    s.causal = op.causal && (!block || op.function == 0);  // of another rank's keys a row sees all or none
    s.backward = op.kernel == Kernel::attention_backward || op.kernel == Kernel::latent_attention_backward ||
                 op.kernel == Kernel::block_attention_backward;
    s.flops = attention_flops(s);
    if (op.document > 0 && op.document < op.dims[1]) {  // tiles of a document, as many more sequences of that length
      s.batch *= s.seq / static_cast<double>(op.document);
      s.seq = static_cast<double>(op.document);
    }
    if (op.work.flops > 0) s.flops = op.work.flops;  // a window sees less
    const Chip c = chip(op.dtype == DType::f8 ? DType::bf16 : op.dtype);
    const auto e = attention.estimate(s, c, clock);
    return result(e.seconds, Bound::compute, s.flops / e.seconds, c.flops_per_second,
                  e.measured ? attention_source : model_source);
  }

  CostEstimate streaming(const Compute& op) const {
    const double bytes = static_cast<double>(op.work.bytes_read + op.work.bytes_written);
    const double launches = std::max<double>(1, op.launches);
    // Up to half of L2 finds its data where the kernel before left it; the gain is gone at twice L2.
    const double l2 = std::max(1.0, static_cast<double>(device.l2_cache.n));
    const double x = std::clamp(std::log2(bytes / launches / l2 * 2) / 2, 0.0, 1.0);
    const double gain = facts.l2_gain + (1 - facts.l2_gain) * x;
    const double rate = device.memory_bandwidth.n * facts.stream_share * gain * share_of(facts, class_of(op.kernel));
    const double fixed = launches * facts.kernel_us * 1e-6, moving = bytes / rate;
    const double seconds = fixed + moving;
    return result(seconds, fixed > moving ? Bound::launch : Bound::memory, bytes / seconds, device.memory_bandwidth.n,
                  memory_source);
  }
};

Result<ComputeCost> ComputeCost::load(const DeviceSpec& device, const std::string& data) {
  auto impl = std::make_shared<Impl>();
  impl->device = device;
  Diagnostics errors;
  if (auto hosts = read_hosts(data + "/hosts.csv"))
    impl->hosts = std::move(hosts.value());
  else
    errors = hosts.errors();
  if (device.measured) {
    auto kernels = MeasuredKernels::make(*device.measured);
    if (kernels)
      impl->kernels = std::move(kernels.value());
    else
      errors.insert(errors.end(), kernels.errors().begin(), kernels.errors().end());
  }
  if (!device.kernels.empty()) {
    auto set = read_kernel_set(data, device.kernels);
    if (set) {
      impl->measured = true;
      impl->facts = set.value().facts();
      impl->gemm = GemmModel(set.value());
      impl->attention = AttentionModel(set.value());
      impl->clock = clock_of(impl->facts, impl->chip(DType::bf16), Regime::training) /
                    clock_of(impl->facts, chip_of(impl->facts, 2), Regime::training);
    } else {
      errors.insert(errors.end(), set.errors().begin(), set.errors().end());
    }
  }
  if (!errors.empty()) return errors;
  if (device.measured) impl->own_source = fmt::format("measured: {}", device.measured->source);
  impl->gemm_source = fmt::format("measured: data/kernels/{}/gemm.csv", device.kernels);
  impl->attention_source = fmt::format("measured: data/kernels/{}/attention.csv", device.kernels);
  impl->memory_source = fmt::format("model: data/kernels/{}/device.csv", device.kernels);
  impl->model_source = fmt::format("model: data/kernels/{}/tiles.csv", device.kernels);
  ComputeCost cost;
  cost.impl_ = std::move(impl);
  return cost;
}

CostEstimate ComputeCost::estimate(const Compute& op) const {
  if (const auto own = impl_->own_curve(op)) return *own;
  if (!impl_->measured) return impl_->roofline(op);
  switch (op.kernel) {
    case Kernel::gemm:
    case Kernel::grouped_gemm: return impl_->product(op);
    case Kernel::latent_attention_forward:
    case Kernel::latent_attention_backward:
    case Kernel::attention_forward:
    case Kernel::attention_backward:
    case Kernel::block_attention_forward:
    case Kernel::block_attention_backward: return impl_->flash(op);
    case Kernel::scores_forward:
    case Kernel::scores_backward:
    case Kernel::context_forward:
    case Kernel::context_backward: return impl_->unfused(op);
    default: return impl_->streaming(op);
  }
}

Time ComputeCost::device_gap() const {
  if (impl_->device.measured) return impl_->device.measured->op_overhead;
  return Time::from_seconds(impl_->facts.gap_us * 1e-6);
}

namespace {
const HostProfile& profile_of(const std::vector<HostProfile>& hosts, const std::string& name) {
  const auto found = std::ranges::find(hosts, name, &HostProfile::name);
  return found != hosts.end() ? *found : *std::ranges::find(hosts, "default", &HostProfile::name);
}
}  // namespace

Time ComputeCost::host_issue(const TrainingSpec& training) const {
  if (training.host_issue > Time()) return training.host_issue;
  if (impl_->device.measured) return {};  // on such a device the host takes part in op_overhead
  return Time::from_seconds(profile_of(impl_->hosts, training.host_profile).kernel_seconds);
}

Time ComputeCost::host_operator(const TrainingSpec& training, plan::Phase phase) const {
  if (training.host_issue > Time() || impl_->device.measured) return {};
  const HostProfile& host = profile_of(impl_->hosts, training.host_profile);
  switch (phase) {
    case plan::Phase::forward:
    case plan::Phase::recompute: return Time::from_seconds(host.forward_seconds);
    case plan::Phase::backward_input:
    case plan::Phase::backward_weight: return Time::from_seconds(host.backward_seconds);
    default: return {};
  }
}

Time ComputeCost::host_checkpoint(const TrainingSpec& training) const {
  if (training.host_issue > Time() || impl_->device.measured) return {};
  return Time::from_seconds(profile_of(impl_->hosts, training.host_profile).checkpoint_seconds);
}

Time ComputeCost::host_issue_collective(const TrainingSpec& training) const {
  if (impl_->device.measured) return {};
  return Time::from_seconds(profile_of(impl_->hosts, training.host_profile).collective_seconds);
}

Status ComputeCost::check(const TrainingSpec& training) const {
  if (std::ranges::find(impl_->hosts, training.host_profile, &HostProfile::name) != impl_->hosts.end())
    return ok_status();
  std::vector<std::string_view> names;
  for (const HostProfile& host : impl_->hosts) names.push_back(host.name);
  return Diagnostic{"training.host_profile", fmt::format("unknown profile '{}'", training.host_profile),
                    suggest(training.host_profile, names)};
}

double ComputeCost::slowdown_beside_collective(const Compute& op, int64_t channels) const {
  if (channels <= 0) return 1;
  // What is left of the device; a kernel on a core that is wholly taken stands still but for a trifle.
  if (impl_->device.measured)
    return 1 / std::max(1e-4, 1 - static_cast<double>(channels) / static_cast<double>(kWholeDevice));
  if (!impl_->measured) return 1;
  const Facts& f = impl_->facts;
  const Chip c = impl_->chip(op.dtype);
  const double n = static_cast<double>(channels);
  if (is_matrix(op.kernel)) return 1 / (1 - std::min(f.overlap_most, n / c.multiprocessors));
  // Each channel reads and writes memory at the rate of its links.
  const double taken = n * f.channel_gbps * 1e9 * 2 / c.memory_bytes_per_second;
  return 1 / (1 - std::min(f.overlap_most, taken));
}

}  // namespace wt::sim
