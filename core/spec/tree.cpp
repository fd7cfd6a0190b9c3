#include "core/spec/tree.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <optional>
#include <sstream>

#include "core/base/text.hpp"

namespace wt::tree {

std::string to_text(const Place& place, std::string_view path) {
  std::string out;
  if (place.source) out = place.source->label;
  if (place.source && place.source->is_override) {
    // "--set strategy.tensor=4" says strategy.tensor itself; "--set strategy={tensor: 4}" does not.
    const std::string_view label = place.source->label;
    if (!path.empty() && label.find(fmt::format(" {}=", path)) == std::string_view::npos &&
        label.find(fmt::format(" {}.", path)) == std::string_view::npos)
      out += fmt::format(": {}", path);
    return out;
  }
  if (place.line > 0) out += fmt::format(":{}:{}", place.line, place.column);
  if (!path.empty()) out += fmt::format("{}{}", out.empty() ? "" : ": ", path);
  return out;
}

const Entry* Node::find(std::string_view key) const {
  for (const Entry& e : entries)
    if (e.key == key) return &e;
  return nullptr;
}

Entry* Node::find(std::string_view key) { return const_cast<Entry*>(static_cast<const Node*>(this)->find(key)); }

void Node::set(std::string key, Node value, const Place& key_place) {
  if (Entry* e = find(key)) {
    e->value = std::move(value);
    e->place = key_place;
  } else {
    entries.push_back({std::move(key), key_place, std::move(value)});
  }
}

int64_t count(const Node& node) {
  int64_t n = 1;
  for (const Node& i : node.items) n += count(i);
  for (const Entry& e : node.entries) n += count(e.value);
  return n;
}

Position bad_byte(std::string_view text) {
  const auto fine = [](std::string_view s) { return is_utf8(s) && s.find('\0') == std::string_view::npos; };
  if (fine(text)) return {};
  int line = 1;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view one = text.substr(0, end);  // a newline never lies inside a UTF-8 sequence
    if (!fine(one)) {
      size_t at = 0;
      constexpr size_t kLongestSequence = 4;
      while (at < one.size()) {
        size_t n = 1;
        while (n <= kLongestSequence && !fine(one.substr(at, n))) ++n;
        if (n > kLongestSequence) break;
        at += n;
      }
      return {line, static_cast<int>(at) + 1};
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    ++line;
  }
  return {line, 1};
}

namespace {

/// Leaves yaml-cpp's parser from inside an event; caught in parse_yaml.
struct Stop {};

class Builder : public YAML::EventHandler {
 public:
  Builder(std::string_view text, std::shared_ptr<const Source> source, int64_t most_nodes)
      : text_(text), source_(std::move(source)), most_nodes_(most_nodes) {
    line_starts_.push_back(0);
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\n') line_starts_.push_back(i + 1);
  }

  std::optional<Node> root;
  Diagnostics errors;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node n;
    n.place = at(mark);
    finish(std::move(n), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto it = anchors_.find(anchor);
    if (it == anchors_.end()) stop(at(mark), "alias to a value that contains it", "write the value out");
    if (depth() + it->second.depth > kMaxDepth) too_deep(at(mark));
    budget(it->second.count, at(mark));
    copies(it->second.count, at(mark));
    finish(Node(it->second.node), 0);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    Node n;
    n.kind = Node::Kind::scalar;
    n.quoted = tag == "!";
    n.text = value;
    n.place = at(mark);
    if (n.quoted && !quote_ends(mark)) stop(n.place, "the quote that opens here never ends", "");
    finish(std::move(n), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::list);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::map);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // a map that waits for the value of `key`
    std::string key;
    Place key_place;
    int depth_below = 1;
  };
  struct Anchored {
    Node node;
    int64_t count = 0;
    int depth = 0;
  };

  Place at(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }
  int depth() const { return static_cast<int>(stack_.size()); }

  [[noreturn]] void stop(const Place& place, std::string what, std::string hint) {
    errors.push_back({to_text(place, path()), std::move(what), std::move(hint)});
    throw Stop{};
  }
  [[noreturn]] void too_deep(const Place& place) {
    errors.push_back(
        {to_text(place, ""), fmt::format("nested more than {} levels deep", kMaxDepth), "no spec needs more than six"});
    throw Stop{};
  }
  void budget(int64_t nodes, const Place& place) {
    nodes_ += nodes;
    if (nodes_ > most_nodes_)
      stop(place, fmt::format("more than {} values once anchors are expanded", most_nodes_), "");
  }
  /// A few kilobytes of nested aliases stand for gigabytes, and so do anchors inside anchors: what is copied is counted
  /// before it is copied, and apart from the values that the file itself holds, of which it may hold many more.
  void copies(int64_t nodes, const Place& place) {
    copied_ += nodes;
    if (copied_ > kMaxNodes) stop(place, fmt::format("more than {} values once anchors are expanded", kMaxNodes), "");
  }
  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!")
      errors.push_back({to_text(at(mark), path()), fmt::format("tag '{}'", tag), "tags are not read: remove it"});
  }
  std::string path() const {
    std::string out;
    for (const Frame& f : stack_)
      if (f.has_key) out += (out.empty() ? "" : ".") + f.key;
    return out;
  }

