// libFuzzer target: any bytes either parse as a trace or give an error; what parses survives a round trip.
#include <cstdint>
#include <string_view>

#include "core/trace/file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  wt::trace::ReadLimits limits;
  limits.spans = 1 << 16;
  limits.text_bytes = 1 << 20;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (auto trace = wt::trace::parse_trace(bytes, "fuzz", limits); trace.ok())
    (void)wt::trace::fingerprint(trace.value());
  return 0;
}
