#include "sim/cost/hosts.hpp"

#include <algorithm>

#include "sim/cost/csv.hpp"

namespace wt::sim {

Result<std::vector<HostProfile>> read_hosts(const std::string& path) {
  static constexpr std::string_view columns[] = {"profile",     "kernel_us",     "collective_us", "forward_us",
                                                 "backward_us", "checkpoint_us", "source"};
  auto csv = Csv::read(path, columns);
  if (!csv) return csv.errors();
  std::vector<HostProfile> hosts;
  for (size_t row = 0; row < csv.value().rows(); ++row) {
    Csv& c = csv.value();
    hosts.push_back({std::string(c.text(row, 0)), c.number(row, 1) * 1e-6, c.number(row, 2) * 1e-6,
                     c.number(row, 3) * 1e-6, c.number(row, 4) * 1e-6, c.number(row, 5) * 1e-6});
    for (size_t column : {1, 2, 3, 4, 5})
      if (c.number(row, column) < 0) c.fail(row, column, "negative");
    if (std::ranges::count(hosts, hosts.back().name, &HostProfile::name) > 1)
      c.fail(row, 0, fmt::format("'{}' again", hosts.back().name));
  }
  if (!csv.value().errors().empty()) return csv.value().errors();
  if (std::ranges::find(hosts, "default", &HostProfile::name) == hosts.end())
    return Diagnostic{path, "no profile 'default'", ""};
  return hosts;
}

}  // namespace wt::sim
