#include "tests/exec/kernels/machines.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#if defined(WT_HAVE_CUDA)
#include "exec/device/cuda/cuda.hpp"
#endif

namespace wt::exec::test {
namespace {

/// Threads that are made for every loop and get ranges of unequal lengths: slow, and as unlike one worker as may be.
class UnevenWorkers final : public Workers {
 public:
  int64_t count() const override { return 3; }
  void parallel_for(int64_t n, int64_t grain, RangeBody body) override {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t at = 0, i = 0; at < n; ++i) {
      const int64_t size = std::min(n - at, std::max<int64_t>(1, grain) + i % 3);
      ranges.emplace_back(at, at + size);
      at += size;
    }
    std::mutex mutex;
    std::exception_ptr failure;
    auto work = [&] {
      for (;;) {
        std::pair<int64_t, int64_t> range;
        {
          const std::lock_guard lock(mutex);
          if (ranges.empty()) return;
          range = ranges.back();
          ranges.pop_back();
        }
        try {
          body(range.first, range.second);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) threads.emplace_back(work);
    work();
    for (std::thread& t : threads) t.join();
    if (failure) std::rethrow_exception(failure);
  }
};

}  // namespace

std::vector<std::string> machine_names() {
#if defined(WT_HAVE_CUDA)
  return {"cpu", "cpu3", "cuda"};
#else
  return {"cpu", "cpu3"};  // and CudaMachine.IsHere says that it is not
#endif
}

namespace {

/// The first GPU, kept for all tests of the program.
FoundMachine cuda_machine() {
#if defined(WT_HAVE_CUDA)
  static const Result<int> count = cuda_device_count();
  if (!count) return {nullptr, "skipped: no GPU (" + count.errors()[0].what + ")"};
  if (count.value() == 0) return {nullptr, "skipped: no GPU"};
  static const Result<std::unique_ptr<Device>> device = open_cuda_device(0, RankId{0});
  if (!device) return {nullptr, to_text(device.errors())};
  static const std::unique_ptr<Machine> machine = device_machine(*device.value());
  return {machine.get(), ""};
#else
  return {nullptr, "skipped: no GPU (built without CUDA)"};
#endif
}

}  // namespace

FoundMachine machine(const std::string& name) {
  static InlineWorkers inline_workers;
  static UnevenWorkers uneven_workers;
  static const std::unique_ptr<Machine> cpu = cpu_machine(inline_workers, "cpu"),
                                        cpu3 = cpu_machine(uneven_workers, "cpu3");
  if (name == "cpu") return {cpu.get(), ""};
  if (name == "cpu3") return {cpu3.get(), ""};
  if (name == "cuda") return cuda_machine();
  return {nullptr, "no machine is called " + name};
}

}  // namespace wt::exec::test
