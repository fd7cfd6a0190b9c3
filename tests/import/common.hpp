// Shared by the tests of import/: files as text, and what an import said of one key.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "import/import.hpp"

namespace wt::import {

/// A whole job needs these beside most configurations.
inline Options on_cluster(int64_t gpus = 16, std::vector<std::string> set = {}) {
  Options o;
  o.cluster = "dgx-h100";
  o.gpus = gpus;
  o.set = std::move(set);
  return o;
}

inline Imported import_text(const std::string& name, const std::string& text, const Options& options = on_cluster()) {
  return import_files({{name, text}}, options);
}

/// "taken", "defaulted", "ignored", "not_carried", "unknown", or "" of the foreign key; the first line of it.
inline std::string fate_of(const Imported& in, const std::string& foreign_key) {
  for (const Line& l : in.report.lines)
    if (l.from.key == foreign_key) return std::string(to_text(l.fate));
  return "";
}

inline std::vector<std::string> missing(const Imported& in) {
  std::vector<std::string> out;
  for (const Line* l : in.report.of(Fate::missing)) out.push_back(l->to);
  return out;
}

/// "where: what (hint)" of each.
inline std::string errors(const Imported& in) { return in.errors.empty() ? "" : to_text(in.errors); }

#define EXPECT_WHOLE(in) \
  EXPECT_TRUE((in).job.has_value()) << errors(in) << "missing: " << ::testing::PrintToString(missing(in))
#define ASSERT_WHOLE(in) \
  ASSERT_TRUE((in).job.has_value()) << errors(in) << "missing: " << ::testing::PrintToString(missing(in))

}  // namespace wt::import
