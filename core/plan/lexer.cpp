#include "core/plan/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace wt::plan {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

}  // namespace

void Lexer::next() {
  fault.clear();
  for (;; ++at_) {
    while (at_ < text_.size() && text_[at_] == '#')
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    if (at_ >= text_.size()) {
      kind = Token::end;
      text = {};
      line = line_number_;
      column = static_cast<int64_t>(at_ - line_start_) + 1;
      first_on_line = true;
      return;
    }
    const char c = text_[at_];
    if (c == '\n') {
      line = line_number_++;
      column = static_cast<int64_t>(at_ - line_start_) + 1;
      line_start_ = at_ + 1;
      const bool empty = std::exchange(fresh_, true);
      if (empty || braces > 0) continue;
      kind = Token::line_end;
      text = {};
      ++at_;
      return;
    }
    if (c != ' ' && c != '\t' && c != '\r') break;
  }
  first_on_line = std::exchange(fresh_, false);
  line = line_number_;
  column = static_cast<int64_t>(at_ - line_start_) + 1;
  const size_t begin = at_;
  const char c = text_[at_];
  if (is_letter(c)) {
    kind = Token::word;
    // A dot joins words ("qkv.bias"), but not a word and a number ("forward.0").
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]) ||
                                  (text_[at_] == '.' && at_ + 1 < text_.size() && is_letter(text_[at_ + 1]))))
      ++at_;
  } else if (is_digit(c)) {
    kind = Token::number;
    auto digits = [&] {
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    };
    digits();
    if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      ++at_;
      digits();
    }
    if (at_ < text_.size() && text_[at_] == 'e') {
      size_t exponent = at_ + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && is_digit(text_[exponent])) {
        at_ = exponent;
        digits();
      }
    }
  } else if (c == '"') {
    read_string();
  } else {
    kind = Token::punctuation;
    at_ += text_.substr(at_, 2) == "->" ? 2 : 1;  // "(x) -y" releases y, "(x) -> (y)" writes it
  }
  text = text_.substr(begin, at_ - begin);
}

void Lexer::read_string() {
  kind = Token::string;
  value.clear();
  for (++at_; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
    char c = text_[at_];
    if (c == '"') {
      ++at_;
      return;
    }
    if (c == '\\' && at_ + 1 < text_.size()) {
      c = text_[++at_];
      if (c == 'n') {
        c = '\n';
      } else if (c == 'x') {
        unsigned code = 0;
        const char* first = text_.data() + at_ + 1;
        const char* last = first + std::min<size_t>(2, text_.size() - at_ - 1);
        const auto [end, error] = std::from_chars(first, last, code, 16);
        if (error != std::errc() || end != first + 2)
          fault = "'\\x' wants two hexadecimal digits";
        else
          at_ += 2;
        c = static_cast<char>(code);
      } else if (c != '"' && c != '\\') {
        fault = fmt::format("unknown escape '\\{}' in a string", c == '\n' ? ' ' : c);
        if (c == '\n') break;
      }
    }
    value += c;
  }
  fault = "the string has no closing quote";
}

}  // namespace wt::plan
