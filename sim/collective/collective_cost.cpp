#include "sim/collective/collective_cost.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "sim/collective/algorithm.hpp"
#include "sim/collective/measured_transfers.hpp"
#include "sim/collective/nccl_constants.hpp"
#include "sim/collective/topology.hpp"
#include "sim/price_seconds.hpp"

namespace wt::sim {
namespace {

using plan::CollectiveKind;
using plan::Reduction;

/// Times of one collective on one group at kPerOctave sizes per factor of two, made monotone: at a switch of protocol the
/// model may fall, a reader of curves would not believe it, and a larger buffer could always be sent by the older choice.
constexpr int kPerOctave = 4, kOctaves = 44;

struct Point {
  double us = 0, latency_us = 0;
  int64_t channels = 0;
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
};
using Curve = std::array<Point, kPerOctave * kOctaves + 1>;

/// Sizes 2^o * (1, 1.25, 1.5, 1.75): exact in double, and a straight line between neighbours is exact for latency + bytes / B.
double size_at(size_t i) {
  return std::ldexp(1 + static_cast<double>(i % kPerOctave) / kPerOctave, static_cast<int>(i / kPerOctave));
}

struct Key {
  CollectiveKind kind{};
  bool switch_can_reduce = false;
  GroupShape shape;
  int64_t copies = 0;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& k) const {
    uint64_t h = 0x9e3779b97f4a7c15ull;
    const auto mix = [&](uint64_t v) {
      h = (h ^ v) * 0xff51afd7ed558ccdull;
      h ^= h >> 32;
    };
    mix(static_cast<uint64_t>(k.kind) * 2 + k.switch_can_reduce);
    mix(static_cast<uint64_t>(k.shape.ranks) << 32 ^ static_cast<uint64_t>(k.copies));
    mix(static_cast<uint64_t>(k.shape.nodes) << 32 ^ static_cast<uint64_t>(k.shape.domains));
    mix(static_cast<uint64_t>(k.shape.ranks_per_node) << 32 ^ static_cast<uint64_t>(k.shape.nodes_per_leaf) << 1 ^
        k.shape.crosses_leaf);
    mix(std::hash<double>{}(k.shape.nic_share));
    return h;
  }
};

/// The arithmetic of NVLink SHARP. An average of floats is lowered to a sum of scaled values, which the switch cannot do.
bool switch_reduces(Reduction reduction, DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16: return reduction != Reduction::average;
    case DType::f32:
    case DType::f64: return reduction == Reduction::sum;
    case DType::i32: return true;
    case DType::f8:
    case DType::u8: return false;
  }
  return false;
}

}  // namespace

struct CollectiveCost::Impl {
  ClusterSpec cluster;
  NcclOptions options;
  NcclConstants constants;
  MeasuredTransfers measured{{}};
  mutable std::shared_mutex mutex;
  mutable std::unordered_map<Key, std::unique_ptr<const Curve>, KeyHash> curves;

  /// Nothing: the machine is modelled, or this kind of transfer was not measured.
  std::optional<CollectiveEstimate> from_measurements(TransferKind kind, DType dtype, int64_t bytes, int64_t ranks,
                                                      int64_t nodes) const {
    const auto t = measured.estimate(kind, dtype, static_cast<double>(bytes), ranks, nodes);
    if (!t) return std::nullopt;
    return CollectiveEstimate{.time = price_seconds(t->seconds),
                              .channels = std::llround(t->device_share * kWholeDevice),
                              .latency_seconds = t->latency,
                              .bandwidth = t->bandwidth,
                              .measured = true};
  }

  Situation situation(const Key& key, bool real) const {
    Situation s = situation_of(cluster, constants, key.kind, key.shape, real);
    s.copies = key.copies;
    s.collnet = options.collnet;
    s.switch_can_reduce = key.switch_can_reduce && options.nvls && cluster.node.scale_up.sharp;
    return s;
  }

