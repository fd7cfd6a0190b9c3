// Checks across the keys of one section (declared in map_reader.hpp), and what follows from other keys where one is absent.
// They run whatever else is wrong: fault_across tells a fault only where every key that it is about was read.
#include <algorithm>
#include <numeric>

#include "core/spec/map_reader.hpp"
#include "core/spec/parameters.hpp"

namespace wt {

namespace {

/// "kv_heads 6, 10 or heads 24, 32": the divisors and multiples nearest to what was written.
std::string legal_heads(int64_t heads, int64_t kv_heads) {
  int64_t below = 1, above = heads;
  for (int64_t d = 1; d <= heads; ++d) {
    if (heads % d != 0) continue;
    if (d < kv_heads) below = d;
    if (d > kv_heads) {
      above = d;
      break;
    }
  }
  const int64_t under = heads / kv_heads * kv_heads;
  return fmt::format("legal: kv_heads {}{}; or heads {}{}", below, above != below ? fmt::format(", {}", above) : "",
                     under > 0 ? fmt::format("{}, ", under) : "", under + kv_heads);
}

}  // namespace

void check(MapReader& r, MoeSpec& m) {
  if (m.top_k > m.experts && m.experts > 0)
    r.fault_across({"top_k", "experts"}, fmt::format("{} experts per token of {} experts", m.top_k, m.experts),
                   "at most experts");
  if (m.shared_gate && m.shared_ffn_hidden == 0)
    r.fault_across({"shared_gate", "shared_ffn_hidden"}, "a gate without a shared expert", "set shared_ffn_hidden");
}

void check(MapReader& r, ModelSpec& m) {
  if (m.moe && m.ffn_hidden == 0) m.ffn_hidden = m.moe->ffn_hidden;  // no dense layer: nothing else to say
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.heads > 0 && m.kv_heads > 0 && m.heads % m.kv_heads != 0)
    r.fault_across({"kv_heads", "heads"}, fmt::format("{} key/value heads do not divide {} heads", m.kv_heads, m.heads),
                   legal_heads(m.heads, m.kv_heads));
  if (m.mla) {
    const int64_t dim = m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim;
    if (m.head_dim != 0 && m.head_dim != dim)
      r.fault_across({"head_dim", "mla"},
                     fmt::format("{} is not qk_nope_head_dim + qk_rope_head_dim = {}", m.head_dim, dim),
                     "leave it out");
    m.head_dim = dim;
  }
  if (m.head_dim == 0 && m.heads > 0 && m.hidden > 0) {
    if (m.hidden % m.heads != 0) {
      r.fault_across({"head_dim", "heads", "hidden"},
                     fmt::format("{} heads do not divide hidden {}", m.heads, m.hidden), "write head_dim");
    } else {
      m.head_dim = m.hidden / m.heads;
    }
  }
  if (m.moe && m.moe->first_dense_layers > m.layers)
    r.fault_across({"moe", "layers"}, fmt::format("{} dense layers of {}", m.moe->first_dense_layers, m.layers), "");
  if (m.expert_bias && !m.moe) r.fault_across({"expert_bias", "moe"}, "true without experts", "remove it or add 'moe'");
  if (m.full_period > 0 && m.sliding_window == 0)
    r.fault_across({"full_period", "sliding_window"}, "without a sliding_window", "remove it or add 'sliding_window'");
  if (m.full_period > 0 && m.sliding_period != 1)
    r.fault_across({"full_period", "sliding_period"}, "with sliding_period: they contradict each other", "keep one");
  constexpr long double kMostParameters = 1e15L;  // 64-bit sums of bytes stay safe by a wide margin
  if (r.sound() && m.layers > 0 && m.hidden > 0 && estimate_parameters(m) > kMostParameters)
    r.fault_at("layers", "the model has more than 10^15 parameters", "one of its sizes is wrong");
}

void check(MapReader& r, DeviceSpec& d) {
  if (d.context_memory >= d.memory && d.memory.n > 0)
    r.fault_across({"context_memory", "memory"}, "is not less than memory", "");
}

