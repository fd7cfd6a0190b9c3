// PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp): what it asks of the driver for a series of requests.
// Rules: sizes round to 512 B; requests up to 1 MiB come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB,
// larger ones from a segment of their own, rounded to 2 MiB; the smallest free block that is large enough serves, split if
// more than 1 MiB (small pool: 512 B) is left; neighbours that are free merge; segments stay reserved until the driver
// has no more, then every segment that is wholly free goes back and the request is tried again.
// Not modelled: streams (one pool), expandable segments, the options of PYTORCH_CUDA_ALLOC_CONF.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/report/free_blocks.hpp"

namespace wt::report {

class CachingAllocator {
 public:
  using Handle = uint32_t;
  explicit CachingAllocator(int64_t limit = std::numeric_limits<int64_t>::max()) : limit_(limit) {}

  /// As if new; keeps its tables, which the next replay fills alike.
  void restart(int64_t limit);
  /// Always serves; `failed()` tells whether the limit would have refused a request.
  Handle reserve(int64_t bytes);
  void release(Handle);

  int64_t reserved() const { return reserved_; }  // segments held now
  int64_t peak() const { return peak_; }          // the most they were
  bool failed() const { return failed_; }
  int64_t retries() const { return retries_; }  // times that cached segments went back to the driver

 private:
  static constexpr uint32_t kNone = FreeBlocks::kNone;
  struct Block {
    int64_t size = 0;
    uint32_t previous = kNone, next = kNone;  // in the segment
    FreeBlocks::Class size_class = 0;         // of `size`
    bool free = false, small = false;
  };
  uint32_t make(Block);
  void return_cached();

  int64_t limit_, reserved_ = 0, peak_ = 0, retries_ = 0;
  bool failed_ = false;
  std::vector<Block> blocks_;
  std::vector<uint32_t> unused_;
  FreeBlocks free_[2];  // large, small
};

}  // namespace wt::report
