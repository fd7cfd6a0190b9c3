// A file written piece by piece that appears whole or not at all: the content is collected in an unnamed (or hidden)
// sibling and renamed at the end. Not for readers, not for appending. A process that dies leaves the old file, and on
// file systems with O_TMPFILE nothing beside it.
// Devices and pipes (/dev/stdout) are written directly: there is nothing to rename.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.hpp"

namespace wt {

/// What has happened when a commit returns: a process that dies keeps it, or so does a machine that loses power.
enum class Durability { system, disk };

class AtomicFile {
 public:
  /// Opens at once, so that an unwritable path is known before the long work. Errors: directory missing, a directory,
  /// not writable.
  static Result<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();  // without commit: nothing is left

  /// Buffered. The first failure is kept and told by commit; later writes do nothing.
  void write(std::string_view bytes);
  /// Everything written is there under the path, or an error and nothing has changed.
  Status commit(Durability durability = Durability::system);
  const std::string& path() const;

  struct Impl;

 private:
  explicit AtomicFile(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

/// Names made, changed and removed in the directory until now survive a loss of power.
Status sync_directory(const std::string& path);

}  // namespace wt
