// Any bytes as a model, cluster, strategy, training or job: diagnostics or a spec, and a spec prints and reads back equal.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.hpp"
#include "core/spec/read.hpp"

namespace {

template <class Spec, class Print, class Parse>
void round_trip(const wt::Result<Spec>& first, Print print, Parse parse) {
  if (!first.ok()) return;
  const std::string text = print(first.value());
  const wt::Result<Spec> second = parse(text, "printed");
  WT_CHECK(second.ok(), "{}\n{}", wt::to_text(second.errors()), text);
  WT_CHECK(print(second.value()) == text, "{}", text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  round_trip(wt::parse_model(text, "fuzz"), wt::print_model, wt::parse_model);
  round_trip(wt::parse_cluster(text, "fuzz"), wt::print_cluster, wt::parse_cluster);
  round_trip(wt::parse_strategy(text, "fuzz"), wt::print_strategy, wt::parse_strategy);
  round_trip(wt::parse_training(text, "fuzz"), wt::print_training, wt::parse_training);
  round_trip(wt::parse_job(text, "fuzz"), wt::print_job,
             [](std::string_view printed, const char* file) { return wt::parse_job(printed, file); });
  return 0;
}
