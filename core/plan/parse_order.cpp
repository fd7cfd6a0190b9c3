// Programs of a plan: chunks, and orders with their repeats ("29x{ F.0[3+i] B.0[i] }"), expanded as they are read.
#include "core/plan/parser.hpp"

namespace wt::plan {

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

}  // namespace wt::plan
