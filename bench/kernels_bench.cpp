// CPU kernels on one thread: GFLOP/s of products beside oneDNN and Eigen alone on the same shape, GFLOP/s of attention,
// GB/s of the kernels that move memory (bytes that must move, as core/lower counts them). Rates are of CPU time.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "exec/kernels/cpu/row_kernels.hpp"
#include "exec/kernels/cpu/run.hpp"

extern "C" void omp_set_num_threads(int);

namespace {

using namespace wt;
using namespace wt::exec;
using plan::Kernel;

/// Memory of operands, filled with small numbers.
class Area {
 public:
  Operand make(DType t, int64_t n) {
    auto& bytes = memory_.emplace_back(static_cast<size_t>(n * size_of(t)) + 64);
    void* data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64);
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = uniform(1, static_cast<uint64_t>(i)) - 0.5f;
    if (t == DType::i32)
      for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(data)[i] = static_cast<int32_t>(i % 1000);
    else
      row_kernels<float>().narrow[static_cast<size_t>(t)](values.data(), data, n);
    return {data, t, n, {}};
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
};

void run(benchmark::State& state, const plan::Compute& c, const std::vector<Operand>& reads,
         const std::vector<Operand>& writes) {
  InlineWorkers workers;
  const StepValues values;
  KernelContext context;
  context.values = &values;
  for (auto _ : state) {
    const Status s = run_cpu_kernel(c, reads, writes, context, workers);
    if (!s.ok()) state.SkipWithError(to_text(s.errors()).c_str());
  }
}

void flops(benchmark::State& state, double each) {
  state.counters["FLOP/s"] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
}
void bytes(benchmark::State& state, double each) {
  state.counters["B/s"] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
}

enum Way : int64_t { forward, input_gradient, weight_gradient };  // X W^T, dY W, dW += dY^T X
const std::vector<std::vector<int64_t>> kProducts = {
    {1024, 1024, 1024}, {512, 768, 3072}, {512, 3072, 768}, {64, 64, 64}, {256, 96, 384}};

plan::Compute product(int64_t m, int64_t n, int64_t k, int64_t way) {
  plan::Compute c;
  c.kernel = Kernel::gemm;
  c.dims = {m, n, k};
  c.transpose_a = c.accumulate = way == weight_gradient;
  c.transpose_b = way == forward;
  return c;
}

void ours(benchmark::State& state, DType t) {
  const auto& s = kProducts[static_cast<size_t>(state.range(0))];
  const auto c = product(s[0], s[1], s[2], state.range(1));
  Area area;
  const DType out = state.range(1) == weight_gradient ? DType::f32 : t;
  run(state, c, {area.make(t, s[0] * s[2]), area.make(t, s[2] * s[1])}, {area.make(out, s[0] * s[1])});
  flops(state, 2.0 * double(s[0]) * double(s[1]) * double(s[2]));
}

/// The same product by oneDNN alone: compiled once, its memory objects made once.
void onednn(benchmark::State& state, DType t) {
  using namespace dnnl;
  omp_set_num_threads(1);
  const auto& s = kProducts[static_cast<size_t>(state.range(0))];
  const auto c = product(s[0], s[1], s[2], state.range(1));
  Area area;
  const auto in = t == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto out = c.accumulate ? memory::data_type::f32 : in;
  const int64_t m = s[0], n = s[1], k = s[2];
  engine e(engine::kind::cpu, 0);
  stream queue(e);
  const memory::desc a({m, k}, in, c.transpose_a ? memory::dims{1, m} : memory::dims{k, 1});
  const memory::desc b({k, n}, in, c.transpose_b ? memory::dims{1, k} : memory::dims{n, 1});
  const memory::desc d({m, n}, out, memory::dims{n, 1});
  primitive_attr attributes;
  if (c.accumulate) {
    post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const matmul primitive(matmul::primitive_desc(matmul::desc(a, b, d), attributes, e));
  const DType out_type = c.accumulate ? DType::f32 : t;
  const std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, memory(a, e, area.make(t, m * k).data)},
                                                     {DNNL_ARG_WEIGHTS, memory(b, e, area.make(t, k * n).data)},
                                                     {DNNL_ARG_DST, memory(d, e, area.make(out_type, m * n).data)}};
  for (auto _ : state) primitive.execute(queue, arguments);
  flops(state, 2.0 * double(m) * double(n) * double(k));
}