  Point price(const Situation& tuner, const Situation& real, double bytes) const {
    const AlgorithmModel* best = nullptr;
    Protocol protocol = Protocol::simple;
    double least = 0;
    // What was forced but cannot run is dropped, first the protocol, then the algorithm.
    for (int given_up = 0; !best && given_up < 3; ++given_up)
      for (const AlgorithmModel* a : all_algorithms()) {
        if (given_up < 2 && options.algorithm && a->id != *options.algorithm) continue;
        for (const Protocol p : {Protocol::ll, Protocol::ll128, Protocol::simple}) {
          if (given_up < 1 && options.protocol && p != *options.protocol) continue;
          if (!a->available(tuner, p)) continue;
          const double us = a->terms(tuner, p, bytes).us(bytes);
          if (!best || us < least) best = a, protocol = p, least = us;
        }
      }
    WT_CHECK(best, "no algorithm for {} over {} ranks", plan::to_text(tuner.kind), tuner.ranks);
    const Terms t = best->terms(real, protocol, bytes);
    // What was measured of NCCL says nothing of other kernels.
    const double ratio =
        real.shifts() || real.copies > 0
            ? 1
            : constants.execution_ratio(best->id, protocol, real.span(), t.latency_us, bytes / (t.gbps * 1e3));
    return {.us = t.us(bytes) * ratio,
            .latency_us = t.latency_us * ratio,
            .channels = best->blocks(real),
            .algorithm = best->id,
            .protocol = protocol};
  }

  std::unique_ptr<const Curve> make_curve(const Key& key) const {
    const Situation tuner = situation(key, false), real = situation(key, true);
    auto curve = std::make_unique<Curve>();
    // Time never falls while one algorithm and protocol run; where NCCL's tuner changes late, it does.
    for (size_t i = 0; i < curve->size(); ++i) {
      Point& p = (*curve)[i];
      p = price(tuner, real, size_at(i));
      if (i == 0) continue;
      const Point& before = (*curve)[i - 1];
      if (p.algorithm == before.algorithm && p.protocol == before.protocol) p.us = std::max(before.us, p.us);
    }
    return curve;
  }

  const Curve& curve_of(const Key& key) const {
    {
      const std::shared_lock lock(mutex);
      if (const auto it = curves.find(key); it != curves.end()) return *it->second;
    }
    auto made = make_curve(key);
    const std::unique_lock lock(mutex);
    return *curves.try_emplace(key, std::move(made)).first->second;
  }
};

Result<CollectiveCost> CollectiveCost::load(const ClusterSpec& cluster, const NcclOptions& options,
                                            const std::string& data) {
  auto constants = NcclConstants::read(cluster, data);
  if (!constants) return constants.errors();
  auto impl = std::make_shared<Impl>();
  impl->cluster = cluster;
  impl->options = options;
  impl->measured = MeasuredTransfers(cluster.transfers);
  impl->constants = std::move(constants.value());
  return CollectiveCost(std::move(impl));
}

GroupShape CollectiveCost::shape_of(std::span<const RankId> members) const {
  WT_CHECK(!members.empty());
  const ClusterSpec& cluster = impl_->cluster;
  const int64_t devices = std::max<int64_t>(1, cluster.node.devices);
  const int64_t domain = std::max(devices, cluster.node.scale_up.domain);
  const int64_t per_leaf = cluster.fabric.nodes_per_leaf;
  std::vector<int64_t> ranks;
  for (const RankId r : members) ranks.push_back(r.v);
  std::ranges::sort(ranks);
  // Number of different r / unit, and the longest run of one value, over `values` (sorted).
  struct Count {
    int64_t groups = 0, most = 0;
  };
  const auto count = [](std::span<const int64_t> values, int64_t unit) {
    Count c;
    int64_t run = 0, last = -1;
    for (const int64_t v : values) {
      if (v / unit != last) ++c.groups, run = 0;
      last = v / unit;
      c.most = std::max(c.most, ++run);
    }
    return c;
  };
  GroupShape shape;
  shape.ranks = static_cast<int64_t>(ranks.size());
  const Count in_nodes = count(ranks, devices);
  shape.nodes = in_nodes.groups;
  shape.ranks_per_node = in_nodes.most;
  shape.domains = count(ranks, domain).groups;
  shape.nic_share = shape.nodes > 1 ? static_cast<double>(shape.ranks_per_node) / static_cast<double>(devices) : 1;
  if (per_leaf > 0) {
    std::vector<int64_t> nodes;
    for (const int64_t r : ranks)
      if (nodes.empty() || nodes.back() != r / devices) nodes.push_back(r / devices);
    const Count leaves = count(nodes, per_leaf);
    shape.crosses_leaf = leaves.groups > 1;
    shape.nodes_per_leaf = leaves.most;
  }
  return shape;
}

