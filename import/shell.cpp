#include "import/shell.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "core/base/text.hpp"
#include "import/shell_expand.hpp"
#include "import/shell_lexer.hpp"

namespace wt::import {

namespace {

constexpr int kMostDepth = 8;            // eval in eval
constexpr size_t kMostCommands = 20000;  // of a whole script
enum class Truth : unsigned char { no, yes, unknown };

Truth both(Truth a, Truth b) {
  if (a == Truth::no || b == Truth::no) return Truth::no;
  return a == Truth::yes && b == Truth::yes ? Truth::yes : Truth::unknown;
}
Truth either(Truth a, Truth b) {
  if (a == Truth::yes || b == Truth::yes) return Truth::yes;
  return a == Truth::no && b == Truth::no ? Truth::no : Truth::unknown;
}
Truth negated(Truth t) { return t == Truth::unknown ? t : t == Truth::yes ? Truth::no : Truth::yes; }

/// Length of the name in "NAME=..." or "NAME+=..."; 0 if it is no assignment.
size_t assigned_name(std::string_view raw) {
  size_t i = 0;
  while (i < raw.size() && (std::isalnum(static_cast<unsigned char>(raw[i])) || raw[i] == '_')) ++i;
  if (i == 0 || std::isdigit(static_cast<unsigned char>(raw[0]))) return 0;
  return i < raw.size() && (raw[i] == '=' || (raw[i] == '+' && i + 1 < raw.size() && raw[i + 1] == '=')) ? i : 0;
}

class Reader {
 public:
  Reader(ShellScript& out, ShellScope& scope, const std::map<std::string, std::string>& given)
      : out_(out), scope_(scope), given_(given) {}

  void run(std::string_view text, int first_line, int depth, std::vector<ShellToken>* directives) {
    const std::vector<ShellToken> tokens = lex_shell(text, first_line, directives);
    depth_ = depth;
    for (size_t i = 0; i < tokens.size();) i = statement(tokens, i);
  }

 private:
  struct Frame {
    std::string kind;  // if, loop, case, function
    Truth now = Truth::yes, taken = Truth::no;
    int line = 0;
  };
  using Tokens = std::vector<ShellToken>;

  Truth active() const {
    Truth t = Truth::yes;
    for (const Frame& f : frames_) t = both(t, f.now);
    return t;
  }
  std::string why_unsure() const {
    for (const Frame& f : frames_)
      if (f.now == Truth::unknown)
        return fmt::format("in {} of line {}", f.kind == "if" ? "a condition" : "a " + f.kind, f.line);
    return "";
  }

  /// One statement; returns the position behind it.
  size_t statement(const Tokens& t, size_t i) {
    if (t[i].kind == ShellToken::Kind::document) return document(t, i);
    if (t[i].kind != ShellToken::Kind::word) return case_pattern_or_next(t, i);
    const std::string& word = t[i].text;
    if (word == "if" || word == "elif" || word == "while" || word == "until") return condition(t, i);
    if (word == "then" || word == "do" || word == "{" || word == "!" || word == "time") return i + 1;
    if (word == "else") {
      if (!frames_.empty()) frames_.back().now = negated(frames_.back().taken);
      return i + 1;
    }
    if (word == "fi" || word == "done" || word == "esac" || word == "}") {
      if (!frames_.empty() && (word != "}" || frames_.back().kind == "function")) frames_.pop_back();
      return i + 1;
    }
    if (word == "for" || word == "select") return loop(t, i);
    if (word == "case") return open_case(t, i);
    if (word == "function" || (i + 2 < t.size() && t[i + 1].text == "(" && t[i + 2].text == ")")) return function(t, i);
    return command(t, i);
  }

  size_t document(const Tokens& t, size_t i) {
    const std::string& raw = t[i].text;
    const bool literal = raw.size() >= 2 && raw.front() == '\'' && raw.back() == '\'';
    ShellWord text{literal ? raw.substr(1, raw.size() - 2) : raw, t[i].line, {}};
    if (!literal) text = expand_shell_text(raw, t[i].line, scope_);
    if (active() != Truth::no) out_.documents.push_back({std::move(text), t[i].line});
    return i + 1;
  }

  size_t case_pattern_or_next(const Tokens& t, size_t i) {
    // ";;" ends a branch of a case: what follows up to ")" is the next pattern.
    if (t[i].text == ";;" && !frames_.empty() && frames_.back().kind == "case") {
      size_t k = i + 1;
      while (k < t.size() && t[k].text != ")" && t[k].text != "esac") ++k;
      return k < t.size() && t[k].text == ")" ? k + 1 : k;
    }
    return i + 1;
  }

