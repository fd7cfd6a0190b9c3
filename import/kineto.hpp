// Traces of PyTorch's profiler (Kineto; .json or .json.gz) as a profile: kernels by stream, classed by name, collectives by
// name or by record_param_comms, the phase by what launched them, steps by "ProfilerStep#". One file for each rank.
// Nothing is made up: what has no launch, no step or no known name is counted in the notes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "core/trace/profile.hpp"
#include "import/kineto_events.hpp"

namespace wt::import {

/// Whether `diff` should take a file as a profile: packed JSON is, and JSON that begins as profilers' files do. A job may
/// be JSON too.
bool looks_like_profile(const std::string& path);

/// All files of one run. A rank is what the file says ("distributedInfo"), else a number behind "rank" in its name, else
/// its place. Errors: unreadable, no or cut JSON, too large, two files of one rank, no device activity in a file.
Result<trace::Profile> read_kineto(const std::vector<std::string>& paths, const KinetoLimits& limits = {});

/// The same from memory, not compressed.
struct KinetoText {
  std::string name;
  std::string_view json;
};
Result<trace::Profile> parse_kineto(const std::vector<KinetoText>& files, const KinetoLimits& limits = {});

}  // namespace wt::import
