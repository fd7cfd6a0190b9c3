// Whether the waits of a plan suffice: every two ops of a rank that touch the same storage, one of them writing, reserving
// or releasing it, must be ordered by streams, waits and the host; the order of issue alone orders nothing.
// Exact for what happens within a rank (vector clocks over its streams); what only a message through another rank
// orders counts as not ordered.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::reference {

/// One op instance of an order with what it has to wait for.
struct Issued {
  const plan::Block* block = nullptr;
  uint32_t op = 0;
  int64_t layer = -1;
  uint32_t invocation = 0;
  std::vector<uint32_t> after;  // earlier instances: the last on its stream, its waits, what the host waited for
};

/// Every op instance of the order, in issue order.
std::vector<Issued> issue(const plan::Plan&, const std::vector<plan::Invocation>& order);

/// Each race once: two ops, the buffer, how they touch it. Of two steady steps of one rank of each program.
std::vector<std::string> races(const plan::Plan&);

}  // namespace wt::reference
