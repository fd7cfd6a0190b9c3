#include "exec/device/cuda/device.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <new>

#include "exec/device/cuda/cuda.hpp"
#include "exec/device/cuda/run.hpp"
#include "exec/kernels/check.hpp"

namespace wt::exec {

Result<int> cuda_device_count() {
  int count = 0;
  if (auto f = cuda::fault_of(cudaGetDeviceCount(&count), "cudaGetDeviceCount")) {
    cudaGetLastError();  // it stays set otherwise
    return *f;
  }
  return count;
}

Result<std::unique_ptr<Device>> open_cuda_device(int number, RankId rank) {
  auto opened = cuda::CudaDevice::open(number, rank);
  if (!opened) return opened.errors();
  return std::unique_ptr<Device>(std::move(opened.value()));
}

}  // namespace wt::exec

namespace wt::exec::cuda {
namespace {

/// A range in Nsight's timeline, as long as the host is issuing the op.
class Range {
 public:
  explicit Range(std::string_view op) { nvtxRangePushA(std::string(op).c_str()); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { nvtxRangePop(); }
};

/// Communication goes first when the device has room for only one of two kernels.
bool is_urgent(plan::Stream s) { return s != plan::Stream::compute; }

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int number, RankId rank) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(number, rank));
  if (Fault f = device->make()) {
    f->where = fmt::format("rank {}, device {}, {}", rank.v, number, f->where);
    return *f;
  }
  return device;
}

Fault CudaDevice::make() {
  WT_CUDA(cudaSetDevice(number_));
  cudaDeviceProp properties{};
  WT_CUDA(cudaGetDeviceProperties(&properties, number_));
  int driver = 0, least = 0, most = 0;
  WT_CUDA(cudaDriverGetVersion(&driver));
  description_ = fmt::format("{}, compute {}.{}, CUDA driver {}.{}", properties.name, properties.major,
                             properties.minor, driver / 1000, driver % 1000 / 10);
  WT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &most));
  for (int s = 0; s < plan::kStreams; ++s)
    WT_CUDA(cudaStreamCreateWithPriority(&streams_[static_cast<size_t>(s)], cudaStreamNonBlocking,
                                         is_urgent(static_cast<plan::Stream>(s)) ? most : least));
  WT_CUDA(cudaEventCreate(&origin_));
  if (Fault f = products_.open()) return f;
  return start_clock();
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(number_);
  for (const cudaStream_t s : streams_)
    if (s != nullptr) cudaStreamSynchronize(s);
  for (const Times& t : tickets_) {
    if (t.begin != nullptr) cudaEventDestroy(t.begin);
    if (t.end != nullptr) cudaEventDestroy(t.end);
  }
  if (origin_ != nullptr) cudaEventDestroy(origin_);
  for (const cudaStream_t s : streams_)
    if (s != nullptr) cudaStreamDestroy(s);
  for (void* p : device_memory_) cudaFree(p);
  for (void* p : pinned_memory_) cudaFreeHost(p);
}

std::optional<std::string> CudaDevice::unsupported(const Launch& launch) const {
  if (launch.compute == nullptr) return std::nullopt;
  if (launch.compute->kernel == plan::Kernel::orthogonalize)
    return std::string("orthogonalize: PowerSGD runs on device cpu, not on cuda yet");
  if (launch.compute->document > 0)
    return std::string(plan::to_text(launch.compute->kernel)) + ": packed documents run on device cpu, not on cuda yet";
  return unsupported_types(*launch.compute, launch.reads, launch.writes);
}

