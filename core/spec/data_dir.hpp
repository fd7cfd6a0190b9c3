// Built-in models, clusters and data by name, in the roots of core/base/data_path.hpp.
// Looks names up and lists them; reads nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wt {

/// Path of <root>/<kind>/<name>.yaml, or of the file or directory <root>/<kind>/<name>, in the first root that has it;
/// "" if none. `kind` is a folder: "models", "cluster_specs", "cluster_specs/devices", "data", "data/kernels".
std::string find_data(std::string_view kind, std::string_view name);

/// Names of all *.yaml of that kind in all roots, sorted, without ending.
std::vector<std::string> list_data(std::string_view kind);
std::vector<std::string> list_models();
std::vector<std::string> list_clusters();
std::vector<std::string> list_devices();

}  // namespace wt
