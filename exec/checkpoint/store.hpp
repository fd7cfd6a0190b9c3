// Checkpoints in a directory that all ranks see: saved by all ranks together, at once or beside the training, and loaded
// on the same mesh or another. Not what a rank holds (plan_state.hpp), not the training loop.
//
//   ROOT/step-000000000100/manifest.json          what it is of, the progress, every rank's pieces with their checksums
//   ROOT/step-000000000100/rank-00000.wtckpt ...   rank_file.hpp
//   ROOT/step-000000000100.partial/                being written, or left by a run that died
//   ROOT/step-000000000100.replaced/               the older one of the same step, while the new one takes its place
//
// Invariant: a directory with a manifest and without ".partial" is whole and on the disk: files are synced, then named,
// then the manifest, then the directory gets its name. So whatever moment a process dies at, the last good one loads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/result.hpp"
#include "exec/backend.hpp"
#include "exec/checkpoint/manifest.hpp"
#include "exec/checkpoint/team.hpp"

namespace wt::exec {

struct SavedState {
  uint64_t plan_digest = 0;
  Progress progress;
  std::span<const Holding> holdings;
};

struct SaverOptions {
  std::string root;
  int64_t keep = 2;           // newest checkpoints that stay
  bool asynchronous = false;  // copied to host memory, written while the training goes on
};

/// All calls are collective and come from one thread.
class Saver {
 public:
  Saver(SaverOptions options, Team team, Device& device);
  ~Saver();  // an unfinished write is given up
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Synchronous: the checkpoint is the newest good one when this returns. Asynchronous: the state may change when this
  /// returns; a failure of the writing is told by the next save or by finish. Errors, on every rank the same: rank and
  /// file of whatever failed; older checkpoints are as they were.
  Status save(const SavedState& state);
  /// Waits for what is being written.
  Status finish();

 private:
  struct Writing;
  void write(Writing& writing) const;

  SaverOptions options_;
  Team team_;
  Device& device_;
  std::unique_ptr<Writing> writing_;
  std::string host_;  // of an asynchronous save, kept for the next
};

class Checkpoint {
 public:
  /// Reads the manifest. Errors: missing, damaged, another version.
  static Result<Checkpoint> open(const std::string& path);

  const Progress& progress() const { return manifest_.progress; }
  uint64_t plan_digest() const { return manifest_.plan_digest; }
  int64_t world() const { return static_cast<int64_t>(manifest_.ranks.size()); }

  /// Fills every holding, whatever mesh it was saved on. All faults: tensors that are missing or of another shape or
  /// element type (another model), files that are missing, cut or damaged, with rank and file.
  Status load(std::span<const Holding> holdings, Device& device) const;

 private:
  std::string path_;
  Manifest manifest_;
};

struct Loaded {
  std::string path;
  Progress progress;
  uint64_t plan_digest = 0;
  Diagnostics passed_over;  // faults of newer checkpoints that were not good on some rank
};
/// The newest checkpoint that is good on all ranks; nothing where there is none at all. Errors: there are some and none is
/// good. Collective.
Result<std::optional<Loaded>> load_newest(const std::string& root, std::span<const Holding> holdings, const Team& team,
                                          Device& device);
/// One that is named.
Result<Loaded> load_checkpoint(const std::string& path, std::span<const Holding> holdings, const Team& team,
                               Device& device);

}  // namespace wt::exec
