#include "tests/exec/kernels/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exec/kernels/cpu/run.hpp"
#include "exec/kernels/element.hpp"
#include "tests/reference/kernels.hpp"

namespace wt::exec::test {
namespace {

template <class F>
void with_type(DType t, F f) {
  switch (t) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(Bf16{});
    case DType::f16: return f(F16{});
    case DType::f8: return f(F8{});
    case DType::i32: return f(int32_t{});
    case DType::u8: return f(uint8_t{});
  }
}

template <class T>
T to_element(double x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(x);
  else
    return Narrow<T>::of(x);
}
template <class T>
double from_element(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<double>(x);
  else
    return static_cast<double>(widen(x));
}

std::vector<Operand> operands(const Case& c, const std::vector<Slice>& slices, const std::vector<std::byte*>& memory,
                              bool reads) {
  std::vector<Operand> out;
  for (const Slice& s : slices) {
    const DType t = c.tensors[s.tensor].dtype;
    Operand x{memory.empty() ? nullptr : memory[s.tensor] + s.begin * size_of(t), t, s.size, {}};
    if (reads && out.empty()) x.shape = c.shape;
    out.push_back(x);
  }
  return out;
}

class CpuMachine final : public Machine {
 public:
  CpuMachine(Workers& workers, std::string name) : workers_(workers), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::optional<std::string> unsupported(const Launch&) const override { return std::nullopt; }
  Status run(const Case& c, std::vector<Tensor>& tensors) override {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<std::byte*> memory;
    for (const Tensor& t : tensors) bytes.push_back(stored(t));
    for (auto& b : bytes) memory.push_back(b.data());
    KernelContext context = c.context;
    context.values = &c.values;
    Status status = run_cpu_kernel(c.compute, operands(c, c.reads, memory, true), operands(c, c.writes, memory, false),
                                   context, workers_);
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].values = loaded(bytes[i], tensors[i].dtype);
    return status;
  }

 private:
  Workers& workers_;
  std::string name_;
};

/// Memory of a device is freed with the device, so one area is kept and cut anew for every case.
class DeviceMachine final : public Machine {
 public:
  explicit DeviceMachine(Device& device) : device_(device) {}
  std::string name() const override { return std::string(device_.kind()); }
  std::optional<std::string> unsupported(const Launch& launch) const override { return device_.unsupported(launch); }
  Status run(const Case& c, std::vector<Tensor>& tensors) override {
    int64_t needed = 0;
    for (const Tensor& t : tensors) needed += aligned(t);
    if (needed > size_) {
      Result<std::byte*> area = device_.allocate(plan::Space::device, Bytes{needed});
      if (!area) return area.errors();
      area_ = area.value();
      size_ = needed;
    }
    std::vector<std::byte*> memory;
    int64_t at = 0;
    for (const Tensor& t : tensors) {
      memory.push_back(area_ + at);
      at += aligned(t);
      if (Status s = device_.write(stored(t).data(), whole(t, memory.back())); !s) return s;
    }
    const auto reads = operands(c, c.reads, memory, true), writes = operands(c, c.writes, memory, false);
    Launch launch{&c.compute, c.name, reads, writes, c.context};
    launch.context.values = &c.values;
    device_.launch(launch, plan::Stream::compute, 0);
    if (Status s = device_.synchronize(); !s) return s;
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<std::byte> bytes(tensors[i].values.size() * static_cast<size_t>(size_of(tensors[i].dtype)));
      if (Status s = device_.read(whole(tensors[i], memory[i]), bytes.data()); !s) return s;
      tensors[i].values = loaded(bytes, tensors[i].dtype);
    }
    return ok_status();
  }

 private:
  static int64_t aligned(const Tensor& t) {
    return (static_cast<int64_t>(t.values.size()) * size_of(t.dtype) + 255) / 256 * 256;
  }
  static Operand whole(const Tensor& t, std::byte* at) {
    return {at, t.dtype, static_cast<int64_t>(t.values.size()), {}};
  }
  Device& device_;
  std::byte* area_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace

