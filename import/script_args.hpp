// Arguments of a training program that is not Megatron's: Hugging Face's Trainer if they are its, else the program's own,
// which only its code knows.
#pragma once

#include <string>

#include "import/draft.hpp"
#include "import/launch.hpp"
#include "import/shell.hpp"

namespace wt::import {

void read_script_arguments(const ShellCommand& command, const Launch& launch, const std::string& file, Draft& draft);

}  // namespace wt::import
