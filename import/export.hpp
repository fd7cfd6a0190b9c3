// A job -> a configuration of one framework. What the framework cannot say is found by reading the result back: every key
// that comes back otherwise is named, so no exporter keeps a list of its own that could be wrong.
// One file for each framework in exporters/; the table is made from the file names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/spec/specs.hpp"

namespace wt::import {

/// What an exporter writes.
struct Written {
  std::string text;
  /// Keys of the job that the framework takes from the script or the command line, not from this file:
  /// "training.seq_len=4096".
  std::vector<std::string> beside;
};

struct Exporter {
  std::string_view name;       // of --to, the file's stem
  std::string_view title;      // "Megatron-LM arguments"
  std::string_view file_name;  // that an import recognises: "job.sh"
  bool carries_model;          // the text says the model's shape
  Written (*write)(const JobSpec&);
};

/// Generated from the file names; each file defines `extern const Exporter exporters_<stem>`.
std::span<const Exporter* const> all_exporters();
const Exporter* find_exporter(std::string_view name);

struct Exported {
  std::string text;
  std::vector<std::string> beside;
  std::vector<std::string> not_carried;  // "strategy.kept_edges: 2, reads back as -1"
  JobSpec back;                          // what the text and `beside` read back as
};

/// Errors: the framework has no such strategy at all, by what its own reader says of the text.
Result<Exported> export_job(const JobSpec& job, const Exporter& exporter);

}  // namespace wt::import
