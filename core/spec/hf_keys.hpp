// The keys of one config.json as the readers of its family ask for them: by any of their names, with the default of the
// class, noting what was asked, what was absent and what is wrong.
// Not a judge of the whole: hf_config.cpp. A key that is absent takes the class default; a key that is null takes what the
// class makes of None: the two differ (Mistral: 8 key/value heads or all of them).
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.hpp"
#include "core/spec/map_reader.hpp"

namespace wt::hf {

using tree::Entry;
using tree::Node;
using Names = std::initializer_list<std::string_view>;  // the first is how we speak of it, the rest are aliases

class Config {
 public:
  Config(const Node& map, Faults& faults, std::vector<std::string>& warnings)
      : map_(map), faults_(faults), warnings_(warnings) {}

  /// Absent: `otherwise`. Null: `if_null`, or `otherwise` if that is not given. Whoever gets `otherwise` is told.
  int64_t integer(Names names, int64_t otherwise, Range range, std::optional<int64_t> if_null = {}) {
    const Entry* e = take(names);
    const bool null = e && e->value.kind == Node::Kind::null;
    if (null && if_null) return *if_null;
    if (!e || null) {
      note_absent(names);
      if (otherwise > 0)
        defaulted_.push_back(null ? fmt::format("{} {} (null in the file)", e->key.substr(0, 60), otherwise)
                                  : fmt::format("{} {}", *names.begin(), otherwise));
      return otherwise;
    }
    const auto v = e->value.is_scalar() && !e->value.quoted ? parse_int(e->value.text) : std::nullopt;
    if (!v) {
      fault(*e, fmt::format("{} is not a whole number", shown(e->value)), "");
    } else if (*v < range.low || *v > range.high) {
      fault(*e, fmt::format("{} is out of range", *v), fmt::format("legal: {} to {}", range.low, range.high));
    } else {
      return *v;
    }
    return otherwise;
  }
  /// Absent and null alike: `otherwise`, which is derived and needs no warning.
  int64_t derived(Names names, int64_t otherwise, Range range) {
    const Entry* e = take(names);
    if (!e || e->value.kind == Node::Kind::null) {
      note_absent(names);
      return otherwise;
    }
    return integer(names, otherwise, range);
  }
  bool flag(Names names, bool otherwise) {
    const Entry* e = take(names);
    if (!e || e->value.kind == Node::Kind::null) return otherwise;
    if (e->value.is_scalar() && !e->value.quoted && e->value.text == "true") return true;
    if (e->value.is_scalar() && !e->value.quoted && e->value.text == "false") return false;
    fault(*e, fmt::format("{} is neither true nor false", shown(e->value)), "");
    return otherwise;
  }
  std::string word(Names names, std::string_view otherwise) {
    const Entry* e = take(names);
    if (!e || e->value.kind == Node::Kind::null) return std::string(otherwise);
    if (e->value.is_scalar() && e->value.quoted) return e->value.text;
    fault(*e, fmt::format("{} is not a text", shown(e->value)), "");
    return std::string(otherwise);
  }
  Activation activation(Names names, std::string_view otherwise) {
    const std::string w = word(names, otherwise);
    if (w.starts_with("gelu") || w == "quick_gelu") return Activation::gelu;
    if (w == "silu" || w == "swish") return Activation::silu;
    if (w == "relu") return Activation::relu;
    if (w == "relu2") {
      warnings_.push_back("the activation relu2 is counted as relu");
      return Activation::relu;
    }
    if (const Entry* e = find(names)) fault(*e, fmt::format("unknown activation '{}'", w), "legal: gelu*, silu, relu");
    return Activation::gelu;
  }

  const Entry* take(Names names) {
    const Entry *first = nullptr, *null = nullptr;
    for (std::string_view n : names) {
      used_.insert(n);
      const Entry* e = map_.find(n);
      if (e && e->value.kind == Node::Kind::null) {
        null = e;
        continue;
      }
      if (e && first && !same_content(first->value, e->value))
        fault(*e, fmt::format("differs from '{}', which is the same setting", first->key), "keep one");
      if (e && !first) first = e;
    }
    return first ? first : null;
  }
  const Entry* find(Names names) const {
    for (std::string_view n : names)
      if (const Entry* e = map_.find(n)) return e;
    return nullptr;
  }
  bool present(std::string_view key) const {  // there and not null
    const Entry* e = map_.find(key);
    return e && e->value.kind != Node::Kind::null;
  }
  void fault(const Entry& e, std::string what, std::string hint) {
    faults_.push_back({e.place, e.key.substr(0, 60), std::move(what), std::move(hint)});
  }
  void fault_at(Names names, std::string what, std::string hint = {}) {
    if (const Entry* e = find(names)) return fault(*e, std::move(what), std::move(hint));
    faults_.push_back({map_.place, std::string(*names.begin()), std::move(what), std::move(hint)});
  }
  void warn(std::string text) { warnings_.push_back(std::move(text)); }
  bool fine() const { return faults_.empty(); }
  bool was_used(std::string_view key) const { return used_.count(key) > 0; }
  const std::vector<std::string>& defaulted() const { return defaulted_; }
  const Node& map() const { return map_; }
  const std::set<std::string_view>& used() const { return used_; }
  /// Every spelling of the sizes that the file does not give.
  const std::vector<std::string_view>& absent_sizes() const { return absent_sizes_; }

 private:
  void note_absent(Names names) { absent_sizes_.insert(absent_sizes_.end(), names.begin(), names.end()); }
  static std::string shown(const Node& n) {
    switch (n.kind) {
      case Node::Kind::null: return "null";
      case Node::Kind::list: return "a list";
      case Node::Kind::map: return "an object";
      case Node::Kind::scalar: break;
    }
    const std::string text = n.text.size() > 60 ? n.text.substr(0, 57) + "..." : n.text;
    return n.quoted ? fmt::format("\"{}\"", text) : text;
  }
  const Node& map_;
  Faults& faults_;
  std::vector<std::string>& warnings_;
  std::set<std::string_view> used_;
  std::vector<std::string> defaulted_;
  std::vector<std::string_view> absent_sizes_;
};

// Names that attribute_map makes equal, for all architectures at once.
inline const Names kHidden = {"hidden_size", "n_embd", "n_embed", "d_model"};
inline const Names kLayerCount = {"num_hidden_layers", "n_layer"};
inline const Names kHeads = {"num_attention_heads", "n_head"};
inline const Names kKvHeads = {"num_key_value_heads", "num_kv_heads", "n_head_kv"};
inline const Names kFfn = {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"};
inline const Names kContext = {"max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"};
inline const Names kExpertCount = {"num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts"};
inline const Names kTopK = {"num_experts_per_tok", "experts_per_token"};

}  // namespace wt::hf
