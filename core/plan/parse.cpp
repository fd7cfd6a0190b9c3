// Reads the text form back (print.cpp states its order). Recursive descent over lines: a line with a fault is reported
// with line and column and passed over, so all faults come out at once.
// Not validation: names must be known and numbers sane, the rest is validate's.
// Bounded: what a small text may expand to is limited (kMostInvocations and the sizes below).
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/text.hpp"
#include "core/plan/fold.hpp"
#include "core/plan/names.hpp"
#include "core/plan/plan_io.hpp"

namespace wt::plan {
namespace {

constexpr int64_t kMostInvocations = 16 << 20;  // of all orders of a plan together
constexpr int64_t kMostOps = 1 << 20;           // instances of one block
constexpr int64_t kMostRanks = int64_t{1} << 31;
constexpr int64_t kMostBytes = int64_t{1} << 60;  // of one buffer
constexpr int64_t kAny = INT64_MAX;
constexpr size_t kMostErrors = 1000;
constexpr size_t kMostSuggestions = 20;  // each looks at every known name

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

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

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

class Parser {
 public:
  Parser(std::string_view text, std::string_view where) : lex_(text), where_(where) {}
  Result<Plan> run();

 private:
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

bool Parser::fail_at(int64_t line, int64_t column, std::string what, std::string hint) {
  if (errors_.size() < kMostErrors)
    errors_.push_back({fmt::format("{}:{}:{}", where_, line, column), std::move(what), std::move(hint)});
  return false;
}

std::string Parser::found() const {
  switch (lex_.kind) {
    case Token::end: return "the end of the text";
    case Token::line_end: return "the end of the line";
    default: {
      constexpr size_t kShown = 40;
      std::string shown(lex_.text.substr(0, kShown));
      for (char& c : shown)
        if (static_cast<unsigned char>(c) < 0x20) c = '?';
      return fmt::format("'{}'", shown);
    }
  }
}

bool Parser::expect(char c) {
  if (!lex_.is(c)) return fail(fmt::format("expected '{}', found {}", c, found()));
  lex_.next();
  return true;
}

bool Parser::expect(std::string_view word) {
  if (!lex_.is(word)) return fail(fmt::format("expected '{}', found {}", word, found()));
  lex_.next();
  return true;
}

bool Parser::accept(char c) {
  if (!lex_.is(c)) return false;
  lex_.next();
  return true;
}

bool Parser::accept(std::string_view word) {
  if (!lex_.is(word)) return false;
  lex_.next();
  return true;
}

bool Parser::integer(int64_t& v, int64_t least, int64_t most, std::string_view what) {
  const int64_t line = lex_.line, column = lex_.column;
  std::string written;
  if (lex_.is('-') || lex_.is('+')) {
    if (lex_.is('-')) written = "-";
    lex_.next();
  }
  if (lex_.kind != Token::number) return fail(fmt::format("expected {}, found {}", what, found()));
  written += lex_.text;
  const auto parsed = parse_int(written);
  if (!parsed) return fail_at(line, column, fmt::format("{} '{}' is not a whole number of 64 bits", what, written));
  if (*parsed < least || *parsed > most)
    return fail_at(
        line, column, fmt::format("{} {} is out of range", what, written),
        most == kAny ? fmt::format("legal: {} or more", least) : fmt::format("legal: {} to {}", least, most));
  v = *parsed;
  lex_.next();
  return true;
}

bool Parser::real(double& v, std::string_view what) {
  const int64_t line = lex_.line, column = lex_.column;
  std::string written;
  if (accept('-')) written = "-";
  if (lex_.kind != Token::number) return fail(fmt::format("expected {}, found {}", what, found()));
  written += lex_.text;
  const auto parsed = parse_double(written);
  if (!parsed) return fail_at(line, column, fmt::format("{} '{}' is not a finite number", what, written));
  v = *parsed;
  lex_.next();
  return true;
}

bool Parser::text(std::string& v, std::string_view what) {
  if (lex_.kind != Token::string) return fail(fmt::format("expected {} in quotes, found {}", what, found()));
  if (!lex_.fault.empty()) return fail(lex_.fault);
  v = lex_.value;
  lex_.next();
  return true;
}

bool Parser::name(std::string& v, std::string_view what) {
  if (lex_.kind == Token::string) return text(v, what);
  if (lex_.kind != Token::word) return fail(fmt::format("expected the name of {}, found {}", what, found()));
  v = lex_.text;
  lex_.next();
  return true;
}

bool Parser::end_of_line() {
  if (lex_.kind == Token::line_end || lex_.kind == Token::end) return true;
  return fail(fmt::format("expected the end of the line, found {}", found()));
}

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

bool Parser::once(bool& seen, std::string_view what) {
  if (std::exchange(seen, true)) return fail(fmt::format("'{}' is given twice", what));
  lex_.next();
  return true;
}

// -------------------------------------------------------------------------------------------------- header

bool Parser::header() {
  if (!lex_.is("windtunnel")) return fail(fmt::format("not a plan: expected 'windtunnel plan 1', found {}", found()));
  lex_.next();
  if (!expect("plan")) return false;
  const int64_t line = lex_.line, column = lex_.column;
  if (!integer(plan_.version, 0, kAny, "a version")) return false;
  if (plan_.version != 1)
    return fail_at(line, column, fmt::format("version {} of the plan text is not known", plan_.version), "legal: 1");
  return end_of_line();
}

bool Parser::mesh() {
  if (!once(seen_mesh_, "mesh")) return false;
  int64_t ranks = 1;
  if (lex_.kind == Token::line_end || lex_.kind == Token::end) return true;
  do {
    Axis a;
    const int64_t line = lex_.line, column = lex_.column;
    if (!name(a.name, "an axis")) return false;
    if (plan_.mesh.find(a.name)) return fail_at(line, column, fmt::format("axis '{}' is declared twice", a.name));
    if (!integer(a.size, 1, kMostRanks / ranks, "the size of an axis")) return false;
    ranks *= a.size;
    plan_.mesh.axes.push_back(std::move(a));
  } while (accept(','));
  return true;
}

bool Parser::placement() {
  Placement& p = plan_.placement;
  return once(seen_placement_, "placement") && spelled(p.kind, kPlacementNames, "a placement") && expect("pipeline") &&
         integer(p.pipeline, 1, UINT16_MAX, "the pipeline size") && expect("chunks") &&
         integer(p.chunks, 1, UINT16_MAX, "the number of chunks");
}

bool Parser::micro_batches() {
  return once(seen_batches_, "micro_batches") &&
         integer(plan_.micro_batches, 1, UINT16_MAX + 1, "the number of micro-batches") && expect("size") &&
         integer(plan_.micro_batch_size, 1, INT32_MAX, "the micro-batch size") && expect("sequence") &&
         integer(plan_.sequence, 1, INT32_MAX, "the sequence length");
}

bool Parser::axis(AxisId& id) {
  const int64_t line = lex_.line, column = lex_.column;
  std::string n;
  if (!name(n, "an axis")) return false;
  const auto found_axis = plan_.mesh.find(n);
  if (!found_axis) return fail_at(line, column, fmt::format("unknown axis '{}'", n));
  id = *found_axis;
  return true;
}

bool Parser::filter(AxisFilter& f) {
  if (!axis(f.axis) || !expect("in")) return false;
  do {
    int64_t v = 0;
    if (!integer(v, 0, plan_.mesh.axes[f.axis.v].size - 1, "a coordinate")) return false;
    f.values.push_back(v);
  } while (accept(','));
  return true;
}

bool Parser::group() {
  lex_.next();
  Group g;
  const bool named = declare(g, plan_.groups, groups_, "group");
  bool ok = named && expect(':');
  if (ok && !accept("alone")) {
    ok = expect("over");
    while (ok) {
      AxisId a;
      ok = axis(a);
      if (ok) g.axes.push_back(a);
      if (!ok || !accept(',')) break;
    }
  }
  if (ok && accept("where")) {
    g.filter.emplace();
    ok = filter(*g.filter);
  }
  if (named) plan_.groups.push_back(std::move(g));
  return ok;
}

bool Parser::buffer() {
  lex_.next();
  Buffer b;
  const bool named = declare(b, plan_.buffers, buffers_, "buffer");
  auto rest = [&] {
    if (!expect(':') || !spelled(b.role, kRoleNames, "a role") || !spelled(b.dtype, kDTypeNames, "an element type"))
      return false;
    if (!expect('[')) return false;
    int64_t most = kMostBytes;
    if (!lex_.is(']')) do {
        int64_t d = 0;
        if (!integer(d, 0, most, "a dim")) return false;
        if (d > 0) most /= d;
        b.shape.push_back(d);
      } while (accept(','));
    if (!expect(']') || !spelled(b.space, kSpaceNames, "a space") || !spelled(b.scope, kScopeNames, "a scope"))
      return false;
    b.per_layer = accept("per_layer");
    b.view = accept("view");
    while (accept("shard")) {
      Shard s;
      int64_t dim = 0;
      if (!integer(dim, 0, UINT8_MAX, "a dim") || !expect("over") || !known(s.group, groups_, plan_.groups, "group"))
        return false;
      s.dim = static_cast<uint8_t>(dim);
      if (accept("blocks") && !integer(s.blocks, 1, kAny, "the number of blocks")) return false;
      b.shards.push_back(s);
    }
    if (accept("init") && !spelled(b.init, kInitNames, "an init")) return false;
    if (accept("scale") && !real(b.init_scale, "the scale of the init")) return false;
    return true;
  };
  const bool ok = named && rest();
  if (named) plan_.buffers.push_back(std::move(b));
  return ok;
}

bool Parser::part() {
  lex_.next();
  inside_ = Inside::part;
  Part p;
  const bool named = declare(p, plan_.parts, parts_, "part");
  bool ok = named && expect(':') && expect("layers") && integer(p.layers, 0, INT16_MAX, "the number of layers") &&
            expect("parameters") && integer(p.parameters, 0, kAny, "the number of parameters");
  if (ok) {
    p.embedding = accept("embedding");
    p.head = accept("head");
  }
  plan_.parts.push_back(std::move(p));  // a faulty part keeps its lines
  return ok;
}

bool Parser::persistent() {
  if (inside_ != Inside::part) return fail("'persistent' outside a part");
  lex_.next();
  do {
    BufferId id;
    if (!known(id, buffers_, plan_.buffers, "buffer")) return false;
    plan_.parts.back().persistent.push_back(id);
  } while (accept(','));
  return true;
}

bool Parser::view() {
  if (inside_ != Inside::part) return fail("'view' outside a part");
  lex_.next();
  View v;
  if (!known(v.buffer, buffers_, plan_.buffers, "buffer")) return false;
  if (accept("layers") && (!integer(v.first_layer, 0, INT16_MAX, "the first layer") || !expect('+') ||
                           !integer(v.layers, 0, INT16_MAX, "the number of layers")))
    return false;
  if (!expect("in") || !known(v.base, buffers_, plan_.buffers, "buffer") || !expect("at") ||
      !integer(v.offset, 0, kMostBytes, "the offset"))
    return false;
  if (accept("stride") && !integer(v.layer_stride, -kMostBytes, kMostBytes, "the stride")) return false;
  if (accept("piece") && (!expect("of") || !known(v.shard_group, groups_, plan_.groups, "group"))) return false;
  plan_.parts.back().views.push_back(v);
  return true;
}

// -------------------------------------------------------------------------------------------------- blocks

bool Parser::block() {
  lex_.next();
  inside_ = Inside::block;
  block_ops_ = 0;
  Block b;
  const bool named = declare(b, plan_.blocks, blocks_, "block");
  bool ok = named;
  if (ok && accept("of")) ok = known(b.part, parts_, plan_.parts, "part");
  if (!named) b.name = fmt::format("\n{}", plan_.blocks.size());  // keeps its lines; never found by name
  plan_.blocks.push_back(std::move(b));
  return ok;
}

bool Parser::segment() {
  if (inside_ != Inside::block) return fail("'segment' outside a block");
  lex_.next();
  Block& b = plan_.blocks.back();
  Segment s;
  s.first_op = static_cast<uint32_t>(b.ops.size());
  int64_t first = -1, step = 0, times = 1;
  const bool ok = (!accept("layer") || integer(first, -1, INT16_MAX, "a layer")) &&
                  (!accept("step") || integer(step, INT16_MIN, INT16_MAX, "a step")) &&
                  (!accept("times") || integer(times, 1, kMostOps, "a count"));
  s.first_layer = static_cast<int32_t>(first);
  s.layer_step = static_cast<int32_t>(step);
  s.iterations = static_cast<uint32_t>(times);
  b.segments.push_back(s);
  return ok;
}

bool Parser::ref(BufferRef& r) {
  if (!known(r.buffer, buffers_, plan_.buffers, "buffer")) return false;
  if (accept('[')) {
    int64_t offset = 0;
    if (!integer(offset, INT16_MIN, INT16_MAX, "a layer offset") || !expect(']')) return false;
    r.layer_offset = static_cast<int16_t>(offset);
  }
  if (accept('@')) {
    int64_t binding = 0;
    if (!integer(binding, 0, 1, "a binding")) return false;
    r.binding = static_cast<uint8_t>(binding);
  }
  return true;
}

bool Parser::refs(std::vector<BufferRef>& list) {
  if (!expect('(')) return false;
  if (accept(')')) return true;
  do {
    BufferRef r;
    if (!ref(r)) return false;
    list.push_back(r);
  } while (accept(','));
  return expect(')');
}

bool Parser::compute(Compute& c) {
  if (!spelled(c.dtype, kDTypeNames, "an element type")) return false;
  if (accept('[')) {
    size_t n = 0;
    do {
      if (n == c.dims.size()) return fail("a kernel has at most 5 dims");
      if (!integer(c.dims[n++], 0, kAny, "a dim")) return false;
    } while (accept(','));
    if (!expect(']')) return false;
  }
  int64_t v = 0;
  while (lex_.kind == Token::word) {
    if (accept("transpose_a"))
      c.transpose_a = true;
    else if (accept("transpose_b"))
      c.transpose_b = true;
    else if (accept("accumulate"))
      c.accumulate = true;
    else if (accept("causal"))
      c.causal = true;
    else if (accept("gated"))
      c.gated = true;
    else if (accept("function")) {
      if (!integer(v, 0, UINT8_MAX, "a function")) return false;
      c.function = static_cast<uint8_t>(v);
    } else if (accept("launches")) {
      if (!integer(v, 0, UINT16_MAX, "a number of launches")) return false;
      c.launches = static_cast<uint16_t>(v);
    } else if (accept("pieces")) {
      if (!integer(v, 0, UINT16_MAX, "a number of pieces")) return false;
      c.pieces = static_cast<uint16_t>(v);
    } else if (accept("over")) {
      if (!known(c.group, groups_, plan_.groups, "group")) return false;
    } else if (accept("scalar")) {
      if (!real(c.scalar, "a scalar")) return false;
    } else {
      break;
    }
  }
  return true;
}

bool Parser::collective(Collective& c) {
  if (lex_.kind == Token::word)
    if (const auto r = value_of<Reduction>(kReductionNames, lex_.text)) {
      c.reduction = *r;
      lex_.next();
    }
  return spelled(c.dtype, kDTypeNames, "an element type") && expect("over") &&
         known(c.group, groups_, plan_.groups, "group") && bytes(c.bytes);
}

bool Parser::body(Op& o) {
  if (accept("send")) {
    Send s;
    const bool ok = spelled(s.to, kDirectionNames, "a direction") && bytes(s.bytes);
    o.body = s;
    return ok;
  }
  if (accept("receive")) {
    Receive r;
    const bool ok = spelled(r.from, kDirectionNames, "a direction") && bytes(r.bytes);
    o.body = r;
    return ok;
  }
  if (accept("move")) {
    Copy c;
    const bool ok = spelled(c.from, kSpaceNames, "a space") && expect("to") && spelled(c.to, kSpaceNames, "a space") &&
                    bytes(c.bytes);
    o.body = c;
    return ok;
  }
  if (accept("host_wait")) return o.body = HostWait{}, true;
  if (accept("join")) return o.body = Join{}, true;
  if (lex_.kind == Token::word) {
    if (const auto k = value_of<CollectiveKind>(kCollectiveNames, lex_.text)) {
      lex_.next();
      Collective c;
      c.kind = *k;
      const bool ok = collective(c);
      o.body = c;
      return ok;
    }
    if (const auto k = value_of<Kernel>(kKernelNames, lex_.text)) {
      lex_.next();
      Compute c;
      c.kernel = *k;
      const bool ok = compute(c);
      o.body = c;
      return ok;
    }
  }
  std::vector<std::string_view> all = {"send", "receive", "move", "host_wait", "join"};
  all.insert(all.end(), kCollectiveNames.begin(), kCollectiveNames.end());
  all.insert(all.end(), kKernelNames.begin(), kKernelNames.end());
  std::string hint;
  if (suggestions_++ < kMostSuggestions) hint = suggest(lex_.text, all);
  return fail(fmt::format("expected what the op does, found {}", found()), hint);
}

bool Parser::waits(Block& b, Op& o) {
  while (accept("wait")) {
    Wait w;
    int64_t v = 0;
    if (accept("tail")) {
      Stream s = Stream::compute;
      if (!spelled(s, kStreamNames, "a stream")) return false;
      w.kind = Wait::Kind::tail;
      w.index = static_cast<uint32_t>(s);
    } else {
      if (accept("piece"))
        w.kind = Wait::Kind::piece;
      else if (!expect("op"))
        return false;
      if (!integer(v, 0, kMostOps, "an op")) return false;
      w.index = static_cast<uint32_t>(v);
    }
    if (accept("back")) {
      if (!integer(v, 0, kMostOps, "iterations")) return false;
      w.iterations_back = static_cast<uint32_t>(v);
    }
    if (accept("pieces")) {
      if (!integer(v, 0, UINT16_MAX, "a number of pieces")) return false;
      w.pieces = static_cast<uint32_t>(v);
    }
    b.waits.push_back(w);
    ++o.waits.count;
  }
  return true;
}

bool Parser::op() {
  if (inside_ != Inside::block) return fail("an op outside a block");
  Block& b = plan_.blocks.back();
  if (b.segments.empty()) return fail("an op before the first segment of its block");
  Segment& segment = b.segments.back();
  block_ops_ += segment.iterations;
  if (block_ops_ > kMostOps) return fail(fmt::format("block '{}' has more than {} op instances", b.name, kMostOps));
  const auto index = static_cast<int64_t>(b.ops.size());
  Op o;
  const int64_t line = lex_.line, column = lex_.column;
  int64_t label = 0;
  bool ok = integer(label, 0, kAny, "the number of the op");
  if (ok && label != index)
    ok = fail_at(line, column, fmt::format("op {} stands where op {} should: waits name these numbers", label, index));
  o.waits.begin = static_cast<uint32_t>(b.waits.size());
  auto list = [&](Range& range, const std::vector<BufferRef>& refs) {
    range = {static_cast<uint32_t>(b.refs.size()), static_cast<uint32_t>(refs.size())};
    b.refs.insert(b.refs.end(), refs.begin(), refs.end());
  };
  auto rest = [&] {
    if (!spelled(o.stream, kStreamNames, "a stream") || !spelled(o.phase, kPhaseNames, "a phase") ||
        !text(o.name, "the name of the op") || !expect(':') || !body(o))
      return false;
    std::vector<BufferRef> reads, writes, reserves, releases;
    if (lex_.is('(')) {
      if (!refs(reads)) return false;
      if (lex_.is_arrow()) {
        lex_.next();
        if (!refs(writes)) return false;
      }
    }
    if (!waits(b, o)) return false;
    while (lex_.is('+') || lex_.is('-')) {
      auto& to = lex_.is('+') ? reserves : releases;
      lex_.next();
      BufferRef r;
      if (!ref(r)) return false;
      to.push_back(r);
    }
    list(o.reads, reads);
    list(o.writes, writes);
    list(o.reserves, reserves);
    list(o.releases, releases);
    if (lex_.is("work")) {
      auto* c = std::get_if<Compute>(&o.body);
      if (!c) return fail("'work' belongs to compute kernels");
      lex_.next();
      if (!real(c->work.flops, "floating-point operations") || !expect("flops") ||
          !integer(c->work.bytes_read, 0, kAny, "bytes") || !expect("read") ||
          !integer(c->work.bytes_written, 0, kAny, "bytes") || !expect("written"))
        return false;
    }
    return true;
  };
  ok = ok && rest();
  b.ops.push_back(std::move(o));  // a faulty op keeps its number
  ++segment.op_count;
  return ok;
}

// ------------------------------------------------------------------------------------------------ programs

bool Parser::program() {
  lex_.next();
  inside_ = Inside::program;
  Program p;
  bool ok = declare(p, plan_.programs, programs_, "program");
  if (ok && accept("when")) ok = filter(p.when);
  plan_.programs.push_back(std::move(p));
  return ok;
}

bool Parser::chunk() {
  if (inside_ != Inside::program) return fail("'chunk' outside a program");
  lex_.next();
  PartId part;
  int64_t layer = 0;
  if (!known(part, parts_, plan_.parts, "part") || !expect("at") || !expect("layer") ||
      !integer(layer, 0, kAny, "a layer"))
    return false;
  plan_.programs.back().chunks.push_back(part);
  plan_.programs.back().first_layer.push_back(layer);
  return true;
}

bool Parser::index(int64_t& base, std::array<int64_t, kFoldDepth>& strides, int depth) {
  bool negative = false;
  do {
    int64_t n = 1;
    const bool counted = lex_.kind == Token::number;
    if (counted && !integer(n, 0, UINT16_MAX, "a micro-batch")) return false;
    const int64_t signed_n = negative ? -n : n;
    if (lex_.kind == Token::word && lex_.text.size() == 1 && lex_.text[0] >= 'i' && lex_.text[0] < 'i' + depth) {
      strides[static_cast<size_t>(lex_.text[0] - 'i')] += signed_n;
      lex_.next();
    } else if (counted) {
      base += signed_n;
    } else {
      return fail(fmt::format("expected a micro-batch or the counter of a repeat, found {}", found()));
    }
    negative = lex_.is('-');
  } while (accept('+') || accept('-'));
  return true;
}

/// invocation.binding[0].chunk etc. in the node; its micro-batches in indices_, at the number kept in `stride`.
bool Parser::invocation(FoldNode& n, int depth) {
  Invocation& v = n.invocation;
  v.bindings = 0;
  n.stride = static_cast<int64_t>(indices_.size());
  indices_.emplace_back();
  if (!known(v.block, blocks_, plan_.blocks, "block")) return false;
  if (!lex_.is('.')) return true;
  while (v.bindings < 2 && accept(v.bindings ? '&' : '.')) {
    int64_t chunk = 0;
    Index& at = indices_.back()[v.bindings];
    if (!integer(chunk, 0, UINT16_MAX, "a chunk") || !expect('[') || !index(at.base, at.strides, depth) || !expect(']'))
      return false;
    v.binding[v.bindings++].chunk = static_cast<uint16_t>(chunk);
  }
  return true;
}

/// Up to the closing brace, which it leaves.
bool Parser::nodes(std::vector<FoldNode>& list, int depth) {
  while (!lex_.is('}')) {
    FoldNode n;
    if (lex_.kind == Token::number) {
      if (depth == kFoldDepth) return fail(fmt::format("repeats nest at most {} deep", kFoldDepth));
      int64_t count = 0;
      if (!integer(count, 1, kMostInvocations, "a count") || !expect("x") || !expect('{')) return false;
      n.count = static_cast<uint32_t>(count);
      ++lex_.braces;
      if (!nodes(n.body, depth + 1)) return false;
      if (n.body.empty()) return fail("a repeat of nothing");
      --lex_.braces;
      lex_.next();
    } else if (!invocation(n, depth)) {
      return false;
    }
    list.push_back(std::move(n));
  }
  return true;
}

bool Parser::expand(const std::vector<FoldNode>& list, std::array<int64_t, kFoldDepth>& at, int depth,
                    std::vector<Invocation>& out) {
  for (const FoldNode& n : list) {
    if (n.count) {
      for (int64_t i = 0; i < n.count; ++i) {
        at[static_cast<size_t>(depth)] = i;
        if (!expand(n.body, at, depth + 1, out)) return false;
      }
      at[static_cast<size_t>(depth)] = 0;
      continue;
    }
    if (++invocations_ > kMostInvocations)
      return fail(fmt::format("the orders hold more than {} invocations", kMostInvocations));
    Invocation v = n.invocation;
    for (size_t b = 0; b < v.bindings; ++b) {
      const Index& index = indices_[static_cast<size_t>(n.stride)][b];
      int64_t micro_batch = index.base;
      for (size_t k = 0; k < index.strides.size(); ++k) micro_batch += index.strides[k] * at[k];
      if (micro_batch < 0 || micro_batch > UINT16_MAX)
        return fail(fmt::format("a repeat reaches micro-batch {}", micro_batch),
                    fmt::format("legal: 0 to {}", UINT16_MAX));
      v.binding[b].micro_batch = static_cast<uint16_t>(micro_batch);
    }
    out.push_back(v);
  }
  return true;
}

bool Parser::order(std::vector<Invocation>& out) {
  if (!lex_.is('{')) return expect('{');
  lex_.braces = 1;  // line ends are nothing from here to the closing brace
  lex_.next();
  indices_.clear();
  std::vector<FoldNode> list;
  if (!nodes(list, 0)) {
    skip_order();
    return false;
  }
  std::array<int64_t, kFoldDepth> at{};
  const bool ok = expand(list, at, 0, out);
  lex_.braces = 0;
  lex_.next();
  return ok;
}

/// After a fault inside braces: to the closing brace, or to a line that begins something else.
void Parser::skip_order() {
  while (lex_.kind != Token::end) {
    if (lex_.first_on_line && (lex_.is("program") || lex_.is("step") || lex_.is("setup") || lex_.is("block"))) break;
    if (lex_.is('{')) ++lex_.braces;
    if (lex_.is('}') && --lex_.braces == 0) {
      lex_.next();
      return;
    }
    lex_.next();
  }
  lex_.braces = 0;
}

bool Parser::statement() {
  if (lex_.kind == Token::number) return op();
  if (lex_.kind != Token::word) return fail(fmt::format("expected a statement, found {}", found()));
  const std::string_view w = lex_.text;
  if (w == "persistent") return persistent();
  if (w == "view") return view();
  if (w == "segment") return segment();
  if (w == "chunk") return chunk();
  if (w == "setup") {
    if (inside_ != Inside::program) return fail("'setup' outside a program");
    lex_.next();
    if (!plan_.programs.back().setup.empty()) return fail("'setup' is given twice");
    return order(plan_.programs.back().setup);
  }
  if (w == "step") {
    if (inside_ != Inside::program) return fail("'step' outside a program");
    lex_.next();
    StepOrder s;
    bool ok = name(s.name, "a step") && order(s.order);
    plan_.programs.back().steps.push_back(std::move(s));
    return ok;
  }
  if (w == "part") return part();
  if (w == "block") return block();
  if (w == "program") return program();
  inside_ = Inside::nothing;
  if (w == "group") return group();
  if (w == "buffer") return buffer();
  if (w == "name") return once(seen_name_, "name") && text(plan_.name, "the name of the plan");
  if (w == "seed") {
    if (!once(seen_seed_, "seed")) return false;
    const auto [end, error] = std::from_chars(lex_.text.data(), lex_.text.data() + lex_.text.size(), plan_.seed);
    if (lex_.kind != Token::number || error != std::errc() || end != lex_.text.data() + lex_.text.size())
      return fail(fmt::format("expected a seed of 64 bits, found {}", found()));
    lex_.next();
    return true;
  }
  if (w == "mesh") return mesh();
  if (w == "placement") return placement();
  if (w == "micro_batches") return micro_batches();
  if (w == "assumption") {
    lex_.next();
    std::string a;
    if (!text(a, "an assumption")) return false;
    plan_.assumptions.push_back(std::move(a));
    return true;
  }
  static constexpr std::array<std::string_view, 17> kStatements = {
      "name",  "seed", "mesh",       "placement", "micro_batches", "assumption", "group", "buffer", "part",
      "block", "view", "persistent", "segment",   "program",       "chunk",      "setup", "step"};
  std::string hint;
  if (suggestions_++ < kMostSuggestions) hint = suggest(w, kStatements);
  return fail(fmt::format("unknown statement {}", found()), hint);
}

Result<Plan> Parser::run() {
  if (!header()) return std::move(errors_);  // some other file: no use in reading on
  while (lex_.kind != Token::end && errors_.size() < kMostErrors) {
    if (lex_.kind == Token::line_end) {
      lex_.next();
      continue;
    }
    if (statement()) end_of_line();
    lex_.skip_line();
  }
  for (const auto& [seen, what] : {std::pair{seen_name_, "name"},
                                   {seen_seed_, "seed"},
                                   {seen_mesh_, "mesh"},
                                   {seen_placement_, "placement"},
                                   {seen_batches_, "micro_batches"}})
    if (!seen) fail(fmt::format("'{}' is missing", what));
  if (!errors_.empty()) return std::move(errors_);
  return std::move(plan_);
}

}  // namespace

Result<Plan> parse_plan(std::string_view text, std::string_view where) { return Parser(text, where).run(); }

}  // namespace wt::plan
