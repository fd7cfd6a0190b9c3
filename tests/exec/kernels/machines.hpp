// The machines that the conformance suite runs on. A machine that is not here says why; its tests are skipped by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/exec/kernels/case.hpp"

namespace wt::exec::test {

struct FoundMachine {
  Machine* machine = nullptr;  // null: it is missing
  std::string missing;         // "skipped: no GPU"
};

/// "cpu": one thread; "cpu3": three workers that get uneven ranges in any order; "cuda": the first GPU.
std::vector<std::string> machine_names();
FoundMachine machine(const std::string& name);

}  // namespace wt::exec::test
