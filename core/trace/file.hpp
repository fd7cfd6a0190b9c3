// The native trace file (.wttrace): written while the run goes on, read back whole. Not an export (export.hpp).
//
//   "wttrace\n"  u32 version  u32 zero      all integers little-endian
//   chunk*       { u32 kind, u32 zero, u64 stored bytes, u64 raw bytes, u32 crc of the stored bytes, u32 crc of this head }
//                then the stored bytes: one zstd frame
//   kinds        1 plan text, 2 runs of spans, 3 samples, 4 meta, 5 end { u64 spans, u64 samples, u64 chunks } (not compressed)
//
// The end chunk comes last and once: a file without it was cut. What a chunk holds is in codec.hpp. Files of every
// released version open for ever (tests/kept/).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.hpp"
#include "core/trace/trace.hpp"

namespace wt::trace {

/// Writes a trace as it comes. Calls for different ranks may come from different threads. Memory: some tens of MiB.
class FileSink final : public Sink {
 public:
  /// Opens at once: an unwritable path is known before the run. The file appears under `path` with finish() only.
  static Result<std::unique_ptr<FileSink>> create(const std::string& path, std::string_view plan_text);
  ~FileSink() override;  // without finish: nothing is left

  void spans(uint32_t rank, uint32_t step, std::span<const Span>) override;
  void sample(const Sample&) override;

  /// The first failure since create (disk full ...) is told here, and then no file appears.
  Status finish(const Meta& meta);

  struct Impl;

 private:
  explicit FileSink(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

struct ReadLimits {
  uint64_t spans = uint64_t{1} << 29;       // 12 GiB of memory
  uint64_t file_bytes = uint64_t{1} << 34;  // larger files are refused
  uint64_t text_bytes = uint64_t{1} << 28;  // of the plan and the meta
};

/// Errors: not a trace, a newer version, cut short, corrupt (with the offset of the chunk).
Result<Trace> read_trace(const std::string& path, const ReadLimits& = {});
Result<Trace> parse_trace(std::string_view bytes, std::string_view where = "trace", const ReadLimits& = {});

/// A whole trace at once, by way of FileSink.
Status write_trace(const std::string& path, const Trace& trace);

/// Every span points at an op of the plan, ranks and steps exist, and each (rank, step) is complete and in issue order:
/// what exports and reports rely on. All faults of the first bad rank.
Status check_against_plan(const Trace& trace, const plan::Plan& plan);

}  // namespace wt::trace
