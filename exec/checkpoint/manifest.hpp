// The manifest of a checkpoint and the names in its directory. Not the files of the ranks (rank_file.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "exec/checkpoint/rank_file.hpp"

namespace wt::exec {

/// Where a training run stands: what, beside the tensors, decides how it goes on. Random numbers are functions of seed and
/// step, so these two are the state of the generator; `samples` is the position in the data.
struct Progress {
  int64_t step = 0;     // updates done or skipped; the position in the learning-rate schedule
  int64_t skipped = 0;  // of them, because gradients overflowed
  int64_t samples = 0;
  uint64_t seed = 0;
  double learning_rate = 0;  // of the next step
  double loss_scale = 1;
  int64_t good_steps = 0;  // since the loss scale changed
  bool operator==(const Progress&) const = default;
};

std::string checkpoint_path(const std::string& root, int64_t step);  // ROOT/step-000000000100
/// "step-" with digits and this ending.
bool is_checkpoint_name(std::string_view name, std::string_view ending = "");

struct FoundCheckpoint {
  std::string path;
  int64_t step = 0;
};
/// Whole checkpoints, newest first. A directory that is not there has none.
std::vector<FoundCheckpoint> list_checkpoints(const std::string& root);

/// In an order that never leaves a directory that looks whole. What cannot be removed stays: no failure of a save.
void remove_checkpoint(const std::string& path);

struct Manifest {
  uint64_t plan_digest = 0;
  Progress progress;
  struct Rank {
    int64_t bytes = 0;
    std::vector<Piece> pieces;
  };
  std::vector<Rank> ranks;
};
/// With a checksum over itself.
std::string print_manifest(const Manifest&);
Result<Manifest> parse_manifest(const std::string& text, const std::string& where);

/// All files of `partial` are there: checks them, writes the manifest, gives the directory its name, removes what is older
/// than the newest `keep`.
Status name_checkpoint(const std::string& path, const std::string& partial, const RankFileHead& head,
                       const Progress& progress, int64_t keep);

}  // namespace wt::exec
