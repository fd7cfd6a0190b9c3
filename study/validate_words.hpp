// Words of published rows, and the small YAML documents that the mapping of rows works with.
// No meaning here: what a word stands for is in validate_hardware, validate_terms and data/validate.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

namespace wt::study {

std::string lower(std::string_view text);
/// `piece` is found in `text`, case aside.
bool has(std::string_view text, std::string_view piece);
/// Words compared as people write them: case, punctuation and plurals of blanks do not matter.
bool contains_words(std::string_view text, std::string_view words);

/// A list in a data file, or its single value.
std::vector<std::string> texts(const YAML::Node&);
/// The scalar of a key, "" where there is none.
std::string text_of(const YAML::Node& map, const char* key);
std::string print(const YAML::Node&);        // a document of its own
std::string inline_text(const YAML::Node&);  // on one line

}  // namespace wt::study