  void push(std::string kind, Truth now, int line) {
    constexpr size_t kMostFrames = 256;
    if (frames_.size() < kMostFrames) frames_.push_back({std::move(kind), now, now, line});
  }

  size_t loop(const Tokens& t, size_t i) {
    const int line = t[i].line;
    std::string name;
    std::vector<ShellWord> values;
    bool of_words = false;
    size_t k = i + 1;
    if (k < t.size() && t[k].kind == ShellToken::Kind::word) name = t[k].text;
    for (++k; k < t.size() && t[k].text != "do"; ++k) {
      if (t[k].text == "in")
        of_words = true;
      else if (of_words && t[k].kind == ShellToken::Kind::word)
        for (ShellWord& w : expand_shell(t[k].text, t[k].line, scope_)) values.push_back(std::move(w));
    }
    push("loop", values.size() == 1 && values[0].open.empty() ? Truth::yes : Truth::unknown, line);
    if (values.size() == 1)
      assign(name, {values, false}, line, false);
    else if (!name.empty())
      scope_[name] = {{{fmt::format("${}", name), line, {fmt::format("{} (of the loop in line {})", name, line)}}},
                      false};
    return k;
  }

  size_t open_case(const Tokens& t, size_t i) {
    push("case", Truth::unknown, t[i].line);
    size_t k = i + 1;
    while (k < t.size() && t[k].text != ")" && t[k].text != "esac") ++k;
    return k < t.size() && t[k].text == ")" ? k + 1 : k;
  }

  size_t function(const Tokens& t, size_t i) {
    size_t k = i;
    while (k < t.size() && t[k].text != "{" && t[k].text != "}") ++k;
    push("function", Truth::yes, t[i].line);
    return k < t.size() ? k + 1 : k;
  }

  size_t condition(const Tokens& t, size_t i) {
    const std::string word = t[i].text;
    const std::string_view end = word == "if" || word == "elif" ? "then" : "do";
    const int line = t[i].line;
    size_t k = i + 1;
    while (k < t.size() && !(t[k].kind == ShellToken::Kind::word && t[k].text == end)) ++k;
    if (word == "while" || word == "until") {
      push("loop", Truth::unknown, line);
      return k;
    }
    const Truth value = judge(t, i + 1, k);
    if (word == "if") {
      push("if", value, line);
    } else if (!frames_.empty()) {
      Frame& f = frames_.back();
      f.now = both(negated(f.taken), value);
      f.taken = either(f.taken, f.now);
    }
    return k;
  }

  /// [ a = b ] && [[ c -gt d ]] ...
  Truth judge(const Tokens& t, size_t begin, size_t end) {
    Truth all = Truth::unknown;
    bool first = true, is_or = false, negate = false;
    for (size_t i = begin; i < end;) {
      if (t[i].text == "&&" || t[i].text == "||") {
        is_or = t[i].text == "||";
        ++i;
        continue;
      }
      if (t[i].kind == ShellToken::Kind::end) {
        ++i;
        continue;
      }
      if (t[i].text == "!") {
        negate = !negate;
        ++i;
        continue;
      }
      size_t k = i;
      while (k < end && t[k].kind != ShellToken::Kind::end &&
             !(t[k].kind == ShellToken::Kind::op && (t[k].text == "&&" || t[k].text == "||") && t[i].text != "[[")) {
        if (t[i].text == "[[" && t[k].text == "]]") {
          ++k;
          break;
        }
        ++k;
      }
      Truth one = test(t, i, k);
      if (negate) one = negated(one);
      negate = false;
      all = first ? one : is_or ? either(all, one) : both(all, one);
      first = false;
      i = std::max(k, i + 1);
    }
    return all;
  }

  Truth test(const Tokens& t, size_t begin, size_t end) {
    if (t[begin].text == "true" || t[begin].text == ":") return Truth::yes;
    if (t[begin].text == "false") return Truth::no;
    if (t[begin].text != "[" && t[begin].text != "[[" && t[begin].text != "test") return Truth::unknown;
    std::vector<ShellWord> w;
    for (size_t i = begin + 1; i < end; ++i) {
      if (t[i].text == "]" || t[i].text == "]]") break;
      if (t[i].kind != ShellToken::Kind::word) {
        if (t[i].text == "&&" || t[i].text == "||") return Truth::unknown;
        w.push_back({t[i].text, t[i].line, {}});
        continue;
      }
      ShellWord one = joined(expand_shell(t[i].text, t[i].line, scope_), t[i].line);
      // A name that nothing set and nothing gives is empty to the shell too, unless the user's environment has it.
      w.push_back(std::move(one));
    }
    if (!w.empty() && w[0].text == "!") return negated(compare({w.begin() + 1, w.end()}));
    return compare(w);
  }

