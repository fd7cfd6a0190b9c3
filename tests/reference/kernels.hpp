// What every compute kernel of a plan means, in plain loops over doubles: the oracle that devices are held to.
// Not fast and not clever on purpose. Invariant: operands are taken by position as core/plan/plan.hpp lists them, their
// sizes are checked against the dims of the op, and nothing but what the plan says decides the result.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/plan.hpp"

namespace wt::reference {

/// A fault of the plan or of the interpreter, with the op in its text. Tests only: it ends the run.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Elements [begin, begin + size) of a storage. Two operands share memory when their storages are the same.
struct Operand {
  std::vector<double>* storage = nullptr;
  int64_t begin = 0, size = 0;
  double& operator[](int64_t i) const { return (*storage)[static_cast<size_t>(begin + i)]; }
};

/// What a kernel may know beside its operands.
struct KernelContext {
  int64_t group_index = 0, group_size = 1;  // this rank in Compute::group
  int64_t micro_batches = 1;                // the loss is a mean over them
  int64_t step = 0;                         // Adam's bias correction
  double learning_rate = 1e-3;
};

/// Throws Fault when sizes do not fit.
void run_kernel(const plan::Compute&, const std::vector<Operand>& reads, const std::vector<Operand>& writes,
                const KernelContext&);

/// Throws Fault unless the operand has so many elements.
void want(const Operand& x, int64_t size, const char* what);
/// Value and derivative of wt::Activation. gelu by the error function, as PyTorch's default.
std::pair<double, double> activation(uint8_t function, double x);

/// expert_kernels.cpp, latent_kernels.cpp: their part of run_kernel.
void run_expert_kernel(const plan::Compute&, const std::vector<Operand>& reads, const std::vector<Operand>& writes,
                       const KernelContext&);
void run_latent_kernel(const plan::Compute&, const std::vector<Operand>& reads, const std::vector<Operand>& writes);

}  // namespace wt::reference
