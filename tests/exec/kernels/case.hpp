// One compute op with its operands as doubles, to be run by a machine and by the reference. Shared by every test of
// kernels, on every device. Not a plan: operands are made, not lowered. Invariant: the values of a tensor are those that
// its storage type can hold, so that both sides start from the same numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"
#include "exec/backend.hpp"
#include "exec/kernels/cpu/workers.hpp"

namespace wt::exec::test {

struct Tensor {
  DType dtype = DType::f32;
  std::vector<double> values;
};

/// Elements [begin, begin + size) of a tensor; operands of one tensor share memory.
struct Slice {
  size_t tensor = 0;
  int64_t begin = 0, size = 0;
};

struct Case {
  std::string name;
  plan::Compute compute;
  std::vector<Tensor> tensors;
  std::vector<Slice> reads, writes;
  std::vector<int64_t> shape;  // of reads[0], where the kernel asks
  StepValues values;
  KernelContext context;             // its `values` are set when the case is run
  double terms = 1;                  // how many terms the longest sum has
  double magnitude = 0;              // of terms that may cancel, where it is not that of the result
  bool products_in_storage = false;  // factors may be rounded to the storage type on the way (attention)
};

/// Sizes and options from which a case is made; what they mean depends on the kernel.
struct Sizes {
  int64_t a = 1, b = 1, c = 1, d = 1, e = 1;
  uint32_t options = 0;
  uint64_t seed = 1;
};

/// How many option bits build() looks at for this kernel.
int options_of(plan::Kernel);
/// `storage`: of activations and weights; statistics and optimizer states are at least f32.
Case build(plan::Kernel, DType storage, const Sizes&);

double epsilon_of(DType);             // distance of 1 to the next number
double rounded(double value, DType);  // to the nearest that the type holds
std::vector<std::byte> stored(const Tensor&);
std::vector<double> loaded(const std::vector<std::byte>&, DType);

/// Something that runs kernels.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::string name() const = 0;
  virtual std::optional<std::string> unsupported(const Launch&) const = 0;
  /// Runs it with memory holding `tensors`, which are replaced by what is there afterwards.
  virtual Status run(const Case&, std::vector<Tensor>& tensors) = 0;
};

std::unique_ptr<Machine> cpu_machine(Workers&, std::string name);
std::unique_ptr<Machine> device_machine(Device&);

/// What is wrong with the machine's result, beside the reference's; empty if nothing is. The tolerance of an element:
///   2 eps(output) |reference| + step(output) + (4 + 2 sqrt(terms)) eps(arithmetic) max(|reference|, magnitude)
/// where step is the least denormal, the maximum is over the output, and the arithmetic is in f64 if a tensor is stored so, else in f32, and in the storage type where factors may be.
std::string difference(Machine&, const Case&);

}  // namespace wt::exec::test
