// Operands as runs of the arithmetic's type A: what is stored as A is used where it lies, anything else goes through a
// buffer of the caller. Invariant: a run that was opened for writing holds nothing until close() put it back.
#pragma once

#include <memory>
#include <span>

#include "exec/kernels/cpu/row_kernels.hpp"
#include "exec/kernels/operand.hpp"

namespace wt::exec {

/// Memory for `n` elements, not set to anything.
template <class A>
std::unique_ptr<A[]> buffer_of(int64_t n) {
  return std::make_unique_for_overwrite<A[]>(static_cast<size_t>(n));
}

template <class A>
class Stored {
 public:
  explicit Stored(const Operand& x)
      : base_(static_cast<std::byte*>(x.data)),
        dtype_(x.dtype),
        widen_(row_kernels<A>().widen[static_cast<size_t>(x.dtype)]),
        narrow_(row_kernels<A>().narrow[static_cast<size_t>(x.dtype)]) {}

  bool direct() const { return dtype_ == kDTypeOf<A>; }
  void* at(int64_t offset) const { return base_ + offset * size_of(dtype_); }

  /// Elements [offset, offset + n): in place, or widened into `buffer`.
  const A* read(int64_t offset, int64_t n, A* buffer) const {
    if (direct()) return static_cast<const A*>(at(offset));
    widen_(at(offset), buffer, n);
    return buffer;
  }
  /// Where to write elements from `offset` on; close() stores them.
  A* open(int64_t offset, A* buffer) const { return direct() ? static_cast<A*>(at(offset)) : buffer; }
  /// The same with what stands there: for an output that accumulates.
  A* open_and_read(int64_t offset, int64_t n, A* buffer) const { return const_cast<A*>(read(offset, n, buffer)); }
  void close(int64_t offset, int64_t n, const A* from) const {
    if (from != at(offset)) narrow_(from, at(offset), n);
  }
  A get(int64_t offset) const {
    A value;
    return *read(offset, 1, &value);
  }
  void put(int64_t offset, A value) const { narrow_(&value, at(offset), 1); }

 private:
  std::byte* base_;
  DType dtype_;
  void (*widen_)(const void*, A*, int64_t);
  void (*narrow_)(const A*, void*, int64_t);
};

/// Whether the kernel computes in double: something of it is stored in double.
inline bool in_double(std::span<const Operand> reads, std::span<const Operand> writes) {
  for (const Operand& x : reads)
    if (x.dtype == DType::f64) return true;
  for (const Operand& x : writes)
    if (x.dtype == DType::f64) return true;
  return false;
}

}  // namespace wt::exec
