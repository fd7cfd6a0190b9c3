#include "core/lower/schedule.hpp"

namespace wt::lower {

const Schedule* find_schedule(std::string_view name) {
  for (const Schedule* schedule : all_schedules())
    if (schedule->name == name) return schedule;
  return nullptr;
}

}  // namespace wt::lower