template <class A>
void eigen(benchmark::State& state) {
  using Matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto& s = kProducts[static_cast<size_t>(state.range(0))];
  const Matrix a = Matrix::Random(s[0], s[2]), b = Matrix::Random(s[1], s[2]);
  Matrix c = Matrix::Zero(s[0], s[1]);
  for (auto _ : state) c.noalias() = a * b.transpose();
  benchmark::DoNotOptimize(c.data());
  flops(state, 2.0 * double(s[0]) * double(s[1]) * double(s[2]));
}

const std::vector<int64_t> kShapes = benchmark::CreateDenseRange(0, 4, 1),
                           kWays = {forward, input_gradient, weight_gradient};
BENCHMARK_CAPTURE(ours, product_f32, DType::f32)->ArgNames({"shape", "way"})->ArgsProduct({kShapes, kWays});
BENCHMARK_CAPTURE(onednn, product_f32, DType::f32)->ArgNames({"shape", "way"})->ArgsProduct({kShapes, kWays});
BENCHMARK_CAPTURE(ours, product_bf16, DType::bf16)->ArgNames({"shape", "way"})->ArgsProduct({kShapes, kWays});
BENCHMARK_CAPTURE(onednn, product_bf16, DType::bf16)->ArgNames({"shape", "way"})->ArgsProduct({kShapes, kWays});
BENCHMARK_CAPTURE(ours, product_f64, DType::f64)->ArgNames({"shape", "way"})->ArgsProduct({kShapes, {forward}});
BENCHMARK(eigen<float>)->ArgName("shape")->DenseRange(0, 4);
BENCHMARK(eigen<double>)->ArgName("shape")->DenseRange(0, 4);

void attention(benchmark::State& state, Kernel kernel, DType t) {
  const int64_t batch = 1, seq = state.range(0), heads = 4, kv = 2, d = state.range(1), width = (heads + 2 * kv) * d;
  plan::Compute c;
  c.kernel = kernel;
  c.dims = {batch, seq, heads, kv, d};
  c.causal = true;
  Area area;
  const Operand qkv = area.make(t, seq * width), out = area.make(t, seq * heads * d),
                lse = area.make(DType::f32, seq * heads);
  if (kernel == Kernel::attention_forward)
    run(state, c, {qkv}, {out, lse});
  else
    run(state, c, {area.make(t, seq * heads * d), qkv, out, lse}, {area.make(t, seq * width)});
  const double products = kernel == Kernel::attention_forward ? 2 : 5;
  flops(state, products * double(heads) * double(seq) * double(seq) * double(d));  // causal: half of 2 s^2 d each
}
BENCHMARK_CAPTURE(attention, forward_f32, Kernel::attention_forward, DType::f32)->ArgsProduct({{256, 1024}, {64, 128}});
BENCHMARK_CAPTURE(attention, forward_bf16, Kernel::attention_forward, DType::bf16)
    ->ArgsProduct({{256, 1024}, {64, 128}});
BENCHMARK_CAPTURE(attention, backward_f32, Kernel::attention_backward, DType::f32)
    ->ArgsProduct({{256, 1024}, {64, 128}});
BENCHMARK_CAPTURE(attention, backward_bf16, Kernel::attention_backward, DType::bf16)
    ->ArgsProduct({{256, 1024}, {64, 128}});

