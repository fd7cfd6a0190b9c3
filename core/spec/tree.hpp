// A YAML or JSON text as a tree in which every key and value knows where it was written.
// Not a general document: one document, no tags, no merge keys, scalar keys only, bounded depth and size.
// Invariant: no map holds a key twice; the depth is at most kMaxDepth and the node count at most Limits::nodes, anchors
// expanded, so that recursion over a tree needs no further guard.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"

namespace wt::tree {

inline constexpr int kMaxDepth = 32;
inline constexpr int64_t kMaxNodes = 100000;
inline constexpr int64_t kMaxBytes = int64_t{4} << 20;  // of a spec file; real ones are a few kilobytes

/// For readers of files that may be larger.
struct Limits {
  int64_t nodes = kMaxNodes, bytes = kMaxBytes;  // anchors may add kMaxNodes, whatever `nodes` is
};

/// Where a text came from: a file, or one `--set` of the command line.
struct Source {
  std::string label;      // "job.yaml" or "--set strategy.tensor=4"
  std::string directory;  // that relative paths in it refer to; "" is the working directory
  bool is_override = false;
};

struct Place {
  std::shared_ptr<const Source> source;
  int line = 0, column = 0;  // from 1; 0: the source as a whole
};

/// "job.yaml:12:5: strategy.tensor"; an override already names its key, so the path is left out there.
std::string to_text(const Place& place, std::string_view path);

struct Entry;
struct Node {
  enum class Kind : uint8_t { null, scalar, list, map };
  Kind kind = Kind::null;
  bool quoted = false;  // "4" in quotes is a text, not a number
  std::string text;     // of a scalar
  std::vector<Node> items;
  std::vector<Entry> entries;
  Place place;

  bool is_map() const { return kind == Kind::map; }
  bool is_scalar() const { return kind == Kind::scalar; }
  const Entry* find(std::string_view key) const;
  Entry* find(std::string_view key);
  /// Adds the key or replaces its value and place.
  void set(std::string key, Node value, const Place& key_place);
};
struct Entry {
  std::string key;
  Place place;
  Node value;
};

/// Nodes of the tree, the root included.
int64_t count(const Node& node);

/// Finds all faults it can: bytes that are not UTF-8, syntax, duplicate keys, depth, size, tags, several documents.
Result<Node> parse_yaml(std::string_view text, std::shared_ptr<const Source> source, const Limits& = {});

/// A JSON key that its object holds twice: legal JSON, and Python's reader keeps the last value without a word.
struct Duplicate {
  std::string path;  // "rope_scaling" or "rope_scaling.factor"
  int first_line = 0, line = 0, column = 0;
  bool same = false;  // both values are equal
};

/// NaN and Infinity, which Python writes into JSON and JSON does not have.
struct NotNumber {
  Place place;
  std::string path, word;
};

/// Strict JSON. NaN and Infinity are faults; where `not_numbers` is given they go there and are null in the tree, so that
/// they hide no other fault. The tree keeps the last value of a key; `duplicates` says where that mattered. In the tree a string is
/// a quoted scalar; numbers and true/false are unquoted scalars as written; a value's place is that of its key.
Result<Node> parse_json(std::string_view text, std::shared_ptr<const Source> source, std::vector<Duplicate>& duplicates,
                        std::vector<NotNumber>* not_numbers = nullptr);

/// Equal content, places aside.
bool same_content(const Node& a, const Node& b);

/// The words of both.
Diagnostic not_a_number(const NotNumber&);

/// Of a byte, from 1; line 0: there is none.
struct Position {
  int line = 0, column = 0;
};
/// The first byte that starts no well-formed UTF-8 sequence, or a NUL.
Position bad_byte(std::string_view text);

}  // namespace wt::tree
