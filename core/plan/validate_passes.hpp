// The passes of validate and what they share: where a fault is, and how many are told.
// Not an interface of the folder: plan_io.hpp is. Invariant: a pass runs only when the passes before it found nothing.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"

namespace wt::plan {

/// Collects faults: each text once (the same op fails alike in every micro-batch), the first kMostTold of them.
class Faults {
 public:
  void add(std::string where, std::string what, std::string hint = "") {
    if (!seen_.insert(where + '\n' + what).second) return;
    if (found_.size() < kMostTold)
      found_.push_back({std::move(where), std::move(what), std::move(hint)});
    else
      ++untold_;
  }
  bool empty() const { return found_.empty(); }
  Diagnostics take() {
    if (untold_) found_.push_back({"plan", fmt::format("{} more faults", untold_), ""});
    return std::move(found_);
  }

 private:
  static constexpr size_t kMostTold = 200;
  Diagnostics found_;
  std::set<std::string> seen_;
  size_t untold_ = 0;
};

inline constexpr int64_t kMostBlockOps = 1 << 20;  // instances of one block: bounds what validation keeps
inline constexpr int64_t kMostRepresentatives = 1 << 16;
inline constexpr int64_t kMostLayers = 1 << 14;  // of one part

/// "block 'forward middle', op 3 (qkv)".
inline std::string where_op(const Block& b, size_t op) {
  return fmt::format("block '{}', op {} ({})", b.name, op, op < b.ops.size() ? b.ops[op].name : "");
}

/// "forward middle chunk 0 micro-batch 3".
std::string describe(const Plan&, const Invocation&);

/// Ids in range, names unique, sizes sane, operands as the kernels want them, waits backwards, orders bound to chunks
/// that exist. Everything after may index without looking.
void check_structure(const Plan&, Faults&);

/// Storage reserved before use and released once; read only after it was written.
void check_storage(const Plan&, Faults&);

/// Collectives agree, sends meet receives, everything ends.
void check_progress(const Plan&, Faults&);

}  // namespace wt::plan