  /// yaml-cpp takes the end of the file for the end of a quote, so that a cut file would pass.
  bool quote_ends(const YAML::Mark& mark) const {
    if (mark.line < 0 || static_cast<size_t>(mark.line) >= line_starts_.size()) return true;
    size_t i = line_starts_[static_cast<size_t>(mark.line)] + static_cast<size_t>(std::max(mark.column, 0));
    if (i >= text_.size() || (text_[i] != '"' && text_[i] != '\'')) return true;  // behind an anchor, or a block scalar
    const char quote = text_[i++];
    for (; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '\'' && i + 1 < text_.size() && text_[i + 1] == quote) {
          ++i;
        } else {
          return true;
        }
      }
    }
    return false;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Node::Kind kind) {
    check_tag(mark, tag);
    if (depth() >= kMaxDepth) too_deep(at(mark));
    Frame f;
    f.node.kind = kind;
    f.node.place = at(mark);
    f.anchor = anchor;
    stack_.push_back(std::move(f));
  }
  void close() {
    Frame f = std::move(stack_.back());
    stack_.pop_back();
    finish(std::move(f.node), f.anchor, f.depth_below + 1);
  }

  void finish(Node n, YAML::anchor_t anchor, int depth_of_n = 1) {
    budget(1, n.place);
    if (anchor != 0) {
      const int64_t nodes = count(n);
      copies(nodes, n.place);
      anchors_[anchor] = {n, nodes, depth_of_n};
    }
    if (stack_.empty()) {
      root = std::move(n);
      return;
    }
    Frame& f = stack_.back();
    f.depth_below = std::max(f.depth_below, depth_of_n);
    if (f.node.kind == Node::Kind::list) {
      f.node.items.push_back(std::move(n));
    } else if (!f.has_key) {
      if (n.kind != Node::Kind::scalar) stop(n.place, "a key that is not a plain word", "");
      f.has_key = true;
      f.key = std::move(n.text);
      f.key_place = n.place;
    } else {
      if (const Entry* first = f.node.find(f.key)) {
        errors.push_back({to_text(f.key_place, path()), fmt::format("key '{}' is written twice", f.key),
                          fmt::format("first at line {}; keep one", first->place.line)});
      } else {
        f.node.entries.push_back({std::move(f.key), f.key_place, std::move(n)});
      }
      f.has_key = false;
    }
  }

  std::string_view text_;
  std::vector<size_t> line_starts_;
  std::shared_ptr<const Source> source_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  int64_t most_nodes_ = 0, nodes_ = 0, copied_ = 0;
};

}  // namespace

Result<Node> parse_yaml(std::string_view text, std::shared_ptr<const Source> source, const Limits& limits) {
  const Place whole{source, 0, 0};
  if (static_cast<int64_t>(text.size()) > limits.bytes)
    return Diagnostic{to_text(whole, ""), fmt::format("is larger than the limit of {} bytes", limits.bytes), ""};
  if (const Position bad = bad_byte(text); bad.line > 0)
    return Diagnostic{to_text(Place{source, bad.line, bad.column}, ""), "not UTF-8 text", "save the file as UTF-8"};

  Builder builder(text, source, limits.nodes), rest(text, source, limits.nodes);
  bool read = false, more = false;
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    read = parser.HandleNextDocument(builder);
    if (read) more = parser.HandleNextDocument(rest);
  } catch (const Stop&) {
    // A fault of the second document still is one: the first alone would not be all of the file.
    return builder.errors.empty() ? rest.errors : builder.errors;
  } catch (const YAML::Exception& e) {
    builder.errors.push_back(
        {to_text(Place{source, e.mark.line + 1, e.mark.column + 1}, ""), "not YAML: " + e.msg, ""});
    return builder.errors;
  } catch (const std::exception& e) {  // bad_alloc, out_of_range from yaml-cpp
    builder.errors.push_back({to_text(whole, ""), fmt::format("not YAML: {}", e.what()), ""});
    return builder.errors;
  }
  if (more)
    builder.errors.push_back({to_text(whole, ""), "holds more than one YAML document", "keep one; remove '---'"});
  if (builder.errors.empty() && (!read || !builder.root || builder.root->kind == Node::Kind::null))
    builder.errors.push_back({to_text(whole, ""), "is empty", ""});
  if (!builder.errors.empty()) return builder.errors;
  return std::move(*builder.root);
}

}  // namespace wt::tree
