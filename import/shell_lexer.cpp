#include "import/shell_lexer.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace wt::import {

namespace {

constexpr int kMaxNesting = 64;

size_t span_at(std::string_view text, size_t i, int depth);

/// Behind the bracket that closes what opened before `i`; quotes and nested spans are skipped.
size_t closing(std::string_view text, size_t i, char open, char close, int depth) {
  int level = 1;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '\\') {
      i += 2;
    } else if (c == '\'' || c == '"' || c == '`' || (c == '$' && i + 1 < text.size())) {
      i = depth > kMaxNesting ? i + 1 : std::max(span_at(text, i, depth + 1), i + 1);
    } else {
      if (c == open) ++level;
      if (c == close && --level == 0) return i + 1;
      ++i;
    }
  }
  return text.size();
}

size_t span_at(std::string_view text, size_t i, int depth) {
  const char c = text[i];
  if (c == '\'') {
    const size_t end = text.find('\'', i + 1);
    return end == text.npos ? text.size() : end + 1;
  }
  if (c == '"' || c == '`') {
    for (++i; i < text.size() && text[i] != c;) {
      if (text[i] == '\\')
        i += 2;
      else if (text[i] == '$' && c == '"' && depth < kMaxNesting)
        i = std::max(span_at(text, i, depth + 1), i + 1);
      else
        ++i;
    }
    return std::min(i + 1, text.size());
  }
  if (c == '$' && i + 1 < text.size()) {
    if (text[i + 1] == '{') return closing(text, i + 2, '{', '}', depth);
    if (text[i + 1] == '(') return closing(text, i + 2, '(', ')', depth);
    if (text[i + 1] == '\'') return span_at(text, i + 1, depth);
  }
  return i + 1;
}

class Lexer {
 public:
  Lexer(std::string_view text, int line, std::vector<ShellToken>* directives)
      : text_(text), line_(line), directives_(directives) {}

  std::vector<ShellToken> run() {
    constexpr size_t kMostTokens = 200000;
    while (i_ < text_.size() && out_.size() < kMostTokens) step();
    push(ShellToken::Kind::end, "\n");
    return std::move(out_);
  }

 private:
  void push(ShellToken::Kind kind, std::string text) { out_.push_back({kind, std::move(text), line_}); }
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  void step() {
    const char c = text_[i_];
    if (c == '\n') {
      push(ShellToken::Kind::end, "\n");
      ++line_;
      ++i_;
      read_documents();
    } else if (c == '\\' && (at(i_ + 1) == '\n' || (at(i_ + 1) == '\r' && at(i_ + 2) == '\n'))) {
      i_ += at(i_ + 1) == '\n' ? 2 : 3;
      ++line_;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      ++i_;
    } else if (c == '#') {
      comment();
    } else if (c == '<' && at(i_ + 1) == '<' && at(i_ + 2) != '<') {
      here_document();
    } else if (std::string_view(";&|<>()").find(c) != std::string_view::npos) {
      op();
    } else {
      word();
    }
  }

  void comment() {
    const size_t end = std::min(text_.find('\n', i_), text_.size());
    const std::string_view line = text_.substr(i_, end - i_);
    if (directives_ && line.starts_with("#SBATCH"))
      directives_->push_back({ShellToken::Kind::word, std::string(line.substr(7)), line_});
    i_ = end;
  }

  void op() {
    const char c = text_[i_];
    size_t n = 1;
    if (at(i_ + 1) == c && c != '<') n = 2;
    if ((c == '>' || c == '<') && at(i_ + 1) == '&') n = 2;
    if (c == '<') n = at(i_ + 1) == '<' ? 3 : n;
    if (c == '&' && at(i_ + 1) == '>') n = 2;
    std::string text(text_.substr(i_, n));
    i_ += n;
    const ShellToken::Kind kind = text == ";" ? ShellToken::Kind::end : ShellToken::Kind::op;
    push(kind, std::move(text));
  }

  void word() {
    const size_t begin = i_;
    const int line = line_;
    while (i_ < text_.size()) {
      const char c = text_[i_];
      if (c == '\\') {
        i_ += 2;
      } else if (c == '\'' || c == '"' || c == '`' || c == '$') {
        i_ = shell_span(text_, i_);
      } else if (c == '(' && i_ > begin && text_[i_ - 1] == '=') {
        i_ = closing(text_, i_ + 1, '(', ')', 0);  // an array
        break;
      } else if (std::isspace(static_cast<unsigned char>(c)) ||
                 std::string_view(";&|<>()").find(c) != std::string_view::npos) {
        break;
      } else {
        ++i_;
      }
    }
    i_ = std::min(i_, text_.size());
    const std::string_view text = text_.substr(begin, i_ - begin);
    out_.push_back({ShellToken::Kind::word, std::string(text), line});
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  void here_document() {
    i_ += 2;
    bool tabs = false;
    if (at(i_) == '-') {
      tabs = true;
      ++i_;
    }
    while (at(i_) == ' ') ++i_;
    const size_t begin = i_;
    while (i_ < text_.size() && !std::isspace(static_cast<unsigned char>(text_[i_])) && text_[i_] != '>' &&
           text_[i_] != ';' && text_[i_] != '|')
      ++i_;
    Document d{std::string(text_.substr(begin, i_ - begin)), tabs, false};
    for (char quote : {'\'', '"', '\\'})
      if (d.word.find(quote) != d.word.npos) {
        d.quoted = true;
        std::erase(d.word, quote);
      }
    if (!d.word.empty()) waiting_.push_back(d);
  }

  void read_documents() {
    for (const Document& d : waiting_) {
      const int line = line_;
      std::string body;
      while (i_ < text_.size()) {
        const size_t end = std::min(text_.find('\n', i_), text_.size());
        std::string_view one = text_.substr(i_, end - i_);
        i_ = std::min(end + 1, text_.size());
        ++line_;
        if (!one.empty() && one.back() == '\r') one.remove_suffix(1);
        if (d.tabs) one.remove_prefix(std::min(one.find_first_not_of('\t'), one.size()));
        if (one == d.word) break;
        body += std::string(one) + "\n";
      }
      if (d.quoted) body.insert(0, 1, '\'').push_back('\'');
      out_.push_back({ShellToken::Kind::document, std::move(body), line});
    }
    waiting_.clear();
  }

  struct Document {
    std::string word;
    bool tabs = false, quoted = false;
  };
  std::string_view text_;
  size_t i_ = 0;
  int line_ = 1;
  std::vector<ShellToken>* directives_;
  std::vector<ShellToken> out_;
  std::vector<Document> waiting_;
};

}  // namespace

size_t shell_span(std::string_view text, size_t i) { return std::min(span_at(text, i, 0), text.size()); }

std::vector<ShellToken> lex_shell(std::string_view text, int first_line, std::vector<ShellToken>* directives) {
  return Lexer(text, first_line, directives).run();
}

}  // namespace wt::import
