// One map of a foreign file, read key by key; what nobody asked for is reported when the map is left.
// Not strict about types beyond what the frameworks accept: 5e8 is an integer where it is a whole number, True a flag.
// Invariant: finish() is called once for each Keys, after all keys.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/spec/tree.hpp"
#include "import/draft.hpp"

namespace wt::import {

Origin origin_of(const tree::Place& place, std::string_view path);
/// A scalar as written, a list or map in short.
std::string written(const tree::Node& node);

/// "5e8", "500_000_000", "5e+08": whole numbers as frameworks write them.
std::optional<int64_t> whole_number(std::string_view text);
/// True, true, yes, on, 1; Python's and YAML 1.1's spellings.
std::optional<bool> truth(std::string_view text);

class Keys {
 public:
  Keys(const tree::Node& map, std::string path, Draft& draft) : map_(map), path_(std::move(path)), draft_(draft) {}

  /// Marks the key as read; null where it is not there or null.
  const tree::Entry* find(std::string_view key);
  bool has(std::string_view key) { return find(key) != nullptr; }
  bool is(std::string_view key, std::string_view word);  // the scalar is this word

  /// Nothing where the key is absent, null or `auto`; a fault where it has another type.
  std::optional<int64_t> integer(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  /// The map below `key`; nothing where there is none (a fault where it is no map).
  std::optional<Keys> section(std::string_view key);

  Origin at(std::string_view key) const;
  std::string said(std::string_view key) const;  // written, "" if absent

  /// key -> our key, the value unchanged. False where the key is absent.
  bool take_integer(std::string_view key, std::string_view to, std::string why = "");
  bool take_flag(std::string_view key, std::string_view to, std::string why = "");

  void ignore(std::string_view key, std::string_view why);
  void ignore_all(std::initializer_list<std::string_view> keys, std::string_view why);
  void not_carried(std::string_view key, std::string_view why);
  /// A switch with an effect that no key of ours says: off is as good as absent.
  void not_carried_if_on(std::string_view key, std::string_view why);

  /// The keys that nobody read, as unknown ones of `framework`.
  void finish(std::string_view framework);

  const tree::Node& map() const { return map_; }
  Draft& draft() { return draft_; }

 private:
  void wrong(std::string_view key, std::string_view expected);
  const tree::Entry* scalar(std::string_view key, std::string_view expected);

  const tree::Node& map_;
  std::string path_;
  Draft& draft_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace wt::import
