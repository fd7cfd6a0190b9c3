#include "exec/checkpoint/team.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace wt::exec {

namespace {
using Json = nlohmann::json;
std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }
}  // namespace

Team Team::of(Communicator& c) {
  return {c.rank(), c.size(), [&c](std::string_view text) { return c.gather(text); }};
}

Status Team::agree(const Diagnostics& mine) const {
  if (!gather) return status_of(mine);
  Json list = Json::array();
  for (const Diagnostic& d : mine) list.push_back({d.where, d.what, d.hint});
  auto all = gather(dump(list));
  if (!all) return all.errors();
  Diagnostics faults;
  std::set<std::pair<std::string, std::string>> told;
  for (const std::string& text : all.value()) {
    const Json theirs = Json::parse(text, nullptr, false);
    WT_CHECK(theirs.is_array(), "a rank gathered something else: calls are out of order");
    for (const auto& d : theirs)
      if (told.emplace(d.at(0), d.at(1)).second) faults.push_back({d.at(0), d.at(1), d.at(2)});
  }
  return status_of(std::move(faults));
}

Result<std::vector<std::string>> Team::from_first(const std::vector<std::string>& mine) const {
  if (!gather) return mine;
  auto all = gather(rank.v == 0 ? dump(mine) : std::string());
  if (!all) return all.errors();
  const Json first = Json::parse(all.value()[0], nullptr, false);
  WT_CHECK(first.is_array(), "a rank gathered something else: calls are out of order");
  return first.get<std::vector<std::string>>();
}

}  // namespace wt::exec
