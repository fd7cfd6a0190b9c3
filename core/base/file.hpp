// Reading and writing whole files with errors that name the path; writes are all or nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.hpp"

namespace wt {

/// Reads a whole file. Errors: missing, a directory, unreadable, larger than `limit_bytes`, cut short.
Result<std::string> read_file(const std::string& path, int64_t limit_bytes = int64_t{1} << 30);

/// Writes to `path` by way of a sibling temporary file and a rename: either the whole new content is there or
/// the old file is untouched. Errors: directory missing, not writable, disk full.
Status write_file_atomically(const std::string& path, std::string_view content);

}  // namespace wt
