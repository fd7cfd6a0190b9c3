#include "import/shell_expand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/base/text.hpp"
#include "import/shell_lexer.hpp"

namespace wt::import {

namespace {

constexpr size_t kMostText = 1 << 20;  // of one value; nested doubling ends here
constexpr int kMostDepth = 32;

bool name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

void add_open(ShellWord& w, const std::string& what) {
  constexpr size_t kMost = 8;
  for (const std::string& o : w.open)
    if (o == what) return;
  if (w.open.size() < kMost) w.open.push_back(what);
}

class Expander {
 public:
  Expander(int line, ShellScope& scope, int depth) : line_(line), scope_(scope), depth_(depth) {}

  std::vector<ShellWord> words(std::string_view raw) {
    fresh();
    for (size_t i = 0; i < raw.size();) {
      const char c = raw[i];
      if (c == '\\') {
        if (i + 1 < raw.size() && raw[i + 1] != '\n') put(raw.substr(i + 1, 1));
        i += 2;
      } else if (c == '\'') {
        const size_t end = shell_span(raw, i);
        put(raw.substr(i + 1, end > i + 2 ? end - i - 2 : 0));
        started_ = true;
        i = end;
      } else if (c == '"') {
        const size_t end = shell_span(raw, i);
        quoted(raw.substr(i + 1, end > i + 2 ? end - i - 2 : 0));
        i = end;
      } else if (c == '$' || c == '`') {
        const size_t end = shell_span_of_variable(raw, i);
        split(value_of(raw.substr(i, end - i)));
        i = end;
      } else {
        put(raw.substr(i, 1));
        ++i;
      }
    }
    if (started_) out_.push_back(std::move(now_));
    return std::move(out_);
  }

  /// Within double quotes.
  void quoted(std::string_view raw) {
    started_ = true;
    for (size_t i = 0; i < raw.size();) {
      const char c = raw[i];
      if (c == '\\' && i + 1 < raw.size()) {
        const char next = raw[i + 1];
        if (next != '\n')
          put(std::string_view("$`\"\\").find(next) != std::string_view::npos ? raw.substr(i + 1, 1)
                                                                              : raw.substr(i, 2));
        i += 2;
      } else if (c == '$' || c == '`') {
        const size_t end = shell_span_of_variable(raw, i);
        const ShellValue v = value_of(raw.substr(i, end - i));
        for (size_t k = 0; k < v.words.size(); ++k) {
          if (k > 0) {
            out_.push_back(std::move(now_));
            fresh();
            started_ = true;
          }
          append(v.words[k]);
        }
        i = end;
      } else {
        put(raw.substr(i, 1));
        ++i;
      }
    }
  }

  void fresh() {
    now_ = {"", line_, {}};
    started_ = false;
  }
  std::vector<ShellWord> take() {
    if (started_) out_.push_back(std::move(now_));
    return std::move(out_);
  }

 private:
  static size_t shell_span_of_variable(std::string_view raw, size_t i) {
    if (raw[i] == '`') return shell_span(raw, i);
    if (i + 1 >= raw.size()) return i + 1;
    const char c = raw[i + 1];
    if (c == '{' || c == '(' || c == '\'') return shell_span(raw, i);
    if (!name_char(c)) return std::string_view("@*#?$!-").find(c) != std::string_view::npos ? i + 2 : i + 1;
    if (std::isdigit(static_cast<unsigned char>(c))) return i + 2;
    size_t end = i + 1;
    while (end < raw.size() && name_char(raw[end])) ++end;
    return end;
  }

  void put(std::string_view text) {
    if (now_.text.size() + text.size() > kMostText) return;
    now_.text += text;
    started_ = true;
  }
  void append(const ShellWord& w) {
    put(w.text);
    for (const std::string& o : w.open) add_open(now_, o);
    if (w.line > 0 && now_.text == w.text) now_.line = w.line;
  }
  /// An unquoted variable: its blanks part words.
  void split(const ShellValue& v) {
    for (size_t k = 0; k < v.words.size(); ++k) {
      if (k > 0) end_word();
      const ShellWord& w = v.words[k];
      for (size_t i = 0; i < w.text.size();) {
        const size_t begin = w.text.find_first_not_of(" \t\r\n", i);
        if (begin == w.text.npos) {
          end_word();
          break;
        }
        if (begin > i) end_word();
        const size_t end = std::min(w.text.find_first_of(" \t\r\n", begin), w.text.size());
        put(std::string_view(w.text).substr(begin, end - begin));
        if (w.line > 0) now_.line = w.line;
        for (const std::string& o : w.open)
          if (stands_in(o, w.text, now_.text)) add_open(now_, o);
        i = end;
      }
    }
  }
  /// Of a text that is split, an open part belongs to the pieces that hold its name; to all where none does.
  static bool stands_in(const std::string& open, const std::string& whole, const std::string& piece) {
    std::string name = open.substr(0, open.find(" ("));
    std::replace(name.begin(), name.end(), ' ', '_');
    return whole.find(name) == whole.npos || piece.find(name) != piece.npos;
  }
  void end_word() {
    constexpr size_t kMostWords = 100000;
    if (started_ && out_.size() < kMostWords) out_.push_back(std::move(now_));
    fresh();
  }

  ShellValue open(std::string_view written, std::string what) {
    ShellWord w{std::string(written), line_, {}};
    for (char& c : w.text)
      if (std::isspace(static_cast<unsigned char>(c))) c = '_';  // one word, however it is split
    add_open(w, std::move(what));
    return {{w}, false};
  }
  static ShellValue known(std::string text, int line) { return {{{std::move(text), line, {}}}, false}; }

