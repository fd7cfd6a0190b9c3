// A trace in formats that other programs draw: Perfetto (ui.perfetto.dev) and Chrome's JSON. Names come from the plan.
// One process for each rank, one track for each stream, arrows from sends to receives, a counter of the device memory
// that the plan holds (not what the allocator reserves beyond it: core/report).
// Not lossless: Perfetto counts nanoseconds; convert keeps the native file as the source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/atomic_file.hpp"
#include "core/base/result.hpp"
#include "core/plan/plan.hpp"
#include "core/trace/trace.hpp"

namespace wt::trace {

enum class Format : uint8_t { native, perfetto, chrome, chrome_gz };

/// By the ending: .wttrace, .pftrace (or .perfetto-trace), .json, .json.gz. Errors: any other.
Result<Format> format_of(std::string_view path);

/// Appends the whole export to `file` (not committed). The trace must have passed check_against_plan. Perfetto, Chrome.
void export_trace(AtomicFile& file, Format format, const Trace& trace, const plan::Plan& plan);

/// Check, create, export, commit; native as well.
Status write_as(const std::string& path, const Trace& trace, const plan::Plan& plan);

}  // namespace wt::trace
