#include "import/python_calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/base/text.hpp"

namespace wt::import {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

/// The index behind the string or comment that starts at i; i where none does.
size_t skip_quiet(std::string_view t, size_t i) {
  if (t[i] == '#') return std::min(t.find('\n', i), t.size());
  if (t[i] != '"' && t[i] != '\'') return i;
  const std::string_view three = t.substr(i, 3);
  if (three == "\"\"\"" || three == "'''") {
    const size_t end = t.find(three, i + 3);
    return end == t.npos ? t.size() : end + 3;
  }
  const char quote = t[i];
  for (++i; i < t.size() && t[i] != quote && t[i] != '\n'; ++i)
    if (t[i] == '\\') ++i;
  return std::min(i + 1, t.size());
}

class Lines {
 public:
  explicit Lines(std::string_view text) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      lines_.push_back(text.substr(begin, end - begin));
      starts_.push_back(begin);
      begin = end + 1;
    }
  }
  int number(size_t at) const {
    return static_cast<int>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin());
  }
  static size_t indent(std::string_view line) { return std::min(line.find_first_not_of(" \t"), line.size()); }

  /// The conditions above line `n` (from 1) that it stands below. Bounded: a file of deep nesting asks for 32 levels.
  void conditions(int n, PythonCall& call) const {
    size_t margin = indent(lines_[static_cast<size_t>(n) - 1]);
    constexpr int kMostLevels = 32, kMostLines = 2000;
    int levels = 0;
    for (int i = n - 2; i >= 0 && n - i < kMostLines && margin > 0 && levels < kMostLevels; --i) {
      const std::string_view line = lines_[static_cast<size_t>(i)];
      const size_t in = indent(line);
      if (in >= line.size() || line[in] == '#' || in >= margin) continue;
      margin = in;
      ++levels;
      const std::string_view code = line.substr(in);
      const bool branches = code.starts_with("if ") || code.starts_with("elif ");
      // The usual guard of a program's entry is no condition.
      if (code.find("__name__") != code.npos) continue;
      call.conditional = call.conditional || branches || code.starts_with("else") || code.starts_with("for ") ||
                         code.starts_with("while ") || code.starts_with("match ") || code.starts_with("case ");
      const size_t equals = code.find("==");
      if (!branches || equals == code.npos) continue;
      const std::string_view right = trimmed(code.substr(equals + 2));
      if (right.empty() || (right[0] != '"' && right[0] != '\'')) continue;
      const size_t end = right.find(right[0], 1);
      if (end != right.npos) call.branch.emplace_back(right.substr(1, end - 1));
    }
  }

 private:
  std::vector<std::string_view> lines_;
  std::vector<size_t> starts_;
};

void add_argument(std::string_view text, int line, PythonCall& call) {
  const std::string_view whole = trimmed(text);
  if (whole.empty()) return;
  size_t end = 0;
  while (end < whole.size() && is_word(whole[end])) ++end;
  const std::string_view rest = trimmed(whole.substr(end));
  const bool keyed = end > 0 && rest.size() > 1 && rest[0] == '=' && rest[1] != '=';
  call.arguments.push_back(
      {keyed ? std::string(whole.substr(0, end)) : "", std::string(keyed ? trimmed(rest.substr(1)) : whole), line});
}

/// Reads the arguments from behind the bracket at `i`, comments left out; the index behind the closing one.
size_t read_arguments(std::string_view t, size_t i, const Lines& lines, PythonCall& call) {
  int depth = 1;
  std::string piece;
  size_t first = i;  // where the present argument begins
  const auto close = [&] {
    add_argument(piece, lines.number(first), call);
    piece.clear();
  };
  while (i < t.size()) {
    const size_t behind = skip_quiet(t, i);
    const char c = t[i];
    if (piece.empty()) first = i;
    if (behind != i) {
      if (c != '#') piece += t.substr(i, behind - i);
      i = behind;
      continue;
    }
    ++i;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if ((c == ')' || c == ']' || c == '}') && --depth == 0) {
      close();
      return i;
    }
    if (c == ',' && depth == 1)
      close();
    else if (!piece.empty() || !std::isspace(static_cast<unsigned char>(c)))
      piece += c;
  }
  return i;  // never closed: the call is left out
}

std::optional<double> numeric(std::string_view s) {
  const size_t power = s.find("**");
  if (power != s.npos) {
    const auto base = parse_int(trimmed(s.substr(0, power))), exponent = parse_int(trimmed(s.substr(power + 2)));
    if (!base || !exponent || *exponent < 0 || *exponent > 62) return std::nullopt;
    return std::pow(static_cast<double>(*base), static_cast<double>(*exponent));
  }
  std::string plain;
  for (char c : s)
    if (c != '_') plain += c;
  const bool digits = !plain.empty() && (std::isdigit(static_cast<unsigned char>(plain[0])) || plain[0] == '-' ||
                                         (plain[0] == '.' && plain.size() > 1));
  if (!digits) return std::nullopt;
  char* end = nullptr;
  const double v = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size() || !std::isfinite(v)) return std::nullopt;
  return v;
}

