// Any bytes as one or two profiler files: a profile that keeps its own promises, or diagnostics; never an exception, an abort
// or a hang.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "import/kineto.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  wt::import::KinetoLimits limits;
  limits.kept = 1 << 12;
  const size_t half = size / 2;
  for (const auto& files :
       {std::vector<wt::import::KinetoText>{{"rank0.json", text}},
        std::vector<wt::import::KinetoText>{{"a", text.substr(0, half)}, {"b", text.substr(half)}}}) {
    const auto p = wt::import::parse_kineto(files, limits);
    if (!p) {
      for (const wt::Diagnostic& d : p.errors())
        if (d.what.empty()) std::abort();
      continue;
    }
    for (const wt::trace::ProfileSpan& s : p.value().spans) {
      if (s.end_ps < s.begin_ps || s.begin_ps < 0 || s.name >= p.value().names.size()) std::abort();
      if (s.step != wt::trace::kNoStep && s.step >= p.value().steps.size()) std::abort();
    }
  }
  return 0;
}
