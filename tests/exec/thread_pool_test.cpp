// Ranges of a kernel on several threads: each element once, failures come out, calls may follow each other at once.
#include "exec/device/thread_pool.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace wt::exec {
namespace {

TEST(ThreadPool, DoesEveryElementOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.count(), threads);
    for (const int64_t n : {0, 1, 7, 100, 10007})
      for (const int64_t grain : {0, 1, 64, 20000}) {
        std::vector<int> hits(static_cast<size_t>(n));
        std::atomic<bool> small{false};
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          if (end - begin < grain && end != n) small = true;
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        EXPECT_FALSE(small);
        EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), n);
        for (const int h : hits) ASSERT_EQ(h, 1);
      }
  }
}

TEST(ThreadPool, ManyCallsInARow) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(64);
  for (int call = 0; call < 500; ++call)
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++sums[static_cast<size_t>(i)];
    });
  for (const int64_t s : sums) EXPECT_EQ(s, 500);
}

TEST(ThreadPool, AnExceptionOfABodyComesOut) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(1000, 1,
                                 [](int64_t begin, int64_t) {
                                   if (begin > 300) throw std::runtime_error("no");
                                 }),
               std::runtime_error);
  int64_t n = 0;
  std::mutex mutex;
  pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    n += end - begin;
  });
  EXPECT_EQ(n, 1000);  // it goes on
}

TEST(ThreadPool, PinsToCoresThatAreThere) {
  const std::vector<int> cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  ThreadPool pool(2, {cores.front(), cores.back()});
  std::thread([&] {
    pin_this_thread(cores.front());
    EXPECT_EQ(usable_cores(), std::vector<int>{cores.front()});
    pin_this_thread(100000);  // without effect
    EXPECT_EQ(usable_cores(), std::vector<int>{cores.front()});
  }).join();
}

}  // namespace
}  // namespace wt::exec
