#include "exec/kernels/cpu/row_kernels.hpp"

namespace wt::exec {

extern const RowKernels<float> rows_f32_baseline;
extern const RowKernels<double> rows_f64_baseline;
#if defined(__x86_64__)
extern const RowKernels<float> rows_f32_avx2, rows_f32_avx512;
extern const RowKernels<double> rows_f64_avx2, rows_f64_avx512;
#endif

namespace {

/// How many of {baseline, avx2, avx512} this processor has.
size_t levels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? 3 : 2;
#else
  return 1;
#endif
}

}  // namespace

template <>
std::span<const RowKernels<float>* const> runnable_row_kernels<float>() {
#if defined(__x86_64__)
  static const RowKernels<float>* const all[] = {&rows_f32_baseline, &rows_f32_avx2, &rows_f32_avx512};
#else
  static const RowKernels<float>* const all[] = {&rows_f32_baseline};
#endif
  return {all, levels()};
}

template <>
std::span<const RowKernels<double>* const> runnable_row_kernels<double>() {
#if defined(__x86_64__)
  static const RowKernels<double>* const all[] = {&rows_f64_baseline, &rows_f64_avx2, &rows_f64_avx512};
#else
  static const RowKernels<double>* const all[] = {&rows_f64_baseline};
#endif
  return {all, levels()};
}

}  // namespace wt::exec
