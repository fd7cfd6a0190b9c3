// Products of matrices by cuBLASLt: f64, f32 (no TF32), bf16, f16 with f32 sums, and e4m3 in the one layout that the
// hardware takes; anything else is widened first. Not kernels of ours. Invariant: algorithms are chosen once a shape, by
// the library's heuristic, and kept; scratch is ordered by the stream.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <map>

#include "exec/device/cuda/call.hpp"
#include "exec/kernels/matrix.hpp"

namespace wt::exec::cuda {

/// `count` products whose operands lie this many elements apart.
struct Batch {
  int64_t count = 1;
  int64_t a = 0, b = 0, c = 0;
};

class Products {
 public:
  Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  ~Products();

  /// Once, with the device current.
  Fault open();
  Fault multiply(const Product&, const Batch&, cudaStream_t);
  /// Whether cuBLASLt takes the operands as they are stored; otherwise multiply() widens copies, and `bias` must be null.
  static bool native(const Product&, const Batch&);

 private:
  using Shape = std::array<int64_t, 11>;
  static constexpr size_t kWorkspace = size_t{32} << 20;  // what cuBLAS itself takes on Hopper
  static constexpr size_t kMostShapes = 4096;

  Fault run(const Product&, const Batch&, cudaStream_t);
  Fault workspace(cudaStream_t, void**);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
  std::map<cudaStream_t, void*> workspaces_;
};

}  // namespace wt::exec::cuda
