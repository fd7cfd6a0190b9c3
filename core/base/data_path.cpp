#include "core/base/data_path.hpp"

#include <cstdlib>
#include <filesystem>

namespace wt {

namespace fs = std::filesystem;

std::vector<std::string> data_roots() {
  std::vector<std::string> out;
  std::error_code ignored;
  auto add = [&](const fs::path& p) {
    if (!p.empty() && fs::is_directory(p, ignored)) out.push_back(p.string());
  };
  if (const char* set = std::getenv("WINDTUNNEL_DATA")) add(set);
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  if (!self.empty()) add(self.parent_path().parent_path() / "share" / "windtunnel");
#ifdef WT_SOURCE_DATA
  add(WT_SOURCE_DATA);
#endif
  return out;
}

std::string data_directory() {
  std::error_code ignored;
  for (const std::string& root : data_roots())
    if (fs::path data = fs::path(root) / "data"; fs::is_directory(data, ignored)) return data.string();
  return "data";
}

}  // namespace wt
