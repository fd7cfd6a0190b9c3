#include "exec/kernels/cpu/product.hpp"

#include <Eigen/Core>
#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "core/base/check.hpp"

// oneDNN runs on OpenMP; a worker thread must not start a team of its own.
extern "C" void omp_set_num_threads(int);

namespace wt::exec {
namespace {

// ------------------------------------------------------------------------------------------------- f64: Eigen

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strided = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

Strided mapped(const MatrixView& x, int64_t rows, int64_t columns) {
  return {static_cast<double*>(x.data), x.transposed ? columns : rows, x.transposed ? rows : columns,
          Eigen::OuterStride<>(x.stride)};
}

void multiply_f64(const Product& p) {
  const Strided a = mapped(p.a, p.m, p.k), b = mapped(p.b, p.k, p.n);
  Strided c = mapped(p.c, p.m, p.n);
  if (!p.accumulate) c.setZero();
  if (p.a.transposed && p.b.transposed)
    c.noalias() += a.transpose() * b.transpose();
  else if (p.a.transposed)
    c.noalias() += a.transpose() * b;
  else if (p.b.transposed)
    c.noalias() += a * b.transpose();
  else
    c.noalias() += a * b;
  if (p.bias != nullptr) c.rowwise() += Eigen::Map<const Eigen::RowVectorXd>(static_cast<const double*>(p.bias), p.n);
}

// -------------------------------------------------------------------------------------- f32 and bf16: oneDNN

using Tag = dnnl::memory::data_type;

Tag tag_of(DType t) { return t == DType::bf16 ? Tag::bf16 : Tag::f32; }

/// All that a compiled product depends on.
using Shape = std::array<int64_t, 10>;
struct ShapeHash {
  size_t operator()(const Shape& s) const {
    uint64_t h = 0;
    for (const int64_t v : s) h = (h ^ static_cast<uint64_t>(v)) * 0x9e3779b97f4a7c15ull, h ^= h >> 29;
    return static_cast<size_t>(h);
  }
};

struct Compiled {
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> arguments;  // their addresses are set for every run
  size_t scratch = 0;
};

/// One a thread: engines are shared safely, but compiled products and their scratch are cheaper unshared.
class Library {
 public:
  Library() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) { omp_set_num_threads(1); }

  void run(const Product& p) {
    Compiled& x = compiled(p);
    if (scratch_.size() < x.scratch) scratch_.resize(x.scratch);
    for (auto& [name, memory] : x.arguments) memory.set_data_handle(address(p, name));
    x.primitive.execute(stream_, x.arguments);
  }

 private:
  void* address(const Product& p, int name) {
    switch (name) {
      case DNNL_ARG_SRC: return p.a.data;
      case DNNL_ARG_WEIGHTS: return p.b.data;
      case DNNL_ARG_DST: return p.c.data;
      case DNNL_ARG_BIAS: return const_cast<void*>(p.bias);
      default: return scratch_.data();
    }
  }
  static constexpr size_t kMostShapes = 4096;  // far above what a plan has; a bound all the same

  Compiled& compiled(const Product& p) {
    const int64_t types = static_cast<int64_t>(p.a.dtype) | static_cast<int64_t>(p.c.dtype) << 4 |
                          int64_t{p.a.transposed} << 8 | int64_t{p.b.transposed} << 9 | int64_t{p.accumulate} << 10 |
                          int64_t{p.bias != nullptr} << 11;
    const Shape shape{p.m, p.n, p.k, p.a.stride, p.b.stride, p.c.stride, types};
    if (const auto found = products_.find(shape); found != products_.end()) return found->second;
    if (products_.size() >= kMostShapes) products_.clear();
    auto desc = [](const MatrixView& x, int64_t rows, int64_t columns) {
      return dnnl::memory::desc({rows, columns}, tag_of(x.dtype),
                                x.transposed ? dnnl::memory::dims{1, x.stride} : dnnl::memory::dims{x.stride, 1});
    };
    const dnnl::memory::desc a = desc(p.a, p.m, p.k), b = desc(p.b, p.k, p.n), c = desc(p.c, p.m, p.n);
    dnnl::memory::desc bias;
    if (p.bias != nullptr) bias = {{1, p.n}, tag_of(p.c.dtype), dnnl::memory::dims{p.n, 1}};
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::desc matmul =
        p.bias != nullptr ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc described(matmul, attributes, engine_);
    const dnnl::memory::desc scratch = described.scratchpad_desc();
    Compiled x{dnnl::matmul(described), {}, scratch.get_size()};
    auto add = [&](int name, const dnnl::memory::desc& of) {
      x.arguments.emplace(name, dnnl::memory(of, engine_, nullptr));
    };
    add(DNNL_ARG_SRC, a);
    add(DNNL_ARG_WEIGHTS, b);
    add(DNNL_ARG_DST, c);
    if (p.bias != nullptr) add(DNNL_ARG_BIAS, bias);
    if (x.scratch > 0) add(DNNL_ARG_SCRATCHPAD, scratch);
    return products_.emplace(shape, std::move(x)).first->second;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<std::byte> scratch_;
  std::unordered_map<Shape, Compiled, ShapeHash> products_;
};

Library& library() {
  static thread_local Library instance;
  return instance;
}

/// oneDNN has bf16 products where the processor has AVX-512.
bool has_bf16() {
  static const bool found = [] {
    try {
      const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
      const dnnl::memory::desc x({8, 8}, Tag::bf16, dnnl::memory::dims{8, 1});
      const dnnl::matmul::primitive_desc probe(dnnl::matmul::desc(x, x, x), engine);
      return static_cast<bool>(probe);
    } catch (const dnnl::error&) { return false; }
  }();
  return found;
}

}  // namespace

bool multiplies(DType a, DType b, DType c) {
  if (a != b) return false;
  if (a == DType::f64 || a == DType::f32) return c == a;
  return a == DType::bf16 && (c == DType::bf16 || c == DType::f32) && has_bf16();
}

void multiply(const Product& p) {
  WT_CHECK(multiplies(p.a.dtype, p.b.dtype, p.c.dtype), "{} x {} -> {}", to_text(p.a.dtype), to_text(p.b.dtype),
           to_text(p.c.dtype));
  if (p.m == 0 || p.n == 0) return;
  if (p.a.dtype == DType::f64) return multiply_f64(p);
  library().run(p);
}

}  // namespace wt::exec
