// parse_plan on any bytes: it refuses or gives a plan that validation can look at and that prints back to itself.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.hpp"
#include "core/plan/plan_io.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = wt::plan::parse_plan(text);
  if (!parsed.ok()) {
    WT_CHECK(!parsed.errors().empty());
    return 0;
  }
  const wt::plan::Plan& plan = parsed.value();
  const auto valid = wt::plan::validate(plan);
  if (!valid.ok()) WT_CHECK(!valid.errors().empty());
  const auto again = wt::plan::parse_plan(wt::plan::print(plan));
  WT_CHECK(again.ok(), "{}", wt::to_text(again.errors()));
  WT_CHECK(again.value() == plan);
  WT_CHECK(wt::plan::digest(again.value()) == wt::plan::digest(plan));
  return 0;
}