Result<std::byte*> CudaDevice::allocate(plan::Space space, Bytes bytes) {
  cudaSetDevice(number_);
  const auto where = fmt::format("rank {}, {} memory", rank_.v, plan::to_text(space));
  if (bytes.n == 0) bytes.n = 1;  // an address of its own
  void* memory = nullptr;
  switch (space) {
    case plan::Space::device: {
      if (cudaMalloc(&memory, static_cast<size_t>(bytes.n)) == cudaSuccess) {
        device_memory_.push_back(memory);
        return static_cast<std::byte*>(memory);
      }
      cudaGetLastError();
      size_t left = 0, all = 0;
      cudaMemGetInfo(&left, &all);
      return Diagnostic{where, fmt::format("{} bytes asked for, {} of {} are free", bytes.n, left, all), ""};
    }
    case plan::Space::pinned:
      if (auto f =
              fault_of(cudaHostAlloc(&memory, static_cast<size_t>(bytes.n), cudaHostAllocDefault), "cudaHostAlloc")) {
        cudaGetLastError();
        return Diagnostic{where, fmt::format("{} bytes asked for: {}", bytes.n, f->what), ""};
      }
      pinned_memory_.push_back(memory);
      return static_cast<std::byte*>(memory);
    case plan::Space::pageable: {
      std::unique_ptr<std::byte[]> owned(new (std::nothrow) std::byte[static_cast<size_t>(bytes.n)]);
      if (owned == nullptr) return Diagnostic{where, fmt::format("{} bytes asked for, there are fewer", bytes.n), ""};
      pageable_memory_.push_back(std::move(owned));
      return pageable_memory_.back().get();
    }
    case plan::Space::nvme: break;
  }
  return Diagnostic{where, "a CUDA device has none", "device, pinned, pageable"};
}

Fault CudaDevice::times_of(Ticket ticket, Times** out) {
  if (ticket >= tickets_.size()) tickets_.resize(ticket + size_t{1});
  Times& t = tickets_[ticket];
  if (t.begin == nullptr) WT_CUDA(cudaEventCreate(&t.begin));
  if (t.end == nullptr) WT_CUDA(cudaEventCreate(&t.end));
  *out = &t;
  return std::nullopt;
}

void CudaDevice::under_ticket(std::string_view op, plan::Stream stream, Ticket ticket,
                              const std::function<Fault(cudaStream_t)>& work) {
  if (failure()) return;
  const Range range(op);
  const cudaStream_t s = streams_[static_cast<size_t>(stream)];
  auto run = [&]() -> Fault {
    WT_CUDA(cudaSetDevice(number_));
    if (Fault f = start_anew()) return f;
    Times* t = nullptr;
    if (Fault f = times_of(ticket, &t)) return f;
    WT_CUDA(cudaEventRecord(t->begin, s));
    if (Fault f = work(s)) return f;
    WT_CUDA(cudaEventRecord(t->end, s));
    t->recorded = true;
    return std::nullopt;
  };
  if (Fault f = run()) fail(op, *f);
}

void CudaDevice::launch(const Launch& launch, plan::Stream stream, Ticket ticket) {
  under_ticket(launch.op, stream, ticket, [&](cudaStream_t s) -> Fault {
    if (launch.compute == nullptr) return std::nullopt;
    if (stream == plan::Stream::host)
      return Diagnostic{std::string(plan::to_text(launch.compute->kernel)), "work of the host beside a CUDA device",
                        "offload of optimizer state runs on CPU ranks only"};
    if (Status fits = check_operands(*launch.compute, launch.reads, launch.writes, launch.context); !fits) {
      std::string text = to_text(fits.errors());
      while (text.ends_with('\n')) text.pop_back();
      return Diagnostic{std::string(plan::to_text(launch.compute->kernel)), text, ""};
    }
    return run_cuda_kernel(*launch.compute, launch.reads, launch.writes, launch.context, products_, s);
  });
}

void CudaDevice::copy(const CopyLaunch& copy, plan::Stream stream, Ticket ticket) {
  under_ticket(copy.op, stream, ticket, [&](cudaStream_t s) -> Fault {
    for (size_t i = 0; i < std::min(copy.reads.size(), copy.writes.size()); ++i)
      WT_CUDA(cudaMemcpyAsync(copy.writes[i].data, copy.reads[i].data, static_cast<size_t>(copy.writes[i].bytes()),
                              cudaMemcpyDefault, s));
    return std::nullopt;
  });
}

