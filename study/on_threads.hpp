// Work items on several threads: each thread takes the next that nobody has, since items differ a hundredfold in cost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace wt::study {

/// Calls work(0) .. work(count - 1), in no order, and returns when all are over. threads 0: one a core.
/// `work` must not throw.
template <class Work>
void on_threads(unsigned threads, size_t count, const Work& work) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (size_t t = 1; t < std::min<size_t>(threads, count); ++t) others.emplace_back(take);
  take();
}

}  // namespace wt::study