CollectiveEstimate CollectiveCost::estimate(CollectiveKind kind, Reduction reduction, DType dtype, int64_t bytes,
                                            const GroupShape& shape, int64_t copies) const {
  WT_CHECK(bytes >= 0 && shape.ranks >= 1, "{} bytes, {} ranks", bytes, shape.ranks);
  if (shape.ranks == 1) return {};
  if (const auto m = impl_->from_measurements(kind_of(kind), dtype, bytes, shape.ranks, shape.nodes)) return *m;
  const bool reduces = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
  const Curve& curve = impl_->curve_of({kind, !reduces || switch_reduces(reduction, dtype), shape, copies});
  const auto size = static_cast<double>(std::max<int64_t>(1, bytes));
  int exponent = 0;
  const double mantissa = 2 * std::frexp(size, &exponent);  // 1 <= mantissa < 2
  const auto i =
      std::min<size_t>(static_cast<size_t>((exponent - 1) * kPerOctave + static_cast<int>((mantissa - 1) * kPerOctave)),
                       curve.size() - 2);
  const Point &low = curve[i], &high = curve[i + 1];
  const double slope = (high.us - low.us) / (size_at(i + 1) - size_at(i));
  const double us = low.us + slope * (size - size_at(i));
  const double latency = std::min(low.latency_us, us);
  return {.time = price_seconds(us * 1e-6),
          .algorithm = low.algorithm,
          .protocol = low.protocol,
          .channels = low.channels,
          .latency_seconds = latency * 1e-6,
          .bandwidth = us > latency ? size / ((us - latency) * 1e-6) : 0};
}

int64_t CollectiveCost::message_channels() const {
  const int64_t nodes = impl_->cluster.nodes > 1 ? 2 : 1;
  const auto m = impl_->from_measurements(TransferKind::message, DType::f32, 1, 2, nodes);
  return m ? m->channels : 0;
}

CollectiveEstimate CollectiveCost::estimate_message(int64_t bytes, RankId from, RankId to, int64_t concurrent) const {
  WT_CHECK(bytes >= 0 && concurrent >= 1, "{} bytes, {} messages", bytes, concurrent);
  if (from == to) return {};
  const ClusterSpec& cluster = impl_->cluster;
  const NcclConstants& c = impl_->constants;
  const int64_t devices = std::max<int64_t>(1, cluster.node.devices);
  const int64_t domain = std::max(devices, cluster.node.scale_up.domain);
  const int64_t a = from.v, b = to.v;
  const int64_t nodes = a / devices == b / devices ? 1 : 2;
  if (const auto m = impl_->from_measurements(TransferKind::message, DType::f32, bytes, 2, nodes)) return *m;
  CollectiveEstimate e;
  e.algorithm = Algorithm::pairwise;
  e.channels = 2;
  double latency = c.message_us, rate = 0;
  if (a / domain == b / domain) {
    // Neighbours in a bridge pair use the bridge, other pairs of such a node PCIe.
    const bool bridged = cluster.node.scale_up.kind == ScaleUpKind::nvlink_pairs && a / 2 == b / 2;
    rate =
        in_node(
            cluster, c,
            bridged ? 2 : std::min<int64_t>(devices, cluster.node.scale_up.kind == ScaleUpKind::nvlink_pairs ? 3 : 2))
            .pair;
    e.channels = 16;
  } else {
    const FabricSpec& fabric = cluster.fabric;
    const double nic = fabric.nic_bandwidth.n * 1e-9;
    const double share = fabric.gpu_direct ? 1 : c.socket_share;
    // Up to 8 KiB go by LL; Simple, used throughout from 64 KiB, adds its fence and credit.
    const double simple = std::clamp((static_cast<double>(bytes) - 8192) / (65536 - 8192), 0.0, 1.0);
    latency += c.message_net_us + c.net_latency_us + c.message_simple_us * simple;
    // One message takes one NIC and not all of it; many messages share all NICs of the node.
    const double one = nic * c.message_net * share;
    const double all = nic * static_cast<double>(fabric.nics_per_node) * c.net_efficiency * share;
    rate = std::min(one, all / static_cast<double>(concurrent));
    const int64_t leaf = fabric.nodes_per_leaf * devices;
    if (leaf > 0 && a / leaf != b / leaf) rate /= std::max(1.0, fabric.oversubscription);
  }
  const double us = latency + static_cast<double>(bytes) / (rate * 1e3);
  e.time = price_seconds(us * 1e-6);
  e.latency_seconds = latency * 1e-6;
  e.bandwidth = rate * 1e9;
  return e;
}

}  // namespace wt::sim