/// Rows of a transformer: 512 tokens, 768 wide (gated: 2 x 2048), 8,192 words.
void rows(benchmark::State& state, Kernel kernel, DType t) {
  const int64_t n = 512, h = 768, f = 2048, words = 8192, tile = n * h;
  plan::Compute c;
  c.kernel = kernel;
  c.dims = {n, h};
  Area area;
  const double e = double(size_of(t));
  switch (kernel) {
    case Kernel::norm_forward:
      c.function = 1;
      run(state, c, {area.make(t, tile), area.make(t, h)}, {area.make(t, tile), area.make(DType::f32, n)});
      return bytes(state, 2 * e * double(tile));
    case Kernel::norm_backward:
      c.function = 1;
      run(state, c, {area.make(t, tile), area.make(t, tile), area.make(t, h), area.make(DType::f32, n)},
          {area.make(t, tile), area.make(DType::f32, h)});
      return bytes(state, 3 * e * double(tile));
    case Kernel::activation_forward:
      c.dims = {n, f};
      c.gated = true;
      c.function = 1;
      run(state, c, {area.make(t, 2 * n * f)}, {area.make(t, n * f)});
      return bytes(state, 3 * e * double(n * f));
    case Kernel::activation_backward:
      c.dims = {n, f};
      c.gated = true;
      c.function = 1;
      run(state, c, {area.make(t, n * f), area.make(t, 2 * n * f)}, {area.make(t, 2 * n * f)});
      return bytes(state, 5 * e * double(n * f));
    case Kernel::add:
      run(state, c, {area.make(t, tile), area.make(t, tile)}, {area.make(t, tile)});
      return bytes(state, 3 * e * double(tile));
    case Kernel::rope_forward: {
      c.dims = {1, n, 12, 12, 64};
      const Operand qkv = area.make(t, n * 36 * 64);
      run(state, c, {qkv}, {qkv});
      return bytes(state, 2 * e * double(n * 24 * 64));
    }
    case Kernel::bias_gradient:
      run(state, c, {area.make(t, tile)}, {area.make(DType::f32, h)});
      return bytes(state, e * double(tile));
    case Kernel::loss_sums:
    case Kernel::loss_backward: {
      c.dims = {n, words, words};
      const Operand logits = area.make(t, n * words), most = area.make(DType::f32, n),
                    sums = area.make(DType::f32, 2 * n), labels = area.make(DType::i32, n);
      if (kernel == Kernel::loss_sums)
        run(state, c, {logits, most, labels}, {sums});
      else
        run(state, c, {logits, most, sums, labels}, {area.make(t, n * words)});
      return bytes(state, (kernel == Kernel::loss_sums ? 1 : 2) * e * double(n * words));
    }
    case Kernel::square_sum:
      run(state, c, {area.make(t, 4 * tile)}, {area.make(DType::f32, 1)});
      return bytes(state, e * 4 * double(tile));
    case Kernel::adam: {
      const int64_t all = 4 * tile;
      c.dims = {all};
      const Operand w = area.make(DType::f32, all), m = area.make(DType::f32, all), v = area.make(DType::f32, all);
      row_kernels<float>().drop(1, 0, 0.0f, static_cast<float*>(w.data), static_cast<float*>(v.data),
                                std::vector<uint8_t>(static_cast<size_t>(all)).data(), all);
      for (int64_t i = 0; i < all; ++i) static_cast<float*>(v.data)[i] = 0.1f;
      run(state, c, {area.make(t, all), w, m, v}, {t == DType::f32 ? w : area.make(t, all), w, m, v});
      return bytes(state, (24 + e * (t == DType::f32 ? 1 : 2)) * double(all));
    }
    default: state.SkipWithError("not here");
  }
}
BENCHMARK_CAPTURE(rows, norm_forward_f32, Kernel::norm_forward, DType::f32);
BENCHMARK_CAPTURE(rows, norm_forward_bf16, Kernel::norm_forward, DType::bf16);
BENCHMARK_CAPTURE(rows, norm_backward_f32, Kernel::norm_backward, DType::f32);
BENCHMARK_CAPTURE(rows, norm_backward_bf16, Kernel::norm_backward, DType::bf16);
BENCHMARK_CAPTURE(rows, activation_forward_f32, Kernel::activation_forward, DType::f32);
BENCHMARK_CAPTURE(rows, activation_forward_bf16, Kernel::activation_forward, DType::bf16);
BENCHMARK_CAPTURE(rows, activation_backward_f32, Kernel::activation_backward, DType::f32);
BENCHMARK_CAPTURE(rows, activation_backward_bf16, Kernel::activation_backward, DType::bf16);
BENCHMARK_CAPTURE(rows, add_f32, Kernel::add, DType::f32);
BENCHMARK_CAPTURE(rows, add_bf16, Kernel::add, DType::bf16);
BENCHMARK_CAPTURE(rows, rope_forward_f32, Kernel::rope_forward, DType::f32);
BENCHMARK_CAPTURE(rows, bias_gradient_f32, Kernel::bias_gradient, DType::f32);
BENCHMARK_CAPTURE(rows, loss_sums_f32, Kernel::loss_sums, DType::f32);
BENCHMARK_CAPTURE(rows, loss_backward_f32, Kernel::loss_backward, DType::f32);
BENCHMARK_CAPTURE(rows, square_sum_f32, Kernel::square_sum, DType::f32);
BENCHMARK_CAPTURE(rows, adam_f32, Kernel::adam, DType::f32);
BENCHMARK_CAPTURE(rows, adam_bf16, Kernel::adam, DType::bf16);

}  // namespace