  ShellValue value_of(std::string_view raw) {
    if (raw == "$") return known("$", line_);
    if (raw[0] == '`' || raw.starts_with("$(")) {
      if (raw.starts_with("$((") && raw.ends_with("))")) return arithmetic(raw);
      return open(raw, std::string(raw.substr(0, 60)));
    }
    if (raw.starts_with("$'")) return known(std::string(raw.substr(2, raw.size() - 3)), line_);
    if (raw.starts_with("${")) return braces(raw);
    return variable(std::string(raw.substr(1)), raw);
  }

  ShellValue arithmetic(std::string_view raw) {
    std::string text;
    std::vector<std::string> missing;
    const std::string_view inside = raw.substr(3, raw.size() - 5);
    for (size_t i = 0; i < inside.size();) {
      size_t end = i + 1;
      if (inside[i] == '$') {
        end = shell_span_of_variable(inside, i);
        take_number(value_of(inside.substr(i, end - i)), text, missing);
      } else if (std::isalpha(static_cast<unsigned char>(inside[i])) || inside[i] == '_') {
        while (end < inside.size() && name_char(inside[end])) ++end;
        take_number(variable(std::string(inside.substr(i, end - i)), inside.substr(i, end - i)), text, missing);
      } else {
        text += inside[i];
      }
      i = end;
    }
    long long n = 0;
    if (missing.empty() && shell_arithmetic(text, n)) return known(fmt::format("{}", n), line_);
    ShellValue out = open(raw, missing.empty() ? std::string(raw) : missing[0]);
    for (const std::string& m : missing) add_open(out.words[0], m);
    return out;
  }
  static void take_number(const ShellValue& v, std::string& text, std::vector<std::string>& missing) {
    for (const ShellWord& w : v.words) {
      missing.insert(missing.end(), w.open.begin(), w.open.end());
      text += fmt::format("({})", w.text);
    }
    if (v.words.empty()) text += "0";
  }

  ShellValue variable(const std::string& name, std::string_view raw) {
    const auto v = scope_.find(name);
    if (v == scope_.end()) return open(raw, name);
    if (v->second.array)
      return {v->second.words.empty() ? std::vector<ShellWord>{} : std::vector<ShellWord>{v->second.words[0]}, false};
    return v->second;
  }

  ShellValue braces(std::string_view raw) {
    const std::string_view inside = raw.substr(2, raw.size() - 3);
    size_t end = 0;
    while (end < inside.size() && name_char(inside[end])) ++end;
    const std::string name(inside.substr(0, end));
    const std::string_view rest = inside.substr(end);
    if (name.empty()) return open(raw, std::string(raw));
    const auto v = scope_.find(name);
    const bool set = v != scope_.end();
    if (rest.empty()) return variable(name, raw);
    if (rest == "[@]" || rest == "[*]") return set ? v->second : open(raw, name);
    if (rest.starts_with("[")) {
      const auto index = parse_int(rest.substr(1, rest.size() - 2));
      if (!set || !index || *index < 0 || static_cast<size_t>(*index) >= v->second.words.size()) return open(raw, name);
      return {{v->second.words[static_cast<size_t>(*index)]}, false};
    }
    const bool colon = rest[0] == ':';
    const char op = rest.size() > (colon ? 1 : 0) ? rest[colon ? 1 : 0] : '\0';
    const std::string_view word = rest.substr(std::min(rest.size(), size_t{colon ? 2u : 1u}));
    const bool empty =
        set && (v->second.words.empty() || (v->second.words[0].text.empty() && v->second.words.size() == 1));
    const bool use = set && !(colon && empty);
    if (depth_ > kMostDepth) return open(raw, name);
    const auto fall_back = [&] { return ShellValue{{expand_text(word)}, false}; };
    if (op == '-') return use ? variable(name, raw) : fall_back();
    if (op == '=') {
      if (!use) scope_[name] = fall_back();
      return scope_[name];
    }
    if (op == '+') return use ? fall_back() : ShellValue{{}, false};
    if (op == '?') return use ? variable(name, raw) : open(raw, name);
    return open(raw, fmt::format("{} ({})", name, raw.substr(0, 40)));
  }

  ShellWord expand_text(std::string_view raw) {
    // Quotes within a default are removed: ${A:-"x"}.
    Expander inner(line_, scope_, depth_ + 1);
    ShellWord out{"", line_, {}};
    for (const ShellWord& w : inner.words(raw)) {
      if (!out.text.empty()) out.text += ' ';
      out.text += w.text;
      for (const std::string& o : w.open) add_open(out, o);
    }
    return out;
  }

  int line_;
  ShellScope& scope_;
  int depth_;
  std::vector<ShellWord> out_;
  ShellWord now_;
  bool started_ = false;
};

}  // namespace

std::vector<ShellWord> expand_shell(std::string_view raw, int line, ShellScope& scope) {
  return Expander(line, scope, 0).words(raw);
}

ShellWord expand_shell_text(std::string_view raw, int line, ShellScope& scope) {
  Expander e(line, scope, 0);
  e.fresh();
  e.quoted(raw);
  ShellWord out{"", line, {}};
  for (const ShellWord& w : e.take()) {
    if (!out.text.empty()) out.text += ' ';
    out.text += w.text;
    for (const std::string& o : w.open) add_open(out, o);
  }
  return out;
}

}  // namespace wt::import
