#include "study/validate_open.hpp"

#include <fmt/format.h>

#include "study/validate_words.hpp"

namespace wt::study {

std::vector<std::string> plausible_micro_batches(int64_t per_replica) {
  std::vector<std::string> out;
  for (int64_t b = 1; b <= 16 && b <= per_replica; b *= 2)
    if (per_replica % b == 0) out.push_back(fmt::format("{}", b));
  return out;
}

std::vector<std::string> plausible_virtual_stages(int64_t layers, int64_t pipeline, bool must_interleave) {
  std::vector<std::string> all;
  // Where the layers alone do not divide, embedding and head count as one each (split_layers), and every chunk has a layer.
  const bool ends = layers % pipeline != 0;
  if (ends) layers += 2;
  if (layers % pipeline != 0) return {"1"};
  for (int64_t v = must_interleave ? 2 : 1; v <= layers / pipeline / (ends ? 2 : 1); ++v)
    if (layers / pipeline % v == 0) all.push_back(fmt::format("{}", v));
  if (all.empty()) all.push_back("1");
  if (all.size() > 3) all = {all.front(), all[all.size() / 2], all.back()};
  return all;
}

std::vector<Candidate> all_combinations(const YAML::Node& job, const std::vector<Choice>& open,
                                        const std::vector<int64_t>& global_batches) {
  std::vector<Candidate> out;
  std::vector<size_t> digit(open.size(), 0);
  for (bool more = true; more;) {
    for (const int64_t batch : global_batches) {
      YAML::Node one = YAML::Clone(job);
      std::string label;
      for (size_t i = 0; i < open.size(); ++i) {
        open[i].apply(one, open[i].values[digit[i]]);
        label += fmt::format("{}{} {}", label.empty() ? "" : ", ", open[i].name, open[i].values[digit[i]]);
      }
      if (global_batches.size() > 1) label += fmt::format("{}global_batch {}", label.empty() ? "" : ", ", batch);
      one["training"]["global_batch"] = batch;
      out.push_back({label, print(one), batch});
    }
    more = false;
    for (size_t i = 0; i < open.size() && !more; ++i) {
      if (++digit[i] < open[i].values.size())
        more = true;
      else
        digit[i] = 0;
    }
  }
  return out;
}

}  // namespace wt::study
