// Time of one collective or one message when nothing else uses its links: NCCL's own choice of algorithm and protocol
// with its latency and bandwidth terms, corrected by measured curves; on a cluster whose own transfers were timed, those.
// Not a network: contention is sim/network.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/data_path.hpp"
#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/spec/specs.hpp"

namespace wt::sim {

/// How the members of a group lie on the machine.
struct GroupShape {
  int64_t ranks = 1;
  int64_t nodes = 1;           // nodes touched
  int64_t ranks_per_node = 1;  // largest number of members in one node
  int64_t domains = 1;         // NVLink domains touched; a domain may span nodes (NVL72), else it is the node
  double nic_share = 1;        // share of a node's NIC bandwidth left to this group when its like-shaped sisters
                               // (one for each remaining device of the node) run at the same time
  bool crosses_leaf = false;   // members under more than one leaf switch group
  int64_t nodes_per_leaf = 0;  // most nodes of the group under one leaf group; 0: the cluster does not say
  bool operator==(const GroupShape&) const = default;
};

enum class Algorithm : uint8_t { ring, tree, nvls, nvls_tree, collnet, pat, pairwise };
enum class Protocol : uint8_t { ll, ll128, simple };

inline constexpr int64_t kWholeDevice = 100;

struct CollectiveEstimate {
  Time time;
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  // Blocks that it takes from concurrent compute; of a measured transfer, its share of the device in kWholeDevice parts.
  int64_t channels = 0;
  double latency_seconds = 0, bandwidth = 0;  // the two terms: time = latency + bytes / bandwidth (algorithm bandwidth)
  bool measured = false;                      // on this cluster: algorithm and protocol are not known
};

/// What the user may force with NCCL_ALGO, NCCL_PROTO, NCCL_COLLNET_ENABLE, NCCL_NVLS_ENABLE.
struct NcclOptions {
  std::optional<Algorithm> algorithm;  // where it can run the collective; elsewhere NCCL's own choice
  std::optional<Protocol> protocol;
  bool collnet = false;
  bool nvls = true;
  bool operator==(const NcclOptions&) const = default;
};

/// Immutable after load but for a cache of its own; any number of threads may ask.
class CollectiveCost {
 public:
  /// Reads data/nccl/*.csv (constants of the generation, measured curves) and data/fabrics.csv. Errors: a table that does
  /// not parse, with file, line and column.
  static Result<CollectiveCost> load(const ClusterSpec& cluster, const NcclOptions& options = {},
                                     const std::string& data = data_directory());

  /// Rank r sits on node r / devices_per_node. CHECKs that there are members.
  GroupShape shape_of(std::span<const RankId> members) const;

  /// `bytes` as in plan::Collective (all-to-all: the buffer of one rank). Never falls when `bytes` grows. One rank: 0.
  /// `copies` as in plan::Collective.
  CollectiveEstimate estimate(plan::CollectiveKind, plan::Reduction, DType, int64_t bytes, const GroupShape&,
                              int64_t copies = 0) const;

  /// One message between two ranks; `concurrent` messages leave the node at the same time over the same NICs.
  CollectiveEstimate estimate_message(int64_t bytes, RankId from, RankId to, int64_t concurrent = 1) const;

  /// What each end of a message loses of concurrent compute while it is under way, in kWholeDevice parts; 0 where messages
  /// were not measured: NCCL's take a block or two.
  int64_t message_channels() const;

  struct Impl;

 private:
  explicit CollectiveCost(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

std::string_view to_text(Algorithm);
std::string_view to_text(Protocol);

}  // namespace wt::sim
