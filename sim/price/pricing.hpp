// What the engine asks of the models: one number for each op, and how the machine is cut into cells. An interface, so
// that tests put closed forms in the place of the models. Pure and thread-safe; not a model of anything.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/ids.hpp"
#include "core/base/units.hpp"
#include "core/plan/plan.hpp"
#include "sim/collective/collective_cost.hpp"

namespace wt::sim {

/// Ranks in one cell; a cell holds consecutive ranks. 0: one cell holds them all. The models may tell ranks apart by
/// these cells only: folding relies on it.
struct MachineCells {
  int64_t node = 0, domain = 0, leaf = 0;
};

struct CollectivePrice {
  Time time;
  int64_t channels = 0;  // taken from concurrent compute
};

class Pricing {
 public:
  virtual ~Pricing() = default;

  virtual Time compute(const plan::Compute&) const = 0;  // on the device, gaps excluded
  virtual Time copy(const plan::Copy&) const = 0;
  virtual Time host_compute(const plan::Compute& op) const { return compute(op); }  // on this rank's share of the cores
  virtual CollectivePrice collective(const plan::Collective&, const GroupShape&) const = 0;
  virtual Time message(int64_t bytes, RankId from, RankId to, int64_t concurrent) const = 0;
  /// Taken from concurrent compute on both ends while a message is under way.
  virtual int64_t message_channels() const { return 0; }
  virtual GroupShape shape_of(std::span<const RankId> members) const = 0;

  /// Factor (>= 1) by which `op` gets slower beside a collective or message of so many channels.
  virtual double slowdown(const plan::Compute& op, int64_t channels) const = 0;
  virtual Time device_gap() const = 0;                           // after each kernel of a stream
  virtual Time kernel_issue() const = 0;                         // host, one kernel
  virtual Time transfer_issue() const = 0;                       // host, one collective, message or copy
  virtual Time operator_issue(plan::Phase) const { return {}; }  // host, one compute op beside its kernels
  virtual bool launch_blocks() const { return false; }           // CUDA_LAUNCH_BLOCKING: the host waits for every op
  virtual Time checkpoint_issue() const { return {}; }           // host, once where recompute begins
  virtual MachineCells cells() const = 0;
};

}  // namespace wt::sim
