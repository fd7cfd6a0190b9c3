// Where built-in data lives: WINDTUNNEL_DATA, then the source tree, then <prefix>/share/windtunnel.
// Looks names up and lists them; reads nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wt {

/// Directories that hold models/, cluster_specs/ and data/, first wins. WINDTUNNEL_DATA is read on every call.
std::vector<std::string> data_roots();

/// Path of <root>/<kind>/<name>.yaml, or of the file or directory <root>/<kind>/<name>, in the first root that has it;
/// "" if none. `kind` is a folder: "models", "cluster_specs", "cluster_specs/devices", "data", "data/kernels".
std::string find_data(std::string_view kind, std::string_view name);

/// Names of all *.yaml of that kind in all roots, sorted, without ending.
std::vector<std::string> list_data(std::string_view kind);
std::vector<std::string> list_models();
std::vector<std::string> list_clusters();
std::vector<std::string> list_devices();

}  // namespace wt
