// What the caching allocator holds when a program's requests run through it: every reservation and release of setup and
// step in issue order, the step twice. Not a report: core/report/memory.hpp asks for one number a pipeline stage.
// Invariant: requests of a block are unrolled once for the plan, whichever programs and micro-batches run it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/report/allocator.hpp"
#include "core/spec/specs.hpp"

namespace wt::report {

struct Held {
  int64_t reserved = 0;  // the most that the allocator held
  bool failed = false;   // the limit would have refused a request
};

class Requests {
 public:
  /// `device`: bytes of each buffer on the device, 0 for the others.
  Requests(const JobSpec&, const plan::Plan&, const std::vector<int64_t>& device);
  Held run(const plan::Program&, int64_t limit);

 private:
  enum class Act : uint8_t { reserve, release, touch };  // touch: autograd makes a gradient tensor where there is none
  enum class Region : uint8_t { one, chunk, micro_batch };  // of which an instance exists for each
  struct Request {
    uint32_t instance;  // within its region
    uint8_t binding;
    Act act;
    Region region;
    int64_t bytes;
  };
  struct Block {
    std::vector<Request> requests;
    bool drops_gradients = false;
  };
  void unroll(const plan::Block&, Block&) const;

  const plan::Plan& plan_;
  const std::vector<int64_t>& device_;
  bool tensors_ = false,
       low_ = false;  // gradients are autograd's tensors; in the dtype of the weights, beside fp32 ones
  DType low_dtype_ = DType::bf16;
  std::vector<bool> skipped_;
  std::vector<uint32_t> first_;                   // instance of layer -1 of each buffer
  uint32_t ones_ = 0, chunks_ = 0, batches_ = 0;  // instances of each region
  std::vector<Block> blocks_;
  CachingAllocator allocator_;
};

}  // namespace wt::report
