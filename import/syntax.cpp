#include "import/syntax.hpp"

#include <fmt/format.h>

#include <cctype>

namespace wt::import {

namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  for (std::string_view e : endings)
    if (name.ends_with(e)) return true;
  return false;
}

Foreign::Syntax syntax_of(std::string_view name, std::string_view text) {
  using S = Foreign::Syntax;
  if (ends_with_any(name, {".json", ".jsonc", ".json.template"})) return S::json;
  if (ends_with_any(name, {".yaml", ".yml"})) return S::yaml;
  if (name.ends_with(".toml")) return S::toml;
  if (ends_with_any(name, {".sh", ".slurm", ".sbatch", ".log", ".txt", ".out", ".py", ".gz", ".xml"})) return S::text;
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '{' ? S::json : S::text;
}

/// Blanks the comment that opens at `i`; returns the position behind it.
size_t blank_comment(std::string& out, size_t i) {
  const bool block = out[i] == '/' && out[i + 1] == '*';
  const size_t end = block ? out.find("*/", i + 2) : out.find('\n', i);
  const size_t stop = end == out.npos ? out.size() : end + (block ? 2 : 0);
  for (; i < stop; ++i)
    if (out[i] != '\n') out[i] = ' ';
  return stop;
}

}  // namespace

std::string strict_json(std::string_view text, bool& changed) {
  std::string out(text);
  changed = false;
  size_t comma = out.npos;  // the last one with nothing but blanks behind it
  for (size_t i = 0; i < out.size();) {
    const char c = out[i];
    if (c == '"') {
      for (++i; i < out.size() && out[i] != '"' && out[i] != '\n'; ++i)
        if (out[i] == '\\') ++i;
      ++i;
      comma = out.npos;
    } else if (c == '#' || (c == '/' && i + 1 < out.size() && (out[i + 1] == '/' || out[i + 1] == '*'))) {
      i = blank_comment(out, i);
      changed = true;
    } else {
      if ((c == '}' || c == ']') && comma != out.npos) {
        out[comma] = ' ';
        changed = true;
      }
      if (c == ',')
        comma = i;
      else if (!std::isspace(static_cast<unsigned char>(c)))
        comma = out.npos;
      ++i;
    }
  }
  return out;
}

Parsed parse_foreign(const std::string& name, std::string_view text) {
  Parsed out;
  out.syntax = syntax_of(name, text);
  if (out.syntax == Foreign::Syntax::text) return out;
  const auto source = std::make_shared<const tree::Source>(tree::Source{name, "", false});
  if (static_cast<int64_t>(text.size()) > tree::kMaxBytes) {
    out.faults.push_back({name, fmt::format("is larger than the limit of {} bytes", tree::kMaxBytes),
                          "configurations are a few kilobytes"});
    return out;
  }
  Result<tree::Node> read = [&]() -> Result<tree::Node> {
    switch (out.syntax) {
      case Foreign::Syntax::json: return tree::parse_json(strict_json(text, out.relaxed), source, out.duplicates);
      case Foreign::Syntax::toml: return parse_toml(text, source);
      default: return tree::parse_yaml(text, source);
    }
  }();
  if (read)
    out.tree = std::make_unique<tree::Node>(std::move(read.value()));
  else
    out.faults = read.errors();
  return out;
}

}  // namespace wt::import
