// The visitor of describe.hpp that reads: one map of a tree into one spec, collecting every fault.
// Invariant: finish() is called once, after all keys and before the checks across keys.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.hpp"
#include "core/spec/describe.hpp"
#include "core/spec/tree.hpp"

namespace wt {

struct Fault {
  tree::Place place;
  std::string path, what, hint;
  std::vector<std::string> legal = {};  // values that the key may have, where the fault is its value: all, or some
};
using Faults = std::vector<Fault>;

/// In the order of the text: sources in order of first appearance, then line and column.
Diagnostics to_diagnostics(Faults faults);

class MapReader {
 public:
  /// What a section has to hold: all required keys, or any of them, where the rest is in a file that could not be read.
  enum class Extent : uint8_t { whole, part };

  MapReader(const tree::Node& map, std::string path, Faults& faults, Extent extent = Extent::whole)
      : map_(map), path_(std::move(path)), faults_(faults), extent_(extent) {}

  bool has(std::string_view key) const { return map_.find(key) != nullptr; }

  void text(std::string_view key, std::string& out, Need need);
  void texts(std::string_view key, std::vector<std::string>& out);
  void integer(std::string_view key, int64_t& out, Range range, Need need);
  void integers(std::string_view key, std::vector<int64_t>& out, Range range, Need need);
  void natural(std::string_view key, uint64_t& out, Need need);
  void number(std::string_view key, double& out, double low, double high, Need need);
  void flag(std::string_view key, bool& out, Need need);
  void dtype(std::string_view key, DType& out, Need need);
  void bytes(std::string_view key, Bytes& out, Need need);
  void rate(std::string_view key, BytesPerSecond& out, Need need);
  void time(std::string_view key, Time& out, Need need);
  void quantity(Quantity kind, std::string_view key, double& out, Need need);
  void peaks(std::string_view key, std::map<DType, FlopsPerSecond>& out, Need need);
  void precision(std::string_view key, TrainingSpec& out);
  void recompute(std::string_view key, RecomputeSpec& out);
  /// true, false, or a whole number of 2 or more: 1, 0, the number.
  void flag_or_count(std::string_view key, int64_t& out);

  template <class E>
  void choice(std::string_view key, E& out, Need need) {
    const tree::Entry* e = take(key, need, [] { return "one of: " + spelled(names_of(E{})); });
    if (!e) return;
    if (!e->value.is_scalar()) return wrong_type(*e, "a word", "one of: " + spelled(names_of(E{})));
    for (const auto& row : names_of(E{}))
      if (row.name == e->value.text) {
        out = row.value;
        return;
      }
    std::vector<std::string_view> legal;
    for (const auto& row : names_of(E{})) legal.push_back(row.name);
    fault(*e, fmt::format("unknown value '{}'", shown(e->value.text)), suggest(e->value.text, legal),
          {legal.begin(), legal.end()});
  }

  template <class T>
  void section(std::string_view key, T& out, Need need) {
    const tree::Entry* e = take(key, need, [] { return std::string("a section with keys of its own"); });
    if (e) read_section(*e, out);
  }
  template <class T>
  void section(std::string_view key, std::optional<T>& out) {
    const tree::Entry* e = take(key, kOptional, [] { return std::string(); });
    if (!e || e->value.kind == tree::Node::Kind::null) return;  // "moe: null" says that there is none
    out.emplace();
    read_section(*e, *out);
  }

  /// A list of sections, each read as one of its own.
  template <class T>
  void list(std::string_view key, std::vector<T>& out) {
    const tree::Entry* e = take(key, kOptional, [] { return std::string(); });
    if (!e) return;
    if (e->value.kind != tree::Node::Kind::list) return wrong_type(*e, "a list of sections", "'- key: value' lines");
    for (const tree::Node& item : e->value.items) {
      const std::string path = fmt::format("{}[{}]", path_of(key), out.size());
      T& value = out.emplace_back();
      if (item.is_map())
        read_map(item, path, value);
      else
        faults_.push_back({item.place, path, "is not a section", "'- key: value' lines"}), spoilt(key);
    }
  }

  /// A fault that concerns the value of `key`, or the map if the key is not there.
  void fault_at(std::string_view key, std::string what, std::string hint = {});
  /// A fault between several keys: told only where each was read without a fault of its own or is absent, at the one that
  /// the user wrote last: a `--set`, else one beside `from`, else the first.
  void fault_across(std::initializer_list<std::string_view> keys, std::string what, std::string hint = {});
  /// No key of this section is at fault.
  bool sound() const { return unsound_.empty(); }
  bool part() const { return extent_ == Extent::part; }
  /// Once, after all keys: the missing and the unknown ones, but not both for one typing error.
  void finish();

 private:
  template <class Names>
  static std::string spelled(const Names& names) {
    std::string out;
    for (const auto& row : names) out += fmt::format("{}{}", out.empty() ? "" : ", ", row.name);
    return out;
  }
  static std::string shown(std::string_view text);  // cut to a readable length

  /// The entry of a key that is there and not empty. Notes the key as legal.
  template <class Hint>
  const tree::Entry* take(std::string_view key, Need need, const Hint& hint) {
    known_.push_back(key);
    const tree::Entry* e = map_.find(key);
    if (!e && need == kRequired) missing_.push_back({key, hint()});
    return e;
  }
  template <class T>
  void read_section(const tree::Entry& e, T& out) {
    if (!e.value.is_map()) return wrong_type(e, "a section with keys of its own", "");
    const size_t before = faults_.size();
    read_map(e.value, path_of(e.key), out);
    if (faults_.size() != before) spoilt(e.key);
  }
  template <class T>
  void read_map(const tree::Node& map, std::string path, T& out) {
    MapReader inner(map, std::move(path), faults_, extent_);
    describe(inner, out);
    inner.finish();
    if (!inner.part()) check(inner, out);
  }
  void spoilt(std::string_view key) { unsound_.emplace_back(key); }
  const tree::Entry* take_scalar(std::string_view key, Need need, std::string_view expected, std::string_view example);
  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }
  void fault(const tree::Entry& e, std::string what, std::string hint, std::vector<std::string> legal = {});
  void wrong_type(const tree::Entry& e, std::string_view expected, std::string hint);

  const tree::Node& map_;
  std::string path_;
  Faults& faults_;
  Extent extent_;
  std::vector<std::string> unsound_;  // keys whose value is not what the text meant
  std::vector<std::string_view> known_;
  struct Missing {
    std::string_view key;
    std::string hint;
  };
  std::vector<Missing> missing_;
};

// Checks that span several keys of one spec (checks.cpp); sections without any fall back to this.
template <class T>
void check(MapReader&, T&) {}
void check(MapReader&, MoeSpec&);
void check(MapReader&, ModelSpec&);
void check(MapReader&, ScaleUpSpec&);
void check(MapReader&, FabricSpec&);
void check(MapReader&, NodeSpec&);
void check(MapReader&, ClusterSpec&);
void check(MapReader&, DeviceSpec&);
void check(MapReader&, KernelCurve&);
void check(MapReader&, TransferCurve&);
void check(MapReader&, StrategySpec&);
void check(MapReader&, TrainingSpec&);

}  // namespace wt
