// Any bytes as a plan: diagnostics or a plan that prints, reads back equal, keeps its digest and can be validated.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.hpp"
#include "core/plan/plan_io.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto plan = wt::plan::parse_plan(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!plan.ok()) return 0;
  const std::string text = wt::plan::print(plan.value());
  const auto again = wt::plan::parse_plan(text, "printed");
  WT_CHECK(again.ok(), "{}\n{}", wt::to_text(again.errors()), text);
  WT_CHECK(wt::plan::print(again.value()) == text, "{}", text);
  WT_CHECK(wt::plan::digest(again.value()) == wt::plan::digest(plan.value()));
  (void)wt::plan::validate(plan.value());
  return 0;
}
