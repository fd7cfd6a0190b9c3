// What an import did with every key of the foreign files: taken, defaulted, ignored, not carried, unknown, missing.
// Not the job itself. Invariant: a key of a file is in exactly one of the lists of its fate; nothing is dropped in silence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"

namespace wt::import {

/// Where a foreign value stands.
struct Origin {
  std::string where;  // "ds_config.json:12"; "--set" for the command line
  std::string key;    // "zero_optimization.stage", "--micro-batch-size": as its framework writes it
};

enum class Fate : uint8_t {
  taken,        // foreign key -> a key of ours
  defaulted,    // the file is silent: what the framework does then, with its version
  ignored,      // known, and without effect on a plan
  not_carried,  // known, with an effect, and no key of ours says it yet
  unknown,      // not a key of this framework as far as we know
  missing       // needed, and lives elsewhere (in user code, in another file): how to give it
};
std::string_view to_text(Fate);

struct Line {
  Fate fate = Fate::taken;
  Origin from;
  std::string written;    // the value in the file
  std::string to, value;  // our key and its value; of `missing`: what is needed
  std::string why;        // reason, source, how to give it
};

struct Report {
  struct File {
    std::string name, format;  // "ds_config.json", "DeepSpeed JSON"
    std::string defaults;      // whose defaults were used: "DeepSpeed edaa7221 (2026-08-22)"
  };
  std::vector<File> files;
  std::vector<Line> lines;
  std::vector<std::string> notes;  // worth knowing, about no key in particular

  std::vector<const Line*> of(Fate) const;
  /// The last line that decided `key` of ours; null if none did.
  const Line* decided(std::string_view key) const;
};

/// One screen: files, then every list that is not empty, in columns. `brief` counts the ignored keys instead of listing.
std::string print(const Report&, bool brief);
/// JSON object with the stable keys files, taken, defaulted, ignored, not_carried, unknown, missing, notes.
std::string print_json(const Report&, const Diagnostics& errors, std::string_view job_yaml);

/// Diagnostics in key names of a job, with the user's own key and place put in front where the import knows them.
Diagnostics in_users_words(const Diagnostics&, const Report&);

}  // namespace wt::import
