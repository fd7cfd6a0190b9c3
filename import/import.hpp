// Foreign files -> one job and a report of every key. Any number of files of any formats describe one job together:
// a DeepSpeed JSON, a launch script, a hostfile, a Hugging Face config.json.
// Not a guess: what no file and no option says is named, with the option that says it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"
#include "import/draft.hpp"
#include "import/format.hpp"
#include "import/report.hpp"

namespace wt::import {

struct File {
  std::string name;  // for messages and recognition
  std::string text;
};

struct Imported {
  Report report;
  Diagnostics errors;          // of the files and of the options; in the user's own key names
  std::optional<JobSpec> job;  // where there are no errors and nothing is missing
  std::string yaml;            // the job file: print(job) with the origin of each line; reads back equal
};

inline constexpr int64_t kMostBytes = int64_t{256} << 20;  // of a log; other formats take tree::kMaxBytes

/// The format of a file from its content and name; null where none is sure.
const Format* recognise(const Foreign&);
Imported import_files(const std::vector<File>& files, const Options& options);

}  // namespace wt::import
