// Whole-number arithmetic of $(( )), of shell.hpp: precedence climbing over one line, checked against overflow.
#include <cctype>
#include <optional>

#include "core/base/text.hpp"
#include "import/shell.hpp"

namespace wt::import {

namespace {

/// Precedence climbing over one line.
class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}
  std::optional<long long> run() {
    const auto n = sum(0);
    skip();
    return i_ == text_.size() ? n : std::nullopt;
  }

 private:
  void skip() {
    while (i_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[i_]))) ++i_;
  }
  bool take(std::string_view op) {
    skip();
    if (text_.substr(i_, op.size()) != op) return false;
    i_ += op.size();
    return true;
  }
  std::optional<long long> sum(int depth) {
    auto a = product(depth);
    while (a) {
      long long r = 0;
      if (take("+")) {
        const auto b = product(depth);
        if (!b || __builtin_add_overflow(*a, *b, &r)) return std::nullopt;
      } else if (take("-")) {
        const auto b = product(depth);
        if (!b || __builtin_sub_overflow(*a, *b, &r)) return std::nullopt;
      } else {
        break;
      }
      a = r;
    }
    return a;
  }
  std::optional<long long> product(int depth) {
    auto a = power(depth);
    while (a) {
      long long r = 0;
      skip();
      const char op = i_ < text_.size() ? text_[i_] : '\0';
      if (op != '*' && op != '/' && op != '%') break;
      ++i_;
      const auto b = power(depth);
      if (!b) return std::nullopt;
      if (op == '*' && __builtin_mul_overflow(*a, *b, &r)) return std::nullopt;
      if (op != '*' && (*b == 0 || *b == -1)) return std::nullopt;
      if (op == '/') r = *a / *b;
      if (op == '%') r = *a % *b;
      a = r;
    }
    return a;
  }
  std::optional<long long> power(int depth) {
    auto a = atom(depth);
    if (!a || !take("**")) return a;
    const auto b = power(depth + 1);
    if (!b || *b < 0 || *b > 62) return std::nullopt;
    long long r = 1;
    for (long long k = 0; k < *b; ++k)
      if (__builtin_mul_overflow(r, *a, &r)) return std::nullopt;
    return r;
  }
  std::optional<long long> atom(int depth) {
    constexpr int kMost = 64;
    if (depth > kMost) return std::nullopt;
    if (take("-")) {
      const auto n = atom(depth + 1);
      if (!n) return n;
      return -*n;
    }
    if (take("(")) {
      const auto n = sum(depth + 1);
      return n && take(")") ? n : std::nullopt;
    }
    skip();
    const size_t begin = i_;
    while (i_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[i_]))) ++i_;
    const auto n = parse_int(text_.substr(begin, i_ - begin));
    if (!n || *n > (int64_t{1} << 62)) return std::nullopt;
    return *n;
  }
  std::string_view text_;
  size_t i_ = 0;
};

}  // namespace

bool shell_arithmetic(std::string_view text, long long& out) {
  const auto n = Arithmetic(text).run();
  if (n) out = *n;
  return n.has_value();
}

}  // namespace wt::import
