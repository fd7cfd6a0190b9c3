// Reads the text form back (print.cpp states its order). Recursive descent over lines: a line with a fault is reported
// with line and column and passed over, so all faults come out at once.
// Not validation: names must be known and numbers sane, the rest is validate's.
#include <charconv>
#include <utility>

#include "core/plan/parser.hpp"

namespace wt::plan {

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
    if (lex_.is('-')) written += '-';
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
  if (accept('-')) written += '-';
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

bool Parser::once(bool& seen, std::string_view what) {
  if (std::exchange(seen, true)) return fail(fmt::format("'{}' is given twice", what));
  lex_.next();
  return true;
}

// ------------------------------------------------------------------------------------------------- the whole

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

Result<Plan> parse_plan(std::string_view text, std::string_view where) { return Parser(text, where).run(); }

}  // namespace wt::plan
