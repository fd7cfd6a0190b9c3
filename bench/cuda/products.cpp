// Products of a plan on a GPU beside cuBLASLt alone: what run's device makes of an op, against the best of the library's own
// choices, measured one by one. Prints a line a shape and exits 4 where there is no GPU. Not run on a GPU yet.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "exec/device/cuda/call.hpp"
#include "exec/device/cuda/cuda.hpp"

namespace wt::exec {
namespace {

using cuda::Fault;

struct Shape {
  const char* what;
  int64_t m, n, k;
};

// Llama 3 8B, one micro-batch of 8192 tokens, whole and cut over 8 tensor ranks; square ones for the record.
constexpr Shape kShapes[] = {
    {"qkv", 8192, 6144, 4096},     {"fc1", 8192, 28672, 4096},        {"fc2", 8192, 4096, 14336},
    {"head", 8192, 128256, 4096},  {"qkv tp8", 8192, 768, 4096},      {"fc1 tp8", 8192, 3584, 4096},
    {"fc2 tp8", 8192, 4096, 1792}, {"square 4096", 4096, 4096, 4096}, {"square 8192", 8192, 8192, 8192}};
constexpr int kRepeats = 20, kWarmups = 3, kChoices = 16;

/// Median of the device's own launches, as a run issues them.
Result<double> seconds_of_device(Device& device, const Shape& s, std::array<Operand, 3> abc) {
  plan::Compute c;
  c.kernel = plan::Kernel::gemm;
  c.dims = {s.m, s.n, s.k};
  c.transpose_b = true;
  const Operand reads[] = {abc[0], abc[1]}, writes[] = {abc[2]};
  for (uint32_t i = 0; i < kWarmups + kRepeats; ++i)
    device.launch({&c, s.what, reads, writes, {}}, plan::Stream::compute, i);
  if (Status over = device.synchronize(); !over) return over.errors();
  std::vector<double> times;
  for (uint32_t i = kWarmups; i < kWarmups + kRepeats; ++i) {
    auto t = device.interval(i);
    if (!t) return t.errors();
    times.push_back(static_cast<double>(t.value().end_ps - t.value().begin_ps) * 1e-12);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

/// The library alone: descriptors made once, each of its first choices measured, the fastest counts.
class Library {
 public:
  Fault open() {
    WT_CUDA(cublasLtCreate(&handle_));
    WT_CUDA(cudaMalloc(&workspace_, kWorkspace));
    WT_CUDA(cudaStreamCreate(&stream_));
    WT_CUDA(cudaEventCreate(&begin_));
    WT_CUDA(cudaEventCreate(&end_));
    return std::nullopt;
  }

  /// C = A B^T, row-major: what cuBLAS sees by columns is C^T = (B^T)^T ... A^T.
  Fault best(const Shape& s, const std::array<Operand, 3>& abc, double* seconds) {
    cublasLtMatmulDesc_t product = nullptr;
    WT_CUDA(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t turned = CUBLAS_OP_T;
    WT_CUDA(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned));
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    WT_CUDA(cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, static_cast<uint64_t>(s.k), static_cast<uint64_t>(s.n), s.k));
    WT_CUDA(cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, static_cast<uint64_t>(s.k), static_cast<uint64_t>(s.m), s.k));
    WT_CUDA(cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, static_cast<uint64_t>(s.n), static_cast<uint64_t>(s.m), s.n));
    cublasLtMatmulPreference_t preference = nullptr;
    WT_CUDA(cublasLtMatmulPreferenceCreate(&preference));
    WT_CUDA(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                                 sizeof kWorkspace));
    std::array<cublasLtMatmulHeuristicResult_t, kChoices> choices{};
    int found = 0;
    WT_CUDA(cublasLtMatmulAlgoGetHeuristic(handle_, product, b, a, c, c, preference, kChoices, choices.data(), &found));
    *seconds = 0;
    for (int i = 0; i < found; ++i) {
      const float one = 1, zero = 0;
      auto run = [&]() {
        return cublasLtMatmul(handle_, product, &one, abc[1].data, b, abc[0].data, a, &zero, abc[2].data, c,
                              abc[2].data, c, &choices[static_cast<size_t>(i)].algo, workspace_, kWorkspace, stream_);
      };
      for (int w = 0; w < kWarmups; ++w) WT_CUDA(run());
      std::vector<float> times;
      for (int r = 0; r < kRepeats; ++r) {
        WT_CUDA(cudaEventRecord(begin_, stream_));
        WT_CUDA(run());
        WT_CUDA(cudaEventRecord(end_, stream_));
        WT_CUDA(cudaEventSynchronize(end_));
        times.push_back(0);
        WT_CUDA(cudaEventElapsedTime(&times.back(), begin_, end_));
      }
      std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
      const double t = double{times[kRepeats / 2]} * 1e-3;
      if (*seconds == 0 || t < *seconds) *seconds = t;
    }
    cublasLtMatmulPreferenceDestroy(preference);
    for (const auto layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(product);
    return std::nullopt;
  }

 private:
  static constexpr size_t kWorkspace = size_t{32} << 20;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

int told(const Diagnostics& faults) {
  fmt::print(stderr, "{}\n", to_text(faults));
  return 4;
}

int run() {
  const auto count = cuda_device_count();
  if (!count || count.value() == 0) {
    fmt::print(stderr, "skipped: no GPU\n");
    return 4;
  }
  auto device = open_cuda_device(0, RankId{0});
  if (!device) return told(device.errors());
  Library library;
  if (Fault f = library.open()) return told({*f});
  fmt::print("{}\n{:<12} {:>22} {:>12} {:>12} {:>8} {:>8}\n", device.value()->description(), "product", "m x n x k",
             "device", "cuBLASLt", "TFLOP/s", "of best");
  for (const Shape& s : kShapes) {
    std::array<Operand, 3> abc;
    const int64_t sizes[] = {s.m * s.k, s.n * s.k, s.m * s.n};
    for (size_t i = 0; i < abc.size(); ++i) {
      auto memory = device.value()->allocate(plan::Space::device, Bytes{2 * sizes[i]});
      if (!memory) return told(memory.errors());
      abc[i] = {memory.value(), DType::bf16, sizes[i], {}};
      // Zeros draw less power than numbers: any pattern that is finite will do.
      if (cudaMemset(memory.value(), 0x3c, static_cast<size_t>(2 * sizes[i])) != cudaSuccess) return 4;
    }
    const auto ours = seconds_of_device(*device.value(), s, abc);
    if (!ours) return told(ours.errors());
    double best = 0;
    if (Fault f = library.best(s, abc, &best)) return told({*f});
    const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    fmt::print("{:<12} {:>22} {:>9.1f} us {:>9.1f} us {:>8.1f} {:>7.1f}%\n", s.what,
               fmt::format("{} x {} x {}", s.m, s.n, s.k), ours.value() * 1e6, best * 1e6, flops / ours.value() * 1e-12,
               100 * best / ours.value());
  }
  return 0;
}

}  // namespace
}  // namespace wt::exec

int main() { return wt::exec::run(); }
