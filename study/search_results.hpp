// The file that a search appends its outcomes to, so that a killed search goes on from what is done: a line that names
// job and space, then a line of JSON for each outcome. A cut last line is what a kill leaves, and is dropped.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.hpp"
#include "study/search.hpp"

namespace wt::study {

class ResultsFile {
 public:
  /// Makes the file, or reads what is there and opens it for more. `identity` names job and space.
  /// Errors: a results file of another identity; not a results file; a damaged line, by number; not writable.
  static Result<ResultsFile> open(const std::string& path, const std::string& identity, size_t candidates);

  const std::vector<Outcome>& done() const { return done_; }  // as read, in the file's order
  /// On disk when it returns, as far as the system is concerned. The first failure is kept for `status`.
  void append(const Outcome& outcome);
  Status status() const;

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<Outcome> done_;
  std::string fault_;
};

}  // namespace wt::study
