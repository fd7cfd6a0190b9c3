#include "sim/simulate.hpp"
#include "sim/price_seconds.hpp"

#include <algorithm>

namespace wt::sim {
namespace {

/// The models' answers for one cluster and host profile.
class ModelPricing final : public Pricing {
 public:
  ModelPricing(const ClusterSpec& cluster, const TrainingSpec& training, const Models& models)
      : cluster_(cluster),
        training_(training),
        models_(models),
        issue_(models.compute.host_issue(training)),
        transfer_issue_(training.host_issue > Time() ? issue_ : models.compute.host_issue_collective(training)) {}

  Time compute(const plan::Compute& op) const override { return models_.compute.estimate(op).time; }

  Time copy(const plan::Copy& op) const override {
    if (op.from == plan::Space::device && op.to == plan::Space::device) {
      const double rate = cluster_.device.memory_bandwidth.n;  // read and written
      return rate > 0 ? price_seconds(static_cast<double>(op.bytes) / (rate / 2)) : Time();
    }
    return models_.host.copy(op);
  }
  Time host_compute(const plan::Compute& op) const override { return models_.host.compute(op); }

  CollectivePrice collective(const plan::Collective& op, const GroupShape& shape) const override {
    const CollectiveEstimate e =
        models_.collective.estimate(op.kind, op.reduction, op.dtype, op.bytes, shape, op.copies);
    return {e.time, e.channels};
  }
  Time message(int64_t bytes, RankId from, RankId to, int64_t concurrent) const override {
    return models_.collective.estimate_message(bytes, from, to, concurrent).time;
  }
  int64_t message_channels() const override { return models_.collective.message_channels(); }
  GroupShape shape_of(std::span<const RankId> members) const override { return models_.collective.shape_of(members); }
  double slowdown(const plan::Compute& op, int64_t channels) const override {
    return models_.compute.slowdown_beside_collective(op, channels);
  }
  Time device_gap() const override { return models_.compute.device_gap(); }
  Time kernel_issue() const override { return issue_; }
  Time transfer_issue() const override { return transfer_issue_; }
  bool launch_blocks() const override { return training_.blocking_launch; }
  Time operator_issue(plan::Phase phase) const override { return models_.compute.host_operator(training_, phase); }
  Time checkpoint_issue() const override { return models_.compute.host_checkpoint(training_); }
  MachineCells cells() const override {
    const NodeSpec& node = cluster_.node;
    return {node.devices, node.scale_up.domain ? node.scale_up.domain : node.devices,
            cluster_.fabric.nodes_per_leaf * node.devices};
  }

 private:
  const ClusterSpec& cluster_;
  const TrainingSpec& training_;
  const Models& models_;
  Time issue_, transfer_issue_;
};

}  // namespace

Result<Models> load_models(const ClusterSpec& cluster) {
  Result<ComputeCost> compute = ComputeCost::load(cluster.device);
  Result<CollectiveCost> collective = CollectiveCost::load(cluster);
  Result<HostCost> host = HostCost::load(cluster.node);
  Diagnostics errors;
  if (!compute) errors.insert(errors.end(), compute.errors().begin(), compute.errors().end());
  if (!collective) errors.insert(errors.end(), collective.errors().begin(), collective.errors().end());
  if (!host) errors.insert(errors.end(), host.errors().begin(), host.errors().end());
  if (!errors.empty()) return errors;
  return Models{std::move(compute.value()), std::move(collective.value()), std::move(host.value())};
}

std::unique_ptr<Pricing> make_pricing(const ClusterSpec& cluster, const TrainingSpec& training, const Models& models) {
  return std::make_unique<ModelPricing>(cluster, training, models);
}

Result<RunSummary> simulate(const plan::Plan& plan, const ClusterSpec& cluster, const TrainingSpec& training,
                            const Models& models, const SimulateOptions& options) {
  return simulate(plan, ModelPricing(cluster, training, models), options);
}

}  // namespace wt::sim
