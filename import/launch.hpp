// Launch lines and hostfiles: how many nodes and ranks, which program, and what it is given.
// Launchers known: torchrun, python -m torch.distributed.run or .launch, deepspeed, accelerate launch, colossalai run, srun,
// mpirun, horovodrun. Facts: torch/distributed/run.py, deepspeed/launcher/runner.py, colossalai/cli/launcher/run.py.
#pragma once

#include <string>
#include <string_view>

#include "import/draft.hpp"
#include "import/shell.hpp"

namespace wt::import {

struct Launch {
  bool found = false;       // some launcher stands in the line
  bool sets_world = false;  // it said how many ranks there are
  std::string launcher, program;
  size_t arguments = 0;  // index of the first word behind the program
};

/// Takes run.nodes, run.devices, run.world from the launcher's words; `from` names the file.
Launch read_launch(const ShellCommand& command, const std::string& file, Draft& draft);

/// "#SBATCH" lines: nodes and ranks a node.
void read_directives(const ShellScript& script, const std::string& file, Draft& draft);

/// Lines of "host slots=8" or "host:8". False where a line is none of these.
bool is_hostfile(std::string_view text);
/// Lines of one name each (Colossal-AI).
bool is_host_list(std::string_view text);

}  // namespace wt::import
