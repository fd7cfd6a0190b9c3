// What one rank holds of the training state, said so that another mesh can use it: elements of named tensors by their
// index in the whole tensor. Not a plan and not a file: made from a plan in plan_state.hpp, kept in files by store.hpp.
// Invariant: all ranks together hold every element of every tensor; copies of an element are equal.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// One tensor of the model or of its optimizer, by a name that no mesh changes.
struct TensorName {
  std::string name;    // of the weight: "fc1"
  int64_t layer = -1;  // of the model; -1: of no layer
  plan::Role role = plan::Role::weight;
  auto operator<=>(const TensorName&) const = default;
};
std::string to_text(const TensorName&);  // "moment1 of fc1, layer 3"

/// The local dim is share `index` of `parts` of each of the `blocks` equal blocks of the whole dim (plan::Shard, resolved).
struct Cut {
  uint8_t dim = 0;
  int64_t parts = 1, index = 0, blocks = 1;
  bool operator==(const Cut&) const = default;
};

/// Local elements first .. first + count - 1, in row-major order, of a tensor that is `shape` on this rank.
struct Layout {
  std::vector<int64_t> shape;
  std::vector<Cut> cuts;
  int64_t first = 0, count = 0;

  int64_t elements() const;                   // of the whole local tensor
  std::vector<int64_t> global_shape() const;  // of the tensor without cuts
  bool operator==(const Layout&) const = default;
};
/// What a layout from a file must satisfy before anything else is asked of it; the fault, or empty.
std::string fault_of(const Layout&);

/// `count` elements that follow each other in the whole tensor (row-major) and in the holding.
struct Segment {
  int64_t global = 0, local = 0, count = 0;  // local: from Layout::first
  bool operator==(const Segment&) const = default;
};
/// In order of `global`, as long as can be.
std::vector<Segment> segments_of(const Layout&);

struct Holding {
  TensorName tensor;
  Layout layout;
  /// Elements of the whole tensor from here on are padding (a padded vocabulary differs between meshes): they may be
  /// missing where it is loaded from. Negative: none.
  int64_t padding_from = -1;
  bool written = true;  // false: another rank holds the same elements and writes them, or these may be out of date
  bool loaded = true;   // false: these elements are in another holding too
  Operand operand;      // layout.count elements
};

}  // namespace wt::exec