  static Truth compare(const std::vector<ShellWord>& w) {
    for (const ShellWord& x : w)
      if (!x.open.empty()) return Truth::unknown;
    const auto of = [](bool b) { return b ? Truth::yes : Truth::no; };
    if (w.size() == 1) return of(!w[0].text.empty());
    if (w.size() == 2 && w[0].text == "-z") return of(w[1].text.empty());
    if (w.size() == 2 && w[0].text == "-n") return of(!w[1].text.empty());
    if (w.size() != 3) return Truth::unknown;
    const std::string& op = w[1].text;
    if (op == "=" || op == "==")
      return w[2].text.find_first_of("*?[") == std::string::npos ? of(w[0].text == w[2].text) : Truth::unknown;
    if (op == "!=") return of(w[0].text != w[2].text);
    const auto a = parse_int(w[0].text), b = parse_int(w[2].text);
    if (!a || !b) return Truth::unknown;
    if (op == "-eq") return of(*a == *b);
    if (op == "-ne") return of(*a != *b);
    if (op == "-gt") return of(*a > *b);
    if (op == "-ge") return of(*a >= *b);
    if (op == "-lt") return of(*a < *b);
    if (op == "-le") return of(*a <= *b);
    return Truth::unknown;
  }

  static ShellWord joined(const std::vector<ShellWord>& words, int line) {
    ShellWord out{"", line, {}};
    for (const ShellWord& w : words) {
      if (!out.text.empty()) out.text += ' ';
      out.text += w.text;
      out.open.insert(out.open.end(), w.open.begin(), w.open.end());
    }
    return out;
  }

  void assign(const std::string& name, ShellValue value, int line, bool append) {
    if (given_.contains(name) || name.empty()) return;
    const Truth now = active();
    if (now == Truth::no) return;
    const auto old = scope_.find(name);
    if (append && old != scope_.end()) {
      ShellValue sum = old->second;
      if (sum.array || value.array) {
        sum.array = true;
        sum.words.insert(sum.words.end(), value.words.begin(), value.words.end());
      } else if (!sum.words.empty() && !value.words.empty()) {
        sum.words[0].text += value.words[0].text;
        sum.words[0].open.insert(sum.words[0].open.end(), value.words[0].open.begin(), value.words[0].open.end());
      }
      value = std::move(sum);
    }
    constexpr size_t kMostWords = 100000, kMostText = 1 << 20;
    if (value.words.size() > kMostWords || (!value.words.empty() && value.words[0].text.size() > kMostText)) return;
    if (now == Truth::unknown) {
      const bool same = old != scope_.end() && old->second.words.size() == 1 && value.words.size() == 1 &&
                        old->second.words[0].text == value.words[0].text;
      if (!same)
        for (ShellWord& w : value.words) w.open.push_back(fmt::format("{} ({})", name, why_unsure()));
    }
    (void)line;
    scope_[name] = std::move(value);
  }

  void assignment(const std::string& raw, size_t length, int line) {
    const bool append = raw[length] == '+';
    const std::string name = raw.substr(0, length);
    const std::string right = raw.substr(length + (append ? 2 : 1));
    ShellValue value;
    if (right.starts_with("(")) {
      value.array = true;
      std::vector<ShellToken> inside =
          lex_shell(std::string_view(right).substr(1, right.size() >= 2 ? right.size() - 2 : 0), line, nullptr);
      for (const ShellToken& x : inside)
        if (x.kind == ShellToken::Kind::word)
          for (ShellWord& w : expand_shell(x.text, x.line, scope_)) value.words.push_back(std::move(w));
    } else {
      value.words.push_back(joined(expand_unsplit(right, line), line));
    }
    assign(name, std::move(value), line, append);
  }
  /// The right side of an assignment is not split: A=$B keeps the blanks of B.
  std::vector<ShellWord> expand_unsplit(const std::string& raw, int line) {
    if (raw.find_first_of("'\"\\") == std::string::npos) return {expand_shell_text(raw, line, scope_)};
    return expand_shell(raw, line, scope_);
  }

