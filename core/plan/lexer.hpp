// The words, numbers, strings and signs of the text form of a plan, one at a time with their place.
// Not a check of what stands where: that is the parser's. Invariant: next() always moves on, so every loop over tokens ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wt::plan {

enum class Token : uint8_t { word, number, string, punctuation, line_end, end };

/// One token at a time; line ends are tokens except inside braces.
class Lexer {
 public:
  explicit Lexer(std::string_view whole) : text_(whole) { next(); }

  Token kind = Token::end;
  std::string_view text;  // of the token as written
  std::string value;      // of a string, unescaped
  int64_t line = 1, column = 1;
  bool first_on_line = true;
  int braces = 0;
  std::string fault;  // a token that is none: what is wrong with it

  void next();
  void skip_line() {
    while (kind != Token::line_end && kind != Token::end) next();
  }
  bool is(char c) const { return kind == Token::punctuation && text.size() == 1 && text[0] == c; }
  bool is_arrow() const { return kind == Token::punctuation && text.size() == 2; }
  bool is(std::string_view word) const { return kind == Token::word && text == word; }

 private:
  void read_string();

  std::string_view text_;
  size_t at_ = 0, line_start_ = 0;
  int64_t line_number_ = 1;
  bool fresh_ = true;
};

}  // namespace wt::plan
