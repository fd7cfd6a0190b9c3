// Recognises files of other programs (and other files of ours) that were given as a job, so that the message says what
// the file is and not where its syntax stops being YAML.
// Not an importer: it reads no value. Invariant: it never speaks of a file that has a section of a job.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.hpp"
#include "core/spec/tree.hpp"

namespace wt {

/// Of a text that is no YAML or JSON: TOML, XML, a shell script, compressed data, a trace, a plan.
std::optional<Diagnostic> foreign_text(std::string_view text, const std::string& file);

/// Of a map without any section of a job, by the keys that it has.
std::optional<Diagnostic> foreign_map(const tree::Node& root, const std::string& file);

}  // namespace wt
