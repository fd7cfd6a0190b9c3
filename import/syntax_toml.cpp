// TOML half of syntax.hpp, on toml++. Dates and times become text: no configuration of a plan has one.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <optional>

#include "import/syntax.hpp"

namespace wt::import {

using tree::Node;
using tree::Place;

namespace {

class Converter {
 public:
  explicit Converter(std::shared_ptr<const tree::Source> source) : source_(std::move(source)) {}
  Diagnostics errors;

  Node convert(const toml::node& from, int depth) {
    Node n;
    n.place = place(from.source());
    if (++count_ > tree::kMaxNodes || depth > tree::kMaxDepth) {
      if (errors.empty())
        errors.push_back({tree::to_text(n.place, ""),
                          depth > tree::kMaxDepth ? fmt::format("nested more than {} levels deep", tree::kMaxDepth)
                                                  : fmt::format("more than {} values", tree::kMaxNodes),
                          ""});
      return n;
    }
    if (const auto* table = from.as_table()) {
      n.kind = Node::Kind::map;
      for (const auto& [key, value] : *table)
        n.entries.push_back({std::string(key.str()), place(key.source()), convert(value, depth + 1)});
    } else if (const auto* array = from.as_array()) {
      n.kind = Node::Kind::list;
      for (const toml::node& item : *array) n.items.push_back(convert(item, depth + 1));
    } else {
      n.kind = Node::Kind::scalar;
      n.text = scalar(from, n.quoted);
    }
    return n;
  }

 private:
  Place place(const toml::source_region& r) const {
    return {source_, static_cast<int>(r.begin.line), static_cast<int>(r.begin.column)};
  }
  static std::string scalar(const toml::node& from, bool& quoted) {
    if (const auto* s = from.as_string()) {
      quoted = true;
      return s->get();
    }
    if (const auto* i = from.as_integer()) return fmt::format("{}", i->get());
    if (const auto* f = from.as_floating_point()) return fmt::format("{}", f->get());
    if (const auto* b = from.as_boolean()) return b->get() ? "true" : "false";
    quoted = true;
    return "(date or time)";
  }

  std::shared_ptr<const tree::Source> source_;
  int64_t count_ = 0;
};

/// toml++ makes a table of every part of a dotted key and frees them by recursion: thousands of parts end in a broken
/// stack. Returns the line of the first key with more parts than a tree may be deep; 0 if there is none.
int line_of_deep_key(std::string_view text) {
  int line = 1, dots = 0;
  for (const char c : text) {
    if (c == '\n') ++line;
    if (c == '.')
      ++dots;
    else if (std::string_view("\n,={}[]#").find(c) != std::string_view::npos)
      dots = 0;
    if (dots > tree::kMaxDepth * 2) return line;
  }
  return 0;
}

}  // namespace

Result<Node> parse_toml(std::string_view text, std::shared_ptr<const tree::Source> source) {
  if (const tree::Position bad = tree::bad_byte(text); bad.line > 0)
    return Diagnostic{tree::to_text(Place{source, bad.line, bad.column}, ""), "not UTF-8 text",
                      "save the file as UTF-8"};
  if (const int line = line_of_deep_key(text))
    return Diagnostic{tree::to_text(Place{source, line, 1}, ""),
                      fmt::format("nested more than {} levels deep", tree::kMaxDepth), ""};
  try {
    const toml::table root = toml::parse(text);
    Converter converter(source);
    Node out = converter.convert(root, 0);
    if (!converter.errors.empty()) return converter.errors;
    return out;
  } catch (const toml::parse_error& e) {
    const Place place{source, static_cast<int>(e.source().begin.line), static_cast<int>(e.source().begin.column)};
    return Diagnostic{tree::to_text(place, ""), fmt::format("not TOML: {}", e.description()), ""};
  } catch (const std::exception& e) {  // bad_alloc
    return Diagnostic{source->label, fmt::format("not TOML: {}", e.what()), ""};
  }
}

}  // namespace wt::import
