// JSON half of tree.hpp, on nlohmann's event parser. nlohmann reports positions of syntax errors only, so the bytes it
// has taken are counted by the iterator that feeds it: that gives every key its line and column.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/spec/tree.hpp"

namespace wt::tree {

bool same_content(const Node& a, const Node& b) {
  if (a.kind != b.kind || a.text != b.text || a.quoted != b.quoted) return false;
  const auto same_entry = [](const Entry& x, const Entry& y) {
    return x.key == y.key && same_content(x.value, y.value);
  };
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_content) &&
         std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(), same_entry);
}

namespace {

/// NaN or Infinity outside of strings, and where.
struct Word {
  size_t at = 0;
  std::string text;
};

/// Finds them and puts "0", padded, in their place: every other byte stays where it is.
std::vector<Word> replace_not_numbers(std::string& text) {
  std::vector<Word> out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted) {
      i += text[i] == '\\';
      continue;
    }
    for (const char* word : {"NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"}) {
      const std::string_view w = word;
      const auto letter = [&](size_t k) {
        return k < text.size() && std::isalnum(static_cast<unsigned char>(text[k]));
      };
      if (text.compare(i, w.size(), w) != 0 || letter(i + w.size()) || (i > 0 && letter(i - 1))) continue;
      out.push_back({i, std::string(w)});
      text.replace(i, w.size(), w.size(), ' ');
      text[i] = '0';
      break;
    }
  }
  return out;
}

/// Reads bytes and tells how many.
class Counting {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Counting(const char* at, size_t* taken) : at_(at), taken_(taken) {}
  reference operator*() const { return *at_; }
  Counting& operator++() {
    ++at_;
    ++*taken_;
    return *this;
  }
  Counting operator++(int) {
    Counting old = *this;
    ++*this;
    return old;
  }
  bool operator==(const Counting& o) const { return at_ == o.at_; }
  bool operator!=(const Counting& o) const { return at_ != o.at_; }

 private:
  const char* at_;
  size_t* taken_;
};

class Builder {
 public:
  Builder(std::string_view text, std::shared_ptr<const Source> source, std::vector<Duplicate>& duplicates,
          const std::vector<Word>& words)
      : text_(text), source_(std::move(source)), duplicates_(duplicates), words_(words) {
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\n') newlines_.push_back(i);
  }

  size_t taken = 0;
  std::vector<NotNumber> not_numbers;  // those of `words` that stood where a value does
  std::optional<Node> root;
  Diagnostics errors;

