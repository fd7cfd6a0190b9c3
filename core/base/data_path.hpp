// Where built-in data lives (models/, cluster_specs/, data/, examples/): the environment, the install, the source tree.
#pragma once

#include <string>
#include <vector>

namespace wt {

/// Directories that may hold models/, cluster_specs/ and data/, the first wins: $WINDTUNNEL_DATA (read on every call),
/// share/windtunnel beside the bin/ of the running program, the source tree that was built. Only those that exist.
std::vector<std::string> data_roots();

/// The folder data/ of the first root that has one, without a trailing slash; "data" when there is none.
std::string data_directory();

}  // namespace wt
