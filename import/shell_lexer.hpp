// Raw tokens of a shell script: words with their quotes, operators, lines. Expansion is the reader's (shell.cpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wt::import {

struct ShellToken {
  enum class Kind : unsigned char { word, end, op, document } kind = Kind::word;  // end: newline or ;
  std::string text;  // a word with quotes as written; "A=(" ... ")" is one word; the body of a here-document
  int line = 0;
};

/// `directives` receives the text behind "#SBATCH".
std::vector<ShellToken> lex_shell(std::string_view text, int first_line, std::vector<ShellToken>* directives);

/// Position behind the quote, ${...}, $(...), $((...)) or `...` that opens at `i`.
size_t shell_span(std::string_view text, size_t i);

}  // namespace wt::import