double epsilon_of(DType t) {
  switch (t) {
    case DType::f64: return std::ldexp(1, -52);
    case DType::f32: return std::ldexp(1, -23);
    case DType::bf16: return std::ldexp(1, -7);
    case DType::f16: return std::ldexp(1, -10);
    case DType::f8: return std::ldexp(1, -3);
    default: return 0;
  }
}

namespace {
/// The least denormal.
double least_of(DType t) {
  if (t == DType::f16) return std::ldexp(1, -24);
  return t == DType::f8 ? std::ldexp(1, -9) : 0;
}
}  // namespace

double rounded(double value, DType t) {
  double out = 0;
  with_type(t, [&]<class T>(T) { out = from_element(to_element<T>(value)); });
  return out;
}

std::vector<std::byte> stored(const Tensor& t) {
  std::vector<std::byte> bytes(t.values.size() * static_cast<size_t>(size_of(t.dtype)));
  with_type(t.dtype, [&]<class T>(T) {
    for (size_t i = 0; i < t.values.size(); ++i) {
      const T x = to_element<T>(t.values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
    }
  });
  return bytes;
}

std::vector<double> loaded(const std::vector<std::byte>& bytes, DType t) {
  std::vector<double> values(bytes.size() / static_cast<size_t>(size_of(t)));
  with_type(t, [&]<class T>(T) {
    for (size_t i = 0; i < values.size(); ++i) {
      T x;
      std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = from_element(x);
    }
  });
  return values;
}

std::unique_ptr<Machine> cpu_machine(Workers& workers, std::string name) {
  return std::make_unique<CpuMachine>(workers, std::move(name));
}
std::unique_ptr<Machine> device_machine(Device& device) { return std::make_unique<DeviceMachine>(device); }

std::string difference(Machine& machine, const Case& c) {
  std::vector<std::vector<double>> expected;
  for (const Tensor& t : c.tensors) expected.push_back(t.values);
  auto slices = [&](const std::vector<Slice>& from) {
    std::vector<reference::Operand> out;
    for (const Slice& s : from) out.push_back({&expected[s.tensor], s.begin, s.size});
    return out;
  };
  reference::run_kernel(
      c.compute, slices(c.reads), slices(c.writes),
      {c.context.group_index, c.context.group_size, c.context.micro_batches, c.values.step, c.values.learning_rate});

  const auto reads = operands(c, c.reads, {}, true), writes = operands(c, c.writes, {}, false);
  if (auto why = machine.unsupported({&c.compute, c.name, reads, writes, c.context}))
    return fmt::format("{}: unsupported: {}", c.name, *why);
  std::vector<Tensor> got = c.tensors;
  if (Status s = machine.run(c, got); !s) return fmt::format("{}: {}", c.name, to_text(s.errors()));

  const bool in_double = std::any_of(got.begin(), got.end(), [](const Tensor& t) { return t.dtype == DType::f64; });
  double arithmetic = epsilon_of(in_double ? DType::f64 : DType::f32);
  if (c.products_in_storage)
    for (const Tensor& t : c.tensors) arithmetic = std::max(arithmetic, epsilon_of(t.dtype));
  std::vector<bool> is_written(got.size());
  for (const Slice& s : c.writes) is_written[s.tensor] = true;
  for (size_t t = 0; t < got.size(); ++t) {
    double most = c.magnitude;
    for (const double x : expected[t])
      if (std::isfinite(x)) most = std::max(most, std::abs(x));
    for (size_t i = 0; i < got[t].values.size(); ++i) {
      const double want = expected[t][i], have = got[t].values[i];
      const double tolerance = is_written[t] ? 2 * epsilon_of(got[t].dtype) * std::abs(want) + least_of(got[t].dtype) +
                                                   (4 + 2 * std::sqrt(c.terms)) * arithmetic * most
                                             : 0;
      if (have == want || std::abs(have - want) <= tolerance) continue;
      return fmt::format(
          "{} on {}: element {} of tensor {} ({}) is {:.9g}, the reference says {:.9g}, off by {:.3g} "
          "where {:.3g} is allowed",
          c.name, machine.name(), i, t, to_text(got[t].dtype), have, want, std::abs(have - want), tolerance);
    }
  }
  return "";
}

}  // namespace wt::exec::test
