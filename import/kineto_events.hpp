// The events of a PyTorch profiler file (Chrome's trace JSON as Kineto writes it), read as a stream: of each only what says
// when a device worked, who launched it and in which step; all else (stacks, shapes, python functions) is passed over.
// Not the meaning of kernel names or of phases: that is kineto.cpp. Memory: some 60 bytes for each event that is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/result.hpp"
#include "core/trace/profile.hpp"

namespace wt::import {

/// Times are nanoseconds of the file's own clock.
struct KinetoEvents {
  struct Device {  // a kernel, copy or fill
    int64_t begin = 0, end = 0;
    uint64_t correlation = 0;  // 0: none
    uint32_t name = 0;
    uint16_t stream = 0;
    trace::WorkClass collective = trace::WorkClass::other;  // where the kernel's own arguments say it
    int32_t group = 0;
    int64_t bytes = -1;
  };
  struct Launch {
    uint64_t correlation = 0, thread = 0;
    int64_t at = 0;
  };
  enum class Says : uint8_t { recorded_forward, annotated, autograd, optimizer };  // later ones weigh more
  struct Mark {
    uint64_t thread = 0;
    int64_t begin = 0, end = 0;
    Says says = Says::annotated;
    trace::ProfilePhase phase = trace::ProfilePhase::outside;
  };
  struct Collective {  // on the host: what a kernel launched meanwhile belongs to
    uint64_t thread = 0;
    int64_t begin = 0, end = 0;
    trace::WorkClass kind = trace::WorkClass::other;
    int32_t group = 0;
    int64_t bytes = -1;
  };
  struct Step {
    int64_t number = 0, begin = 0, end = 0;
  };
  std::vector<Device> device;
  std::vector<Launch> launches;
  std::vector<Mark> marks;
  std::vector<Collective> collectives;
  std::vector<Step> steps;
  std::vector<std::string> names;
  int64_t rank = -1, world = 0;  // of "distributedInfo"; -1: not told
  int64_t events = 0;            // in the file
  int64_t host_ops = 0;          // cpu_op among them
  int64_t faulty = 0;            // without a time, or with one that cannot be
};

struct KinetoLimits {
  int64_t bytes = int64_t{8} << 30;  // of JSON, unpacked
  int64_t kept = int64_t{1} << 26;   // events that are kept: 4 GiB
  int64_t names = int64_t{1} << 28;  // bytes of different kernel names
};

/// Gives the next piece of the file; empty at its end. Unpacking is the caller's. Errors of the source are kept by it.
using Pieces = std::function<std::string_view()>;

/// Errors: no JSON (with the place), cut, too large, nested deeper than any profiler writes, no "traceEvents".
Result<KinetoEvents> read_kineto_events(const std::string& name, const Pieces& next, const KinetoLimits& limits);

}  // namespace wt::import