std::string in_digits(double v) {
  constexpr double kExact = 9e15;  // below: whole numbers of a double are exact
  if (std::abs(v) < kExact && v == std::floor(v)) return fmt::format("{}", static_cast<int64_t>(v));
  return fmt::format("{}", v);
}

/// A name with dots and nothing else.
bool is_name(std::string_view s) {
  if (s.empty() || std::isdigit(static_cast<unsigned char>(s[0]))) return false;
  return std::all_of(s.begin(), s.end(), [](char c) { return is_word(c) || c == '.'; });
}

std::optional<std::string> value_at(std::string_view e, const PythonNames& names, std::string& open, int depth) {
  e = trimmed(e);
  constexpr int kDeepest = 8;
  const auto unknown = [&]() -> std::optional<std::string> {
    if (open.empty()) open = std::string(e.substr(0, 60));
    return std::nullopt;
  };
  if (depth > kDeepest || e.empty()) return unknown();
  if (e == "True" || e == "False" || e == "None") return std::string(e);
  if (const auto n = numeric(e)) return in_digits(*n);
  if (e[0] == '"' || e[0] == '\'') {
    const size_t end = e.find(e[0], 1);
    return end == e.size() - 1 ? std::optional(std::string(e.substr(1, end - 1))) : unknown();
  }
  if (e.starts_with("not ")) {
    const auto inner = value_at(e.substr(4), names, open, depth + 1);
    if (!inner) return std::nullopt;
    return *inner == "False" || *inner == "0" || *inner == "None" || inner->empty() ? "True" : "False";
  }
  for (std::string_view sign : {"==", "!=", ">=", "<=", ">", "<"}) {
    const size_t at = e.find(sign);
    if (at == e.npos) continue;
    const auto left = value_at(e.substr(0, at), names, open, depth + 1),
               right = value_at(e.substr(at + sign.size()), names, open, depth + 1);
    if (!left || !right) return std::nullopt;
    const auto l = numeric(*left), r = numeric(*right);
    if (sign == "==" || sign == "!=") return (*left == *right) == (sign == "==") ? "True" : "False";
    if (!l || !r) return unknown();
    const bool holds = sign == ">=" ? *l >= *r : sign == "<=" ? *l <= *r : sign == ">" ? *l > *r : *l < *r;
    return holds ? "True" : "False";
  }
  if (!is_name(e)) return unknown();
  if (auto known = names(e)) return known;
  const size_t dot = e.find('.');
  const bool constant = dot != e.npos && (e.starts_with("torch.") || std::isupper(static_cast<unsigned char>(e[0])));
  return constant ? std::optional(std::string(e)) : unknown();
}

}  // namespace

const PythonArgument* PythonCall::find(std::string_view key) const {
  for (const PythonArgument& a : arguments)
    if (a.key == key) return &a;
  return nullptr;
}

std::vector<PythonCall> python_calls(std::string_view t, std::span<const std::string_view> names) {
  std::vector<PythonCall> out;
  const Lines lines(t);
  std::string_view before;  // the word before the present one: class X( and def x( are no calls
  for (size_t i = 0; i < t.size();) {
    const size_t behind = skip_quiet(t, i);
    if (behind != i) {
      i = behind;
      continue;
    }
    if (!is_word(t[i])) {
      if (!std::isspace(static_cast<unsigned char>(t[i]))) before = {};
      ++i;
      continue;
    }
    size_t end = i;
    while (end < t.size() && is_word(t[end])) ++end;
    const std::string_view word = t.substr(i, end - i);
    const bool wanted = std::find(names.begin(), names.end(), word) != names.end() && before != "class" &&
                        before != "def" && end < t.size() && t[end] == '(';
    before = word;
    if (!wanted) {
      i = end;
      continue;
    }
    PythonCall call;
    call.name = std::string(word);
    call.line = lines.number(i);
    const size_t after = read_arguments(t, end + 1, lines, call);
    if (after <= t.size() && after > 0 && t[after - 1] == ')') {
      lines.conditions(call.line, call);
      out.push_back(std::move(call));
    }
    i = after;
  }
  return out;
}

std::optional<std::string> python_value(std::string_view expression, const PythonNames& names, std::string& open) {
  return value_at(expression, names, open, 0);
}

std::optional<std::string> python_constant(std::string_view text, std::string_view name) {
  std::optional<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(name)) continue;
    line = trimmed(line.substr(name.size()));
    if (line.size() < 2 || line[0] != '=' || line[1] == '=') continue;
    if (out) return std::nullopt;  // set twice: which one holds is the program's
    std::string_view value = trimmed(line.substr(1));
    if (const size_t hash = value.find('#'); hash != value.npos && value.find_first_of("\"'") == value.npos)
      value = trimmed(value.substr(0, hash));
    out = std::string(value);
  }
  return out;
}

}  // namespace wt::import
