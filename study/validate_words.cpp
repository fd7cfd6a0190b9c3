#include "study/validate_words.hpp"

#include <algorithm>
#include <cctype>

namespace wt::study {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

namespace {

/// Lower case, every run of punctuation one blank, a blank at both ends.
std::string plain(std::string_view text) {
  std::string out = " ";
  for (const char raw : text) {
    const auto c = static_cast<unsigned char>(raw);
    if (std::isalnum(c))
      out += static_cast<char>(std::tolower(c));
    else if (out.back() != ' ')
      out += ' ';
  }
  if (out.back() != ' ') out += ' ';
  return out;
}

}  // namespace

bool has(std::string_view text, std::string_view piece) { return lower(text).find(lower(piece)) != std::string::npos; }

bool contains_words(std::string_view text, std::string_view words) {
  return plain(text).find(plain(words)) != std::string::npos;
}

std::vector<std::string> texts(const YAML::Node& node) {
  std::vector<std::string> out;
  if (!node.IsDefined() || node.IsNull()) return out;
  if (node.IsScalar()) return {node.Scalar()};
  for (const auto& item : node) out.push_back(item.Scalar());
  return out;
}

std::string text_of(const YAML::Node& map, const char* key) {
  const YAML::Node value = map[key];
  return value.IsDefined() && value.IsScalar() ? value.Scalar() : "";
}

std::string print(const YAML::Node& node) {
  YAML::Emitter out;
  out << node;
  return std::string(out.c_str()) + "\n";
}

std::string inline_text(const YAML::Node& node) {
  YAML::Node copy = YAML::Clone(node);
  copy.SetStyle(YAML::EmitterStyle::Flow);
  YAML::Emitter out;
  out << copy;
  return out.c_str();
}

}  // namespace wt::study
