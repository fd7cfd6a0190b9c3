// Where the data files of the project lie (kernels, hosts, fabrics, models): data/ of the source tree or of the install.
#pragma once

#include <string>

namespace wt {

/// The directory "data", without a trailing slash: $WINDTUNNEL_DATA if set, else data/ of the source tree that was built
/// if it still exists, else ../share/windtunnel/data beside the running program.
std::string data_directory();

}  // namespace wt
