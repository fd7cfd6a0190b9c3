#include "exec/device/cuda/products.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "exec/device/cuda/launch.hpp"

namespace wt::exec::cuda {
namespace {

template <class T, cublasStatus_t (*destroy)(T)>
struct Handle {
  T value = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value != nullptr) destroy(value);
  }
};
using MatmulDesc = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64: return CUDA_R_64F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::f8: return CUDA_R_8F_E4M3;
    default: return CUDA_R_32F;
  }
}

bool aligned(const MatrixView& x, int64_t stride) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride * size_of(x.dtype) % 16 == 0 &&
         stride * size_of(x.dtype) % 16 == 0;
}

/// The type in which a product that is not stored so can be done: both factors fit it.
DType wider(DType a, DType b, DType c) {
  if (a == DType::f64 || b == DType::f64 || c == DType::f64) return DType::f64;
  if (a == DType::f8 && b == DType::f8 && (c == DType::bf16 || c == DType::f32)) return DType::bf16;  // e4m3 fits bf16
  return DType::f32;
}

/// Scratch that lives until what was launched on the stream before its end is over.
class Scratch {
 public:
  explicit Scratch(cudaStream_t stream) : stream_(stream) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (void* p : owned_) cudaFreeAsync(p, stream_);
  }
  Fault take(int64_t bytes, void** out) {
    WT_CUDA(cudaMallocAsync(out, static_cast<size_t>(bytes), stream_));
    owned_.push_back(*out);
    return std::nullopt;
  }

 private:
  cudaStream_t stream_;
  std::vector<void*> owned_;
};

/// Elements from the first to the last that a view of `rows` rows touches in all products of a batch.
int64_t extent(const MatrixView& x, int64_t rows, int64_t columns, int64_t count, int64_t stride) {
  return (count - 1) * stride + ((x.transposed ? columns : rows) - 1) * x.stride + (x.transposed ? rows : columns);
}

Fault widen(MatrixView& x, DType to, int64_t elements, Scratch& scratch, cudaStream_t stream) {
  if (x.dtype == to) return std::nullopt;
  void* memory = nullptr;
  if (auto f = scratch.take(elements * size_of(to), &memory)) return f;
  launch_convert({x.data, x.dtype, elements, {}}, {memory, to, elements, {}}, stream);
  x.data = memory;
  x.dtype = to;
  return std::nullopt;
}

template <class T>
Fault set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const T& value) {
  WT_CUDA(cublasLtMatmulDescSetAttribute(d, name, &value, sizeof value));
  return std::nullopt;
}

