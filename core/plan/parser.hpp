// The recursive descent behind parse_plan(): one object for one text. Its members are defined by what they read: the
// whole and the words in parse.cpp, declarations in parse_declarations.cpp, blocks and ops in parse_block.cpp, programs
// and their orders in parse_order.cpp.
// Not for others to use: parse_plan() (plan_io.hpp) is. Bounded: what a small text may expand to is limited.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/text.hpp"
#include "core/plan/fold.hpp"
#include "core/plan/lexer.hpp"
#include "core/plan/names.hpp"
#include "core/plan/plan_io.hpp"

namespace wt::plan {

class Parser {
 public:
  Parser(std::string_view text, std::string_view where) : lex_(text), where_(where) {}
  Result<Plan> run();

 private:
  static constexpr int64_t kMostInvocations = 16 << 20;  // of all orders of a plan together
  static constexpr int64_t kMostOps = 1 << 20;           // instances of one block
  static constexpr int64_t kMostRanks = int64_t{1} << 31;
  static constexpr int64_t kMostBytes = int64_t{1} << 60;  // of one buffer
  static constexpr int64_t kAny = INT64_MAX;
  static constexpr size_t kMostErrors = 1000;
  static constexpr size_t kMostSuggestions = 20;  // each looks at every known name

  // Every reader returns false after it has reported; the line is then given up.
  bool fail(std::string what, std::string hint = "") {
    return fail_at(lex_.line, lex_.column, std::move(what), std::move(hint));
  }
  bool fail_at(int64_t line, int64_t column, std::string what, std::string hint = "");
  std::string found() const;
  bool expect(char c);
  bool expect(std::string_view word);
  bool accept(char c);
  bool accept(std::string_view word);
  bool integer(int64_t& v, int64_t least, int64_t most, std::string_view what);
  bool real(double& v, std::string_view what);
  bool text(std::string& v, std::string_view what);
  bool name(std::string& v, std::string_view what);
  bool end_of_line();
  template <class E, size_t N>
  bool spelled(E& v, const std::array<std::string_view, N>& names, std::string_view what);
  template <class Tag, class T>
  bool known(Id<Tag>& id, const std::unordered_map<std::string, uint32_t>& index, const std::vector<T>& all,
             std::string_view what);
  template <class T>
  bool declare(T& item, std::vector<T>& all, std::unordered_map<std::string, uint32_t>& index, std::string_view what);
  bool once(bool& seen, std::string_view what);

  bool statement();
  bool header();
  bool mesh();
  bool placement();
  bool micro_batches();
  bool filter(AxisFilter&);
  bool axis(AxisId&);
  bool group();
  bool buffer();
  bool part();
  bool persistent();
  bool view();
  bool block();
  bool segment();
  bool op();
  bool body(Op&);
  bool compute(Compute&);
  bool collective(Collective&);
  bool bytes(int64_t& v) { return expect("bytes") && integer(v, 0, kMostBytes, "bytes"); }
  bool refs(std::vector<BufferRef>&);
  bool ref(BufferRef&);
  bool waits(Block&, Op&);
  bool program();
  bool chunk();
  bool order(std::vector<Invocation>&);
  bool nodes(std::vector<FoldNode>&, int depth);
  bool invocation(FoldNode&, int depth);
  bool index(int64_t& base, std::array<int64_t, kFoldDepth>& strides, int depth);
  bool expand(const std::vector<FoldNode>&, std::array<int64_t, kFoldDepth>& at, int depth, std::vector<Invocation>&);
  void skip_order();

  Lexer lex_;
  std::string where_;
  Plan plan_;
  Diagnostics errors_;
  size_t suggestions_ = 0;
  std::unordered_map<std::string, uint32_t> groups_, buffers_, parts_, blocks_, programs_;
  bool seen_name_ = false, seen_seed_ = false, seen_mesh_ = false, seen_placement_ = false, seen_batches_ = false;
  // What following lines belong to; a declaration with a fault still takes its lines.
  enum class Inside : uint8_t { nothing, part, block, program } inside_ = Inside::nothing;
  int64_t block_ops_ = 0, invocations_ = 0;
  struct Index {
    int64_t base = 0;
    std::array<int64_t, kFoldDepth> strides{};
  };
  std::vector<std::array<Index, 2>> indices_;  // of the invocations of the current order, as they are read
};

template <class E, size_t N>
bool Parser::spelled(E& v, const std::array<std::string_view, N>& names, std::string_view what) {
  const auto e = lex_.kind == Token::word ? value_of<E>(names, lex_.text) : std::nullopt;
  if (!e) return fail(fmt::format("expected {}, found {}", what, found()), suggest(lex_.text, names));
  v = *e;
  lex_.next();
  return true;
}

template <class Tag, class T>
bool Parser::known(Id<Tag>& id, const std::unordered_map<std::string, uint32_t>& index, const std::vector<T>& all,
                   std::string_view what) {
  const int64_t line = lex_.line, column = lex_.column;
  std::string n;
  if (!name(n, what)) return false;
  const auto it = index.find(n);
  if (it == index.end()) {
    std::string hint;
    if (suggestions_ < kMostSuggestions) {
      ++suggestions_;
      std::vector<std::string_view> names;
      for (const T& t : all) names.push_back(t.name);
      if (auto near = closest(n, names)) hint = fmt::format("did you mean '{}'?", *near);
    }
    return fail_at(line, column, fmt::format("unknown {} '{}'", what, n), hint);
  }
  id.v = it->second;
  return true;
}

template <class T>
bool Parser::declare(T& item, std::vector<T>& all, std::unordered_map<std::string, uint32_t>& index,
                     std::string_view what) {
  const int64_t line = lex_.line, column = lex_.column;
  if (!name(item.name, what)) return false;
  if (!index.emplace(item.name, static_cast<uint32_t>(all.size())).second)
    return fail_at(line, column, fmt::format("{} '{}' is declared twice", what, item.name));
  return true;
}

}  // namespace wt::plan
