// Who runs the ranges of a kernel. Not a thread pool: the CPU device brings its own, InlineWorkers runs on the caller.
// Invariant of every CPU kernel: its result does not depend on how a range is cut or how many workers there are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace wt::exec {

/// A reference to something callable as f(begin, end); it does not own it.
class RangeBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeBody>) RangeBody(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, int64_t begin, int64_t end) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end);
        }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t);
};

class Workers {
 public:
  virtual ~Workers() = default;
  /// Threads that parallel_for may use, the caller among them.
  virtual int64_t count() const = 0;
  /// Calls body on disjoint ranges that together are [0, n), each of at least `grain` (but the last), and returns when
  /// all are done. The first exception of a body comes out of it. Not to be called from within a body.
  virtual void parallel_for(int64_t n, int64_t grain, RangeBody body) = 0;
};

class InlineWorkers final : public Workers {
 public:
  int64_t count() const override { return 1; }
  void parallel_for(int64_t n, int64_t, RangeBody body) override {
    if (n > 0) body(0, n);
  }
};

}  // namespace wt::exec