void CudaDevice::wait(plan::Stream stream, Ticket ticket) {
  if (failure()) return;
  if (ticket >= tickets_.size() || !tickets_[ticket].recorded)
    return fail("wait", {"cudaStreamWaitEvent", fmt::format("ticket {} was not launched", ticket), ""});
  if (Fault f = fault_of(cudaStreamWaitEvent(streams_[static_cast<size_t>(stream)], tickets_[ticket].end, 0),
                         "cudaStreamWaitEvent"))
    fail("wait", *f);
}

Status CudaDevice::wait_host(Ticket ticket) {
  if (failure()) return status();
  if (ticket >= tickets_.size() || !tickets_[ticket].recorded)
    fail("wait", {"cudaEventSynchronize", fmt::format("ticket {} was not launched", ticket), ""});
  else if (Fault f = fault_of(cudaEventSynchronize(tickets_[ticket].end), "cudaEventSynchronize"))
    fail("wait", *f);
  return status();
}

Status CudaDevice::synchronize() {
  cudaSetDevice(number_);
  for (const cudaStream_t s : streams_)
    if (Fault f = fault_of(cudaStreamSynchronize(s), "cudaStreamSynchronize")) fail("synchronize", *f);
  over_ = true;
  return status();
}

Fault CudaDevice::start_anew() {
  if (!over_) return std::nullopt;
  over_ = false;
  for (Times& t : tickets_) t.recorded = false;
  return start_clock();
}

Status CudaDevice::read(const Operand& from, void* to) {
  if (Fault f = fault_of(cudaMemcpy(to, from.data, static_cast<size_t>(from.bytes()), cudaMemcpyDefault), "cudaMemcpy"))
    fail("read", *f);
  return status();
}

Status CudaDevice::write(const void* from, const Operand& to) {
  if (Fault f = fault_of(cudaMemcpy(to.data, from, static_cast<size_t>(to.bytes()), cudaMemcpyDefault), "cudaMemcpy"))
    fail("write", *f);
  return status();
}

/// The host's clock and the device's meet here. cudaEventElapsedTime counts in float milliseconds: a run of one second
/// is told apart to 60 ns, one of a minute to 4 us.
Fault CudaDevice::start_clock() {
  WT_CUDA(cudaEventRecord(origin_, streams_[0]));
  WT_CUDA(cudaEventSynchronize(origin_));
  origin_ps_ = now_ps();
  return std::nullopt;
}

Result<Interval> CudaDevice::interval(Ticket ticket) {
  if (ticket >= tickets_.size() || !tickets_[ticket].recorded)
    return Diagnostic{fmt::format("rank {}", rank_.v), fmt::format("ticket {} was not launched", ticket), ""};
  auto since_origin = [&](cudaEvent_t e, int64_t* ps) -> Fault {
    float ms = 0;
    WT_CUDA(cudaEventElapsedTime(&ms, origin_, e));
    *ps = origin_ps_ + static_cast<int64_t>(double{ms} * 1e9);
    return std::nullopt;
  };
  Interval out;
  if (Fault f = since_origin(tickets_[ticket].begin, &out.begin_ps)) return *f;
  if (Fault f = since_origin(tickets_[ticket].end, &out.end_ps)) return *f;
  return out;
}

void CudaDevice::fail(std::string_view op, Diagnostic d) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  d.where = fmt::format("rank {}, op {}, {}", rank_.v, op, d.where);
  failure_ = std::move(d);
}

std::optional<Diagnostic> CudaDevice::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status CudaDevice::status() const {
  if (auto f = failure()) return *f;
  return ok_status();
}

}  // namespace wt::exec::cuda