Fault describe(Layout& out, const MatrixView& x, int64_t rows, int64_t columns, const Batch& batch, int64_t stride) {
  // cuBLAS counts by columns: what we store row by row is the transposed matrix to it.
  WT_CUDA(cublasLtMatrixLayoutCreate(&out.value, type_of(x.dtype), static_cast<uint64_t>(x.transposed ? rows : columns),
                                     static_cast<uint64_t>(x.transposed ? columns : rows), x.stride));
  if (batch.count == 1) return std::nullopt;
  const auto count = static_cast<int32_t>(batch.count);
  WT_CUDA(cublasLtMatrixLayoutSetAttribute(out.value, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
  WT_CUDA(
      cublasLtMatrixLayoutSetAttribute(out.value, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
  return std::nullopt;
}

}  // namespace

/// e4m3 needs A as rows of k and B transposed, in whole 16 bytes, and gives no e4m3 without scales.
bool Products::native(const Product& p, const Batch& batch) {
  if (p.a.dtype != p.b.dtype) return false;
  switch (p.a.dtype) {
    case DType::f64:
    case DType::f32: return p.c.dtype == p.a.dtype;
    case DType::bf16:
    case DType::f16: return p.c.dtype == p.a.dtype || p.c.dtype == DType::f32;
    default:
      return !p.a.transposed && p.b.transposed && (p.c.dtype == DType::f32 || p.c.dtype == DType::bf16) &&
             p.m % 16 == 0 && p.n % 16 == 0 && p.k % 16 == 0 && aligned(p.a, batch.a) && aligned(p.b, batch.b) &&
             aligned(p.c, batch.c);
  }
}

Products::~Products() {
  for (auto& [stream, memory] : workspaces_) cudaFree(memory);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Fault Products::open() {
  WT_CUDA(cublasLtCreate(&handle_));
  return std::nullopt;
}

Fault Products::workspace(cudaStream_t stream, void** out) {
  void*& memory = workspaces_[stream];
  if (memory == nullptr) WT_CUDA(cudaMalloc(&memory, kWorkspace));
  *out = memory;
  return std::nullopt;
}

Fault Products::multiply(const Product& product, const Batch& batch, cudaStream_t stream) {
  Product p = product;
  if (p.m == 0 || p.n == 0 || batch.count == 0) return std::nullopt;
  if (native(p, batch)) return run(p, batch, stream);
  Scratch scratch(stream);
  const DType to = wider(p.a.dtype, p.b.dtype, p.c.dtype);
  if (auto f = widen(p.a, to, extent(p.a, p.m, p.k, batch.count, batch.a), scratch, stream)) return f;
  if (auto f = widen(p.b, to, extent(p.b, p.k, p.n, batch.count, batch.b), scratch, stream)) return f;
  const MatrixView out = p.c;
  // With gaps between its rows C is copied whole, there and back, so that what lies in the gaps stays.
  if (!native(p, batch)) {
    if (auto f = widen(p.c, to, extent(p.c, p.m, p.n, batch.count, batch.c), scratch, stream)) return f;
  }
  if (auto f = run(p, batch, stream)) return f;
  if (p.c.data != out.data) {
    const int64_t elements = extent(out, p.m, p.n, batch.count, batch.c);
    launch_convert({p.c.data, p.c.dtype, elements, {}}, {out.data, out.dtype, elements, {}}, stream);
  }
  return std::nullopt;
}

/// C' = B' A' in cuBLAS's eyes, with C' the transposed C: so the bias, one a column of ours, is one a row of C'.
Fault Products::run(const Product& p, const Batch& batch, cudaStream_t stream) {
  const bool f64 = p.a.dtype == DType::f64;
  MatmulDesc desc;
  WT_CUDA(cublasLtMatmulDescCreate(&desc.value, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   f64 ? CUDA_R_64F : CUDA_R_32F));
  const cublasOperation_t b_op = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                          a_op = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  if (auto f = set(desc.value, CUBLASLT_MATMUL_DESC_TRANSA, b_op)) return f;
  if (auto f = set(desc.value, CUBLASLT_MATMUL_DESC_TRANSB, a_op)) return f;
  if (p.bias != nullptr) {
    if (auto f = set(desc.value, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS)) return f;
    if (auto f = set(desc.value, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias)) return f;
    if (auto f = set(desc.value, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.c.dtype))) return f;
  }
  Layout a, b, c;
  if (auto f = describe(b, p.b, p.k, p.n, batch, batch.b)) return f;
  if (auto f = describe(a, p.a, p.m, p.k, batch, batch.a)) return f;
  if (auto f = describe(c, p.c, p.m, p.n, batch, batch.c)) return f;

  const bool whole = aligned(p.a, batch.a) && aligned(p.b, batch.b) && aligned(p.c, batch.c);
  const int64_t types = static_cast<int64_t>(p.a.dtype) | static_cast<int64_t>(p.c.dtype) << 4 |
                        int64_t{p.a.transposed} << 8 | int64_t{p.b.transposed} << 9 | int64_t{p.accumulate} << 10 |
                        int64_t{p.bias != nullptr} << 11 | int64_t{whole} << 12;
  const Shape shape{p.m, p.n, p.k, p.a.stride, p.b.stride, p.c.stride, types, batch.count, batch.a, batch.b, batch.c};
  auto found = algorithms_.find(shape);
  if (found == algorithms_.end()) {
    Preference preference;
    WT_CUDA(cublasLtMatmulPreferenceCreate(&preference.value));
    WT_CUDA(cublasLtMatmulPreferenceSetAttribute(preference.value, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &kWorkspace, sizeof kWorkspace));
    // The heuristic takes 256 bytes of alignment for granted unless it is told otherwise.
    const auto least = whole ? uint32_t{16} : static_cast<uint32_t>(std::min(size_of(p.a.dtype), size_of(p.c.dtype)));
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      WT_CUDA(cublasLtMatmulPreferenceSetAttribute(preference.value, name, &least, sizeof least));
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    WT_CUDA(cublasLtMatmulAlgoGetHeuristic(handle_, desc.value, b.value, a.value, c.value, c.value, preference.value, 1,
                                           &best, &count));
    if (count == 0) return Diagnostic{"cublasLtMatmulAlgoGetHeuristic", "no algorithm for this product", ""};
    if (algorithms_.size() >= kMostShapes) algorithms_.clear();
    found = algorithms_.emplace(shape, best.algo).first;
  }
  void* memory = nullptr;
  if (auto f = workspace(stream, &memory)) return f;
  const double one64 = 1, beta64 = p.accumulate ? 1 : 0;
  const float one32 = 1, beta32 = p.accumulate ? 1 : 0;
  WT_CUDA(cublasLtMatmul(handle_, desc.value, f64 ? static_cast<const void*>(&one64) : &one32, p.b.data, b.value,
                         p.a.data, a.value, f64 ? static_cast<const void*>(&beta64) : &beta32, p.c.data, c.value,
                         p.c.data, c.value, &found->second, memory, kWorkspace, stream));
  return std::nullopt;
}

}  // namespace wt::exec::cuda
