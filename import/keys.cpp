#include "import/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/text.hpp"

namespace wt::import {

using tree::Entry;
using tree::Node;

Origin origin_of(const tree::Place& place, std::string_view path) {
  std::string where = place.source ? place.source->label : "";
  if (place.line > 0) where += fmt::format(":{}", place.line);
  return {where, std::string(path)};
}

std::string written(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null: return "null";
    case Node::Kind::scalar: return node.text;
    case Node::Kind::list: {
      std::string out;
      for (const Node& i : node.items) {
        if (out.size() > 60) return fmt::format("[{}, ...]", out);
        out += fmt::format("{}{}", out.empty() ? "" : ", ", written(i));
      }
      return fmt::format("[{}]", out);
    }
    case Node::Kind::map: return fmt::format("{{{} keys}}", node.entries.size());
  }
  return "";
}

std::optional<int64_t> whole_number(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (text[i] != '_' || !between) plain += text[i];
  }
  if (const auto n = parse_int(plain)) return n;
  const auto x = parse_double(plain);
  constexpr double kExact = 9007199254740992.0;  // 2^53: whole numbers above may not be the one that was written
  if (!x || std::abs(*x) > kExact || *x != std::floor(*x)) return std::nullopt;
  return static_cast<int64_t>(*x);
}

std::optional<bool> truth(std::string_view text) {
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return std::tolower(c); });
  if (low == "true" || low == "yes" || low == "on" || low == "1") return true;
  if (low == "false" || low == "no" || low == "off" || low == "0") return false;
  return std::nullopt;
}

const Entry* Keys::find(std::string_view key) {
  known_.insert(std::string(key));
  const Entry* e = map_.find(key);
  return e && e->value.kind != Node::Kind::null ? e : nullptr;
}

bool Keys::is(std::string_view key, std::string_view word) {
  const Entry* e = find(key);
  return e && e->value.is_scalar() && e->value.text == word;
}

Origin Keys::at(std::string_view key) const {
  const Entry* e = map_.find(key);
  return origin_of(e ? e->place : map_.place, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

std::string Keys::said(std::string_view key) const {
  const Entry* e = map_.find(key);
  return e ? written(e->value) : "";
}

void Keys::wrong(std::string_view key, std::string_view expected) {
  draft_.error(at(key), fmt::format("'{}' is not {}", said(key).substr(0, 60), expected), "");
}

const Entry* Keys::scalar(std::string_view key, std::string_view expected) {
  const Entry* e = find(key);
  if (!e || (e->value.is_scalar() && e->value.text == "auto")) return nullptr;
  if (e->value.is_scalar()) return e;
  wrong(key, expected);
  return nullptr;
}

std::optional<int64_t> Keys::integer(std::string_view key) {
  const Entry* e = scalar(key, "a whole number");
  if (!e) return std::nullopt;
  const auto n = whole_number(e->value.text);
  if (!n) wrong(key, "a whole number");
  return n;
}

std::optional<double> Keys::number(std::string_view key) {
  const Entry* e = scalar(key, "a number");
  if (!e) return std::nullopt;
  const auto x = parse_double(e->value.text);
  if (!x) wrong(key, "a number");
  return x;
}

std::optional<bool> Keys::flag(std::string_view key) {
  const Entry* e = scalar(key, "true or false");
  if (!e) return std::nullopt;
  const auto b = truth(e->value.text);
  if (!b) wrong(key, "true or false");
  return b;
}

std::optional<std::string> Keys::text(std::string_view key) {
  const Entry* e = scalar(key, "a word");
  if (!e) return std::nullopt;
  return e->value.text;
}

std::optional<Keys> Keys::section(std::string_view key) {
  const Entry* e = find(key);
  if (!e) return std::nullopt;
  if (!e->value.is_map()) {
    wrong(key, "a section with keys of its own");
    return std::nullopt;
  }
  return Keys(e->value, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key), draft_);
}

bool Keys::take_integer(std::string_view key, std::string_view to, std::string why) {
  const auto n = integer(key);
  if (n) draft_.take(at(key), said(key), to, *n, std::move(why));
  return n.has_value();
}

bool Keys::take_flag(std::string_view key, std::string_view to, std::string why) {
  const auto b = flag(key);
  if (b) draft_.take(at(key), said(key), to, *b ? "true" : "false", std::move(why));
  return b.has_value();
}

void Keys::ignore(std::string_view key, std::string_view why) {
  known_.insert(std::string(key));
  if (map_.find(key)) draft_.ignore(at(key), said(key), std::string(why));
}

void Keys::ignore_all(std::initializer_list<std::string_view> keys, std::string_view why) {
  for (std::string_view key : keys) ignore(key, why);
}

void Keys::not_carried(std::string_view key, std::string_view why) {
  if (find(key)) draft_.not_carried(at(key), said(key), std::string(why));
}

void Keys::not_carried_if_on(std::string_view key, std::string_view why) {
  const Entry* e = find(key);
  if (!e) return;
  const auto off = e->value.is_scalar() ? truth(e->value.text) : std::nullopt;
  if (off && !*off)
    draft_.ignore(at(key), said(key), "off");
  else
    draft_.not_carried(at(key), said(key), std::string(why));
}

void Keys::finish(std::string_view framework) {
  const std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const Entry& e : map_.entries) {
    if (known_.contains(e.key)) continue;
    const auto near = closest(e.key, known);
    draft_.unknown(at(e.key), written(e.value),
                   near ? fmt::format("not a key of {}; did you mean '{}'?", framework, *near)
                        : fmt::format("not a key of {}, as far as known", framework));
  }
}

}  // namespace wt::import