  // The interface of nlohmann's event parser; false stops it.
  bool null() { return scalar(Node::Kind::null, "", false); }
  bool boolean(bool v) { return scalar(Node::Kind::scalar, v ? "true" : "false", false); }
  bool number_integer(int64_t v) { return scalar(Node::Kind::scalar, fmt::format("{}", v), false); }
  bool number_unsigned(uint64_t v) {
    for (const Word& w : words_)  // a word was replaced by "0", and the parser has looked one byte beyond it
      if (v == 0 && taken > w.at && taken <= w.at + 2) {
        not_numbers.push_back({place_of(w.at), path(), w.text});
        return null();
      }
    return scalar(Node::Kind::scalar, fmt::format("{}", v), false);
  }
  bool number_float(double, const std::string& written) { return scalar(Node::Kind::scalar, written, false); }
  bool string(std::string& v) { return scalar(Node::Kind::scalar, std::move(v), true); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON text has none
  bool start_object(size_t) { return open(Node::Kind::map); }
  bool start_array(size_t) { return open(Node::Kind::list); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& k) {
    stack_.back().key = std::move(k);
    stack_.back().key_place = place_of(start_of_string());
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) {
    const size_t at = position == 0 ? taken : position;
    const Place place = place_of(std::min(at, text_.size()) - (at > 0 ? 1 : 0));
    std::string what = e.what();
    for (std::string_view cut :
         {": ", "] "})  // "[json.exception.parse_error.101] parse error at line 1, column 2: why"
      if (const size_t i = what.find(cut); i != what.npos) {
        what = what.substr(i + cut.size());
        break;
      }
    constexpr size_t kShown = 200;
    if (what.size() > kShown) what = what.substr(0, kShown) + "...";
    errors.push_back(
        {to_text(place, path()), "not JSON: " + what, at >= text_.size() ? "the file seems to be cut short" : ""});
    return false;
  }

 private:
  struct Frame {
    Node node;
    std::string key;
    Place key_place;
  };

  Place place_of(size_t offset) const {
    const auto it = std::lower_bound(newlines_.begin(), newlines_.end(), offset);
    const size_t start = it == newlines_.begin() ? 0 : *std::prev(it) + 1;
    return {source_, static_cast<int>(it - newlines_.begin()) + 1, static_cast<int>(offset - start) + 1};
  }
  size_t start_of_string() const {  // the parser has just taken the closing quote
    size_t i = taken >= 2 ? taken - 2 : 0;
    for (; i > 0; --i) {
      if (text_[i] != '"') continue;
      size_t backslashes = 0;
      while (backslashes < i && text_[i - 1 - backslashes] == '\\') ++backslashes;
      if (backslashes % 2 == 0) break;
    }
    return i;
  }
  std::string path() const {
    std::string out;
    for (const Frame& f : stack_)
      if (!f.key.empty()) out += (out.empty() ? "" : ".") + f.key;
    return out;
  }
  Place here() const {
    if (!stack_.empty() && stack_.back().node.is_map()) return stack_.back().key_place;
    return place_of(taken > 0 ? taken - 1 : 0);
  }
  bool stop(std::string what) {
    errors.push_back({to_text(here(), ""), std::move(what), ""});
    return false;
  }

  bool scalar(Node::Kind kind, std::string text, bool quoted) {
    Node n;
    n.kind = kind;
    n.text = std::move(text);
    n.quoted = quoted;
    n.place = here();
    return finish(std::move(n));
  }
  bool open(Node::Kind kind) {
    if (static_cast<int>(stack_.size()) >= kMaxDepth)
      return stop(fmt::format("nested more than {} levels deep", kMaxDepth));
    Frame f;
    f.node.kind = kind;
    f.node.place = here();
    stack_.push_back(std::move(f));
    return true;
  }
  bool close() {
    Node n = std::move(stack_.back().node);
    stack_.pop_back();
    return finish(std::move(n));
  }
  bool finish(Node n) {
    if (++nodes_ > kMaxNodes) return stop(fmt::format("more than {} values", kMaxNodes));
    if (stack_.empty()) {
      root = std::move(n);
      return true;
    }
    Frame& f = stack_.back();
    if (f.node.kind == Node::Kind::list) {
      f.node.items.push_back(std::move(n));
      return true;
    }
    if (const Entry* first = f.node.find(f.key))
      duplicates_.push_back(
          {path(), first->place.line, f.key_place.line, f.key_place.column, same_content(first->value, n)});
    f.node.set(f.key, std::move(n), f.key_place);
    f.key.clear();
    return true;
  }

  std::string_view text_;
  std::shared_ptr<const Source> source_;
  std::vector<Duplicate>& duplicates_;
  const std::vector<Word>& words_;
  std::vector<size_t> newlines_;
  std::vector<Frame> stack_;
  int64_t nodes_ = 0;
};

}  // namespace

Diagnostic not_a_number(const NotNumber& n) {
  return {to_text(n.place, n.path), fmt::format("'{}' is not a JSON number", n.word),
          "Python writes NaN and Infinity, JSON has neither: write a number or null"};
}

Result<Node> parse_json(std::string_view written, std::shared_ptr<const Source> source,
                        std::vector<Duplicate>& duplicates, std::vector<NotNumber>* not_numbers) {
  const Place whole{source, 0, 0};
  std::string_view text = written;
  if (static_cast<int64_t>(text.size()) > kMaxBytes)
    return Diagnostic{to_text(whole, ""), fmt::format("is larger than the limit of {} bytes", kMaxBytes), ""};
  if (const Position bad = bad_byte(text); bad.line > 0)
    return Diagnostic{to_text(Place{source, bad.line, bad.column}, ""), "not UTF-8 text", "save the file as UTF-8"};
  if (text.find_first_not_of(" \t\r\n") == text.npos) return Diagnostic{to_text(whole, ""), "is empty", ""};

  std::string plain(written);
  const std::vector<Word> words = replace_not_numbers(plain);
  text = plain;
  Builder builder(text, source, duplicates, words);
  bool ok = false;
  try {
    ok = nlohmann::json::sax_parse(Counting(text.data(), &builder.taken),
                                   Counting(text.data() + text.size(), &builder.taken), &builder);
  } catch (const std::exception& e) {  // nlohmann reports through parse_error; this is memory
    builder.errors.push_back({to_text(whole, ""), fmt::format("not JSON: {}", e.what()), ""});
  }
  if (not_numbers) {
    *not_numbers = std::move(builder.not_numbers);
  } else {
    for (const NotNumber& n : builder.not_numbers) builder.errors.push_back(not_a_number(n));
  }
  if (builder.errors.empty() && (!ok || !builder.root)) builder.errors.push_back({to_text(whole, ""), "not JSON", ""});
  if (!builder.errors.empty()) return builder.errors;
  return std::move(*builder.root);
}

}  // namespace wt::tree