void check(MapReader& r, KernelCurve& k) {
  if (k.latency.count_ps() == 0 && k.rate == 0 && k.bandwidth.n == 0)
    if (r.sound()) r.fault_at("kernel", "has no curve", "one of latency, rate and bandwidth at least");
  for (const KernelPoint& p : k.points)
    if (p.time.count_ps() == 0) return r.fault_across({"points"}, "a time is zero", "");
}

void check(MapReader& r, TransferCurve& t) {
  if (t.ranks < t.nodes) r.fault_across({"nodes", "ranks"}, fmt::format("{} nodes for {} ranks", t.nodes, t.ranks), "");
  if (t.lines.empty()) r.fault_across({"lines"}, "a transfer has one line at least", "{from: 1 B, latency: 5 us}");
  for (size_t i = 1; i < t.lines.size(); ++i)
    if (t.lines[i].from <= t.lines[i - 1].from)
      return r.fault_across({"lines"}, "are not sorted by size", "smallest first");
}

void check(MapReader& r, ScaleUpSpec& s) {
  if (s.bandwidth.n == 0 && s.kind != ScaleUpKind::none && s.kind != ScaleUpKind::pcie)
    r.fault_across({"kind", "bandwidth"}, "missing key 'bandwidth'", "per device, one direction, such as 450 GB/s");
}

void check(MapReader& r, FabricSpec& f) {
  if (f.kind == FabricKind::none) return;
  if (f.nics_per_node == 0) r.fault_across({"nics_per_node"}, "a fabric needs nics_per_node of 1 or more", "");
  if (f.nic_bandwidth.n == 0)
    r.fault_across({"nic_bandwidth"}, "a fabric needs nic_bandwidth", "one NIC, one direction, such as 400 Gb/s");
}

void check(MapReader& r, NodeSpec& n) {
  if (n.devices > 1 && n.scale_up.kind == ScaleUpKind::none)
    r.fault_across({"scale_up", "devices"}, fmt::format("{} devices with nothing that joins them", n.devices),
                   "kind pcie is the least");
  if (n.devices > 0 && n.scale_up.domain % n.devices != 0)
    r.fault_across({"scale_up", "devices"},
                   fmt::format("a domain of {} is not a multiple of {} devices per node", n.scale_up.domain, n.devices),
                   "");
  if (n.scale_up.kind == ScaleUpKind::pcie && n.scale_up.bandwidth.n == 0) n.scale_up.bandwidth = n.pcie_bandwidth;
}

void check(MapReader& r, ClusterSpec& c) {
  constexpr int64_t kMostRanks = int64_t{1} << 24;
  if (c.nodes > 0 && c.node.devices > 0 && c.nodes > kMostRanks / c.node.devices)
    r.fault_across({"nodes", "node"},
                   fmt::format("{} nodes of {} devices are more than 2^24 ranks", c.nodes, c.node.devices), "");
  if (c.nodes > 1 && c.fabric.kind == FabricKind::none && c.ranks() > c.node.scale_up.domain)
    r.fault_across({"nodes", "node", "fabric"}, fmt::format("{} nodes without a fabric that joins them", c.nodes),
                   "add 'fabric'");
}

void check(MapReader& r, StrategySpec& s) {
  if (s.schedule.empty()) r.fault_across({"schedule"}, "is empty", "such as 1f1b");
  for (const char* key : {"ddp_bucket", "ddp_first_bucket"})
    if ((std::string_view(key) == "ddp_bucket" ? s.ddp_bucket : s.ddp_first_bucket).n == 0)
      r.fault_across({key}, "must not be zero", "");
}

void check(MapReader& r, TrainingSpec& t) {
  if (t.micro_batch > t.global_batch)
    r.fault_across({"micro_batch", "global_batch"},
                   fmt::format("{} is more than global_batch {}", t.micro_batch, t.global_batch), "");
}

}  // namespace wt