  size_t command(const Tokens& t, size_t i) {
    ShellCommand c;
    c.line = t[i].line;
    bool leading = true, declares = false;
    size_t k = i;
    for (; k < t.size() && t[k].kind != ShellToken::Kind::end; ++k) {
      if (t[k].kind == ShellToken::Kind::document) {
        document(t, k);
        continue;
      }
      if (t[k].kind == ShellToken::Kind::op) {
        if (t[k].text == ">" || t[k].text == ">>" || t[k].text == "<" || t[k].text == "<<<" || t[k].text == "&>" ||
            t[k].text == ">&") {
          ++k;  // a file or a stream
          if (k >= t.size() || t[k].kind == ShellToken::Kind::end) break;
          continue;
        }
        break;  // | && || & ( ) end the command
      }
      const std::string& raw = t[k].text;
      if (leading && (raw == "export" || raw == "declare" || raw == "local" || raw == "readonly" || raw == "typeset")) {
        declares = true;
        continue;
      }
      const size_t name = leading || declares ? assigned_name(raw) : 0;
      if (name > 0) {
        assignment(raw, name, t[k].line);
        continue;
      }
      if (declares) continue;  // export NAME, declare -a
      leading = false;
      for (ShellWord& w : expand_shell(raw, t[k].line, scope_)) c.words.push_back(std::move(w));
    }
    finish(std::move(c));
    return std::max(k, i + 1);
  }

  void finish(ShellCommand c) {
    if (c.words.empty() || active() == Truth::no || out_.commands.size() >= kMostCommands) return;
    c.conditional = active() == Truth::unknown;
    const std::string head = c.words[0].text;
    if ((head == "source" || head == ".") && c.words.size() > 1) out_.sourced.push_back(c.words[1].text);
    std::string inner;
    if (head == "eval") inner = joined({c.words.begin() + 1, c.words.end()}, c.line).text;
    for (size_t i = 0; i + 2 < c.words.size() && inner.empty(); ++i)
      if ((c.words[i].text == "bash" || c.words[i].text == "sh") && c.words[i + 1].text.starts_with("-") &&
          c.words[i + 1].text.ends_with("c"))
        inner = c.words[i + 2].text;
    const int line = c.line;
    out_.commands.push_back(std::move(c));
    if (!inner.empty() && depth_ < kMostDepth) {
      Reader deeper(out_, scope_, given_);
      deeper.frames_ = frames_;
      deeper.run(inner, line, depth_ + 1, nullptr);
    }
  }

  ShellScript& out_;
  ShellScope& scope_;
  const std::map<std::string, std::string>& given_;
  std::vector<Frame> frames_;
  int depth_ = 0;
};

/// Numbers that Slurm puts into the environment of a job with these directives.
void take_directives(const std::vector<ShellToken>& raw, ShellScript& out, ShellScope& scope) {
  for (const ShellToken& d : raw) {
    for (const ShellToken& word : lex_shell(d.text, d.line, nullptr))
      if (word.kind == ShellToken::Kind::word)
        for (ShellWord& w : expand_shell(word.text, word.line, scope)) out.directives.push_back(std::move(w));
  }
  for (size_t i = 0; i < out.directives.size(); ++i) {
    std::string text = out.directives[i].text, value;
    if (const size_t equals = text.find('='); equals != text.npos) {
      value = text.substr(equals + 1);
      text.resize(equals);
    } else if (i + 1 < out.directives.size()) {
      value = out.directives[i + 1].text;
    }
    const auto set = [&](const char* name) {
      if (!value.empty() && parse_int(value)) scope[name] = {{{value, out.directives[i].line, {}}}, false};
    };
    if (text == "--nodes" || text == "-N") {
      set("SLURM_NNODES");
      set("SLURM_JOB_NUM_NODES");
    }
    if (text == "--ntasks-per-node") set("SLURM_NTASKS_PER_NODE");
    if (text == "--gpus-per-node") set("SLURM_GPUS_PER_NODE");
  }
}

}  // namespace

ShellScript read_shell(std::string_view text, const std::map<std::string, std::string>& given) {
  ShellScript out;
  ShellScope scope;
  std::vector<ShellToken> directives;
  lex_shell(text, 1, &directives);
  take_directives(directives, out, scope);
  for (const auto& [name, value] : given) scope[name] = {{{value, 0, {}}}, false};
  Reader(out, scope, given).run(text, 1, 0, nullptr);
  for (const auto& [name, value] : scope) out.variables[name] = value.words;
  return out;
}

}  // namespace wt::import
