// Uses the installed headers and libraries as a stranger would.
#include <cstdio>

#include "core/base/units.hpp"

int main() {
  std::puts(wt::to_text(wt::Time::us(1500)).c_str());
  return 0;
}
