#include "core/spec/data_dir.hpp"

#include <algorithm>
#include <filesystem>

#include "core/base/data_path.hpp"

namespace wt {

namespace fs = std::filesystem;

std::string find_data(std::string_view kind, std::string_view name) {
  std::error_code ignored;
  if (name.empty() || name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos ||
      name == "." || name == "..")
    return "";
  for (const std::string& root : data_roots()) {
    const fs::path folder = fs::path(root) / kind;
    const fs::path file = folder / (std::string(name) + ".yaml");
    if (fs::is_regular_file(file, ignored)) return file.string();
    if (fs::exists(folder / name, ignored)) return (folder / name).string();
  }
  return "";
}

std::vector<std::string> list_data(std::string_view kind) {
  std::vector<std::string> out;
  for (const std::string& root : data_roots()) {
    std::error_code error;
    for (fs::directory_iterator it(fs::path(root) / kind, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == ".yaml") out.push_back(it->path().stem().string());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<std::string> list_models() { return list_data("models"); }
std::vector<std::string> list_clusters() { return list_data("cluster_specs"); }
std::vector<std::string> list_devices() { return list_data("cluster_specs/devices"); }

}  // namespace wt
