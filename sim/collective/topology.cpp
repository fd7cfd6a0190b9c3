#include "sim/collective/topology.hpp"

#include <algorithm>
#include <cmath>

namespace wt::sim {
namespace {

using plan::CollectiveKind;

constexpr int64_t kMaxSearchChannels = 32;  // NCCL: MAXCHANNELS / 2
constexpr double kSlowerBy = 0.49;          // it tries no channel slower than this share of the best so far
constexpr double kUsable = 0.98;  // the search does not fill a port to the last per cent when it raises a speed

double gbps(BytesPerSecond b) { return b.n * 1e-9; }

/// NICs next to `ranks` devices of a node: each device its own share, at least one.
int64_t nics_of(const ClusterSpec& cluster, int64_t ranks) {
  const int64_t nics = cluster.fabric.nics_per_node, devices = std::max<int64_t>(1, cluster.node.devices);
  return std::clamp<int64_t>((ranks * nics + devices - 1) / devices, std::min<int64_t>(1, nics), nics);
}

}  // namespace

InNode in_node(const ClusterSpec& cluster, const NcclConstants& c, int64_t ranks) {
  const ScaleUpSpec& up = cluster.node.scale_up;
  const double bandwidth = gbps(up.bandwidth), pcie = gbps(cluster.node.pcie_bandwidth);
  const auto devices = static_cast<double>(std::max<int64_t>(2, cluster.node.devices));
  const auto n = static_cast<double>(ranks);
  InNode in;
  const auto links = [&](double nominal, double per_link) {
    in.nvlink = true;
    in.nominal = nominal;
    in.tuner = nominal / c.link_nominal * c.link_gbps;
    in.ring = nominal * c.ring_share;
    in.ring_across = nominal * c.ring_share_across;
    in.pair = per_link * c.pair_share;
  };
  const auto bus = [&](double nominal) {
    in.nominal = nominal;
    in.tuner = nominal * c.pcie_tuner_share;
    in.ring = in.ring_across = in.pair = nominal * c.pcie_share;
  };
  switch (up.kind) {
    case ScaleUpKind::nvswitch: links(bandwidth, bandwidth); break;
    case ScaleUpKind::nvlink_mesh:
      if (cluster.node.devices <= 4)  // every device joined to every other
        links(bandwidth * (n - 1) / (devices - 1), bandwidth / (devices - 1));
      else  // the cube: rings that fit, each on one link
        links(c.link_nominal * static_cast<double>(c.cube_rings[static_cast<size_t>(std::clamp<int64_t>(ranks, 2, 8))]),
              c.link_nominal);
      break;
    case ScaleUpKind::nvlink_pairs:
      if (ranks <= 2)
        links(bandwidth, bandwidth);
      else
        bus(pcie);
      break;
    case ScaleUpKind::xgmi_mesh: links(bandwidth * (n - 1) / (devices - 1), bandwidth / (devices - 1)); break;
    case ScaleUpKind::pcie:
    case ScaleUpKind::none: bus(bandwidth > 0 ? bandwidth : pcie); break;  // below PCIe where peer access is blocked
  }
  return in;
}

Graph search_graph(const NcclConstants& c, double node_gbps, int64_t nics, double nic_gbps, int64_t nodes, bool tree) {
  const auto& speeds = nodes > 1 ? c.speed_inter : c.speed_intra;
  const auto channels_at = [&](double speed) {
    int64_t channels = kMaxSearchChannels;
    if (node_gbps > 0) channels = std::min(channels, static_cast<int64_t>(node_gbps / speed));
    if (nodes > 1) channels = std::min(channels, nics * static_cast<int64_t>(nic_gbps / speed));
    return channels;
  };
  Graph best{.channels = 0};
  const auto total = [](int64_t channels, double speed) { return static_cast<double>(channels) * speed; };
  for (const double speed : speeds) {
    if (best.channels && speed <= kSlowerBy * best.intra) break;
    const int64_t channels = channels_at(speed);
    if (total(channels, speed) > total(best.channels, best.intra))
      best = {.channels = channels, .intra = speed, .inter = speed};
  }
  if (!best.channels) {
    const double least = std::min(node_gbps > 0 ? node_gbps : nic_gbps, nodes > 1 ? nic_gbps : node_gbps);
    best = {.channels = 1, .intra = least, .inter = least};
  }
  const bool newer = c.generation == NcclConstants::hopper || c.generation == NcclConstants::blackwell;
  const bool split = best.intra >= c.duplicate_from || (newer && best.channels <= 4 && best.intra >= 25);
  if (split && best.channels * 2 <= kMaxSearchChannels) {
    best.channels *= 2;
    best.intra /= 2;
    best.inter /= 2;
  }
  const auto fits = [&](double speed) {
    if (!tree) return channels_at(speed) >= best.channels;
    return nodes > 1 && (node_gbps <= 0 || total(best.channels, speed) <= node_gbps * kUsable);
  };
  for (const double speed : speeds) {
    if (speed <= best.intra) break;
    if (!fits(speed)) continue;
    best.intra = speed;
    if (!tree) best.inter = speed;
    break;
  }
  return best;
}

Situation situation_of(const ClusterSpec& cluster, const NcclConstants& c, CollectiveKind kind, const GroupShape& shape,
                       bool real) {
  Situation s;
  s.c = &c;
  s.kind = kind;
  s.real = real;
  s.ranks = shape.ranks;
  const int64_t devices = std::max<int64_t>(1, cluster.node.devices);
  const bool wide_domain = cluster.node.scale_up.domain > devices;  // joins several hosts
  s.nodes = std::max<int64_t>(1, wide_domain ? shape.domains : shape.nodes);
  s.per_node = std::max<int64_t>(1, (shape.ranks + s.nodes / 2) / s.nodes);

  InNode in;
  if (s.per_node > 1) in = in_node(cluster, c, std::min(s.per_node, wide_domain ? s.per_node : devices));
  s.nvlink = in.nvlink;
  s.link = real ? in.nominal : in.tuner;
  s.ring_in_node = in.ring;
  s.ring_across = in.ring_across;
  s.pair = in.pair;

  const FabricSpec& fabric = cluster.fabric;
  const double nic = gbps(fabric.nic_bandwidth);
  const int64_t hosts = std::max<int64_t>(1, (shape.nodes + s.nodes - 1) / s.nodes);  // of one domain
  const int64_t nics = nics_of(cluster, shape.ranks_per_node) * hosts;
  if (s.nodes > 1) {
    s.net_latency_us = real ? c.net_latency_us : c.net_declared_us;
    double net = static_cast<double>(nics) * nic;
    const double all = static_cast<double>(fabric.nics_per_node * hosts) * nic;
    if (shape.nic_share < 1) net = std::min(net, all * shape.nic_share);
    const double direct = fabric.gpu_direct ? 1 : c.socket_share;
    s.net = net * c.net_efficiency * direct;
    s.message_net = nic * c.message_net * direct;
    if (shape.crosses_leaf && fabric.oversubscription > 1) {
      // Rings enter and leave a leaf group once: with m nodes of the group under it, one of m flows takes the uplinks.
      const auto m = static_cast<double>(std::max<int64_t>(1, shape.nodes_per_leaf));
      const double crossing = kind == CollectiveKind::all_to_all
                                  ? std::max(0.0, 1 - m / static_cast<double>(std::max<int64_t>(1, shape.nodes)))
                                  : 1 / m;
      s.leaf_slowdown = std::max(1.0, fabric.oversubscription * crossing);
    }
  }
  s.nics_nominal = static_cast<double>(nics) * nic;
  // A ring or chain that crosses nodes skips one hop of NVLink in each: of p devices p - 1 pass a channel on.
  const auto p = static_cast<double>(s.per_node);
  const double ring_node = s.nodes > 1 && p > 1 ? in.tuner * p / (p - 1) : in.tuner;
  s.ring = search_graph(c, ring_node, nics, nic, s.nodes, false);
  s.tree = search_graph(c, ring_node, nics, nic, s.nodes, true);
  return s;
}

}  // namespace wt::sim
