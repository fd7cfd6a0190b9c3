#include "core/base/data_path.hpp"

#include <cstdlib>
#include <filesystem>

namespace wt {

std::string data_directory() {
  if (const char* set = std::getenv("WINDTUNNEL_DATA"); set && *set) return set;
  std::error_code ignored;
#ifdef WT_DATA_DIRECTORY
  if (std::filesystem::is_directory(WT_DATA_DIRECTORY, ignored)) return WT_DATA_DIRECTORY;
#endif
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path().parent_path() / "share" / "windtunnel" / "data").string();
}

}  // namespace wt
