// What an exported trace is drawn from (slices with what the plan says of them, counters) and the writers that draw it,
// one for each format. Not the walk over trace and plan that makes the slices: export.cpp.
// Invariant: the slices of a track come in order and never overlap, so that begin and end pair by nesting.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/trace/export_out.hpp"
#include "core/trace/trace.hpp"

namespace wt::trace {

enum class FlowEnd : uint8_t { none, send, receive };

/// One span with what the plan says about it. -1: does not apply.
struct Slice {
  uint32_t rank = 0, step = 0;
  const plan::Op* op = nullptr;
  const plan::Block* block = nullptr;
  int64_t layer = -1, chunk = -1, micro_batch = -1, bytes = -1;  // layer of the model
  int64_t begin_ps = 0, end_ps = 0;
  FlowEnd flow_end = FlowEnd::none;
  uint64_t flow = 0;  // equal for a send and its receive
};

struct Process {
  uint32_t rank = 0;
  std::string name;
  std::array<bool, plan::kStreams> streams{};
  bool spans = false;  // else: only samples
};

class Writer {
 public:
  virtual ~Writer() = default;
  virtual void begin(const std::vector<Process>& processes) = 0;
  virtual void slice(const Slice&) = 0;
  virtual void planned_memory(uint32_t rank, int64_t at_ps, int64_t bytes) = 0;
  virtual void sample(const Sample&) = 0;
  virtual void end() = 0;
};

inline constexpr std::string_view kPlanned = "planned memory";
inline std::string_view name_of(CounterKind k) {
  return k == CounterKind::memory_bytes ? "memory of the device" : "link bytes per second";
}

/// core/trace/export_chrome.cpp. All arguments must outlive the writer.
std::unique_ptr<Writer> chrome_writer(Out&, const Trace&, const plan::Plan&);
/// core/trace/export_perfetto.cpp. `origin_ps`: drawn as 0, timestamps have no sign.
std::unique_ptr<Writer> perfetto_writer(Out&, int64_t origin_ps);

}  // namespace wt::trace
