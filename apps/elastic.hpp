// `windtunnel run --elastic`: starts the ranks through mpirun or srun, and when some die, again on those that are left,
// from the newest good checkpoint. Not a scheduler of machines: where ranks run is the launcher's.
// Invariant: every start has its own folder of marks, in which each rank leaves one when it begins and one when it ends in
// order (also when the launcher ends it because another died); a rank without the second is dead.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace wt::apps {

struct ElasticOptions {
  int64_t ranks = 1;  // of the first start
  int64_t restarts = 10;
  std::string launcher = "mpirun";  // or "srun", with options of its own
  std::string root;                 // of the checkpoints; marks lie in it
  /// The words after the program's name that run the job on so many ranks; nothing: no plan for so many.
  std::function<std::optional<std::vector<std::string>>(int64_t ranks)> words;
};

/// Exit code of the job. Tells every restart on stderr.
int run_elastic(const ElasticOptions& options);

/// A rank's side: marks in the folder that the environment names (nothing where it names none), until the process ends.
void mark_rank(uint32_t rank);
/// The rank ends in order. Also done when the launcher ends it, or the process ends itself.
void mark_end();

}  // namespace wt::apps
