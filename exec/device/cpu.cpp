#include "exec/device/cpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <variant>

#include "core/base/check.hpp"
#include "exec/device/thread_pool.hpp"
#include "exec/kernels/check.hpp"
#include "exec/kernels/cpu/run.hpp"

namespace wt::exec {

namespace {

constexpr int64_t kAlign = 4096;  // a page
/// To wake a thread costs more than a small kernel: so many commands are handed over together, a few microseconds late.
constexpr size_t kHeld = 16;
constexpr size_t kHost = plan::kStreams;  // who waits, where a stream's thread would be its stream

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "an unnamed processor";
}

}  // namespace

Bytes available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return {kib * 1024};
    file.ignore(256, '\n');
  }
  return {};
}

/// One stream: the host appends, the stream's thread takes everything there is and runs it.
struct CpuDevice::Queue {
  struct Until {  // another stream has done `number` + 1 tasks
    Queue* other = nullptr;
    uint32_t number = 0;
  };
  struct Waiter {
    std::atomic<uint32_t> number{0}, sleeps{0};
  };
  struct Task {
    std::string_view op;
    std::variant<Launch, CopyLaunch, Work> work;
  };
  using Command = std::variant<Until, Task>;

  Queue(CpuDevice& device, plan::Stream s, int core) : owner(device), stream(s), thread([this, core] { run(core); }) {}
  /// Ends the thread when what was pushed is done.
  void finish() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    filled.notify_one();
    thread.join();
  }

  template <class C>
  void push(C c) {
    held.emplace_back(std::move(c));
    if (++owner.held_ >= kHeld) owner.submit();
  }

  /// What the host holds back goes to the thread.
  void send() {
    if (held.empty()) return;
    const std::lock_guard lock(mutex);
    for (Command& c : held) pending.push_back(std::move(c));
    held.clear();
    if (!sleeping) return;
    sleeping = false;
    filled.notify_one();
  }

  bool over(uint32_t number) const { return static_cast<int32_t>(completed.load() - number) > 0; }

  /// Whether its thread runs or could.
  bool busy() const {
    if (sleeping) return false;
    const Queue* other = waits_for;
    return !other || other->over(waits_number);
  }

  /// Says so before what it waits for is over, so that nobody takes it to be busy for a moment.
  void will_wait(const Command* next) {
    const auto* until = next ? std::get_if<Until>(next) : nullptr;
    if (until) waits_number = until->number;
    waits_for = until ? until->other : nullptr;
  }

  /// Blocks thread `who` until `number` + 1 tasks are over; counts may wrap. It sleeps through those before: to be woken
  /// for each would cost the kernels of this stream their core.
  void await(uint32_t number, size_t who) {
    Waiter& w = waiters[who];
    w.number = number;
    for (w.sleeps = 1; !over(number); w.sleeps = 1) sleep_while(w.sleeps, 1);
    w.sleeps = 0;
  }

  void complete() {
    completed.fetch_add(1);
    for (Waiter& w : waiters)
      if (w.sleeps && over(w.number)) {
        w.sleeps = 0;
        wake_one(w.sleeps);
      }
  }

  void run(int core) {
    take_turn(computes() ? Turn::computes : Turn::transfers);
    if (core >= 0) pin_this_thread(core);
    std::vector<Command> batch;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        sleeping = pending.empty();
        if (sleeping) tell_idle();
        filled.wait(lock, [&] { return stop || !pending.empty(); });
        sleeping = false;
        if (pending.empty()) return;
        std::swap(batch, pending);
      }
      for (size_t i = 0; i < batch.size(); ++i) {
        if (const auto* until = std::get_if<Until>(&batch[i])) {
          will_wait(&batch[i]);
          if (!until->other->over(until->number)) {
            tell_idle();
            until->other->await(until->number, static_cast<size_t>(stream));
          }
          will_wait(nullptr);
        } else {
          execute(std::get<Task>(batch[i]), i + 1 < batch.size() ? &batch[i + 1] : nullptr);
        }
      }
      batch.clear();
    }
  }

  void tell_idle() {
    if (!computes() || owner.await_idle_ == 0) return;
    { const std::lock_guard lock(owner.idle_mutex_); }  // who is about to sleep sleeps by now
    owner.idle_.notify_all();
  }

  void execute(Task& task, const Command* next) {
    Interval when;
    when.begin_ps = now_ps();
    if (!owner.failed_.load(std::memory_order_acquire))
      if (const Status s = perform(task); !s) {
        Diagnostic d = s.errors()[0];
        if (d.where.empty()) d.where = fmt::format("rank {}, op '{}'", owner.options_.rank.v, task.op);
        owner.fail(d);
      }
    when.end_ps = now_ps();
    intervals.push_back(when);
    if (owner.after_kernel_ && computes()) owner.after_kernel_();
    will_wait(next);
    complete();
  }

  Status perform(Task& task) {
    if (auto* work = std::get_if<Work>(&task.work)) return (*work)();
    if (const auto* copy = std::get_if<CopyLaunch>(&task.work)) {
      for (size_t i = 0; i < copy->writes.size(); ++i)
        std::memcpy(copy->writes[i].data, copy->reads[i].data, static_cast<size_t>(copy->writes[i].bytes()));
      return ok_status();
    }
    const Launch& l = std::get<Launch>(task.work);
    if (!l.compute) return ok_status();
    Status done = owner.options_.kernel
                      ? owner.options_.kernel(*l.compute, l.reads, l.writes, l.context, *owner.workers_)
                      : run_cpu_kernel(*l.compute, l.reads, l.writes, l.context, *owner.workers_);
    if (done) return done;
    return Diagnostic{
        fmt::format("rank {}, op '{}' ({})", owner.options_.rank.v, task.op, plan::to_text(l.compute->kernel)),
        to_text(done.errors()), ""};
  }

  bool computes() const { return stream == plan::Stream::compute; }

  CpuDevice& owner;
  const plan::Stream stream;
  std::mutex mutex;
  std::condition_variable filled;
  std::vector<Command> held;  // of the host
  std::vector<Command> pending;
  bool stop = false;
  std::atomic<bool> sleeping{false};
  std::atomic<uint32_t> completed{0};
  std::array<Waiter, plan::kStreams + 1> waiters;  // the threads of the other streams, and the host's
  // What the thread waits for: kept for busy(), which may be wrong for the moment between the two.
  std::atomic<const Queue*> waits_for{nullptr};
  std::atomic<uint32_t> waits_number{0};
  std::vector<Interval> intervals;  // since the last launch after a synchronize; the host looks when all is over
  uint32_t issued = 0, first = 0;   // of the host
  std::thread thread;               // last: it uses the rest
};

CpuDevice::CpuDevice(CpuOptions options) : options_(std::move(options)) {
  if (options_.threads > 1)
    workers_ = std::make_unique<ThreadPool>(options_.threads, options_.cores);
  else
    workers_ = std::make_unique<InlineWorkers>();
}

CpuDevice::~CpuDevice() {
  submit();
  // A stream may wait for another: none ends before all have run dry.
  for (const auto& q : queues_)
    if (q && q->issued != q->first) q->await(q->issued - 1, kHost);
  for (const auto& q : queues_)
    if (q) q->finish();
}

std::string CpuDevice::description() const {
  return fmt::format("{} thread{} of {}", options_.threads, options_.threads > 1 ? "s" : "", processor_name());
}

std::optional<std::string> CpuDevice::unsupported(const Launch& l) const {
  if (!l.compute || options_.kernel) return std::nullopt;
  return unsupported_types(*l.compute, l.reads, l.writes);
}

Result<std::byte*> CpuDevice::allocate(plan::Space space, Bytes bytes) {
  const auto size = static_cast<size_t>((std::max<int64_t>(bytes.n, 1) + kAlign - 1) / kAlign * kAlign);
  // Memory counts as taken when it is touched: at once, one rank after the other, so that each sees what is left. Pages
  // lie near the core that touches them first.
  static std::mutex taking;
  const std::lock_guard lock(taking);
  const Bytes available = available_memory();
  auto* data = available.n > 0 && bytes > available
                   ? nullptr
                   : static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kAlign), size));
  if (!data)
    return Diagnostic{fmt::format("rank {}", options_.rank.v),
                      fmt::format("cannot reserve {} of {} memory: {} are free", to_text(bytes), plan::to_text(space),
                                  to_text(available)),
                      "smaller micro-batches, fewer ranks on this machine, or recomputation need less"};
  memory_.emplace_back(data);
  std::thread([&] {
    if (!options_.cores.empty()) pin_this_thread(options_.cores[0]);
    std::memset(data, options_.poison ? 0xff : 0, size);  // 0xff...: NaN in every floating-point type
  }).join();
  return data;
}

void CpuDevice::Freed::operator()(std::byte* p) const { std::free(p); }

CpuDevice::Queue& CpuDevice::queue(plan::Stream stream) {
  auto& q = queues_[static_cast<size_t>(stream)];
  if (!q) {
    const bool computes = stream == plan::Stream::compute;
    q = std::make_unique<Queue>(*this, stream, computes && !options_.cores.empty() ? options_.cores[0] : -1);
    if (computes) compute_ = q.get();
  }
  if (synchronized_) {  // the first work after a synchronize: tickets start anew
    synchronized_ = false;
    tickets_.clear();
    for (auto& other : queues_)
      if (other) {
        other->intervals.clear();
        other->first = other->issued;
      }
  }
  return *q;
}

namespace {
/// Room for a ticket: they come in any order, mostly in the order of issue.
template <class T>
void make_room(std::vector<T>& list, Ticket ticket) {
  if (ticket >= list.size()) list.resize(ticket + size_t{1});
}
}  // namespace

void CpuDevice::submit() {
  held_ = 0;
  for (const auto& q : queues_)
    if (q) q->send();
}

void CpuDevice::launch(const Launch& l, plan::Stream stream, Ticket ticket) {
  Queue& q = queue(stream);
  make_room(tickets_, ticket);
  tickets_[ticket] = {static_cast<uint8_t>(stream), q.issued++};
  q.push(Queue::Task{l.op, l});
}

void CpuDevice::copy(const CopyLaunch& c, plan::Stream stream, Ticket ticket) {
  WT_CHECK(c.reads.size() == c.writes.size(), "'{}' copies {} buffers to {}", c.op, c.reads.size(), c.writes.size());
  Queue& q = queue(stream);
  make_room(tickets_, ticket);
  tickets_[ticket] = {static_cast<uint8_t>(stream), q.issued++};
  q.push(Queue::Task{c.op, c});
}

void CpuDevice::enqueue(plan::Stream stream, Ticket ticket, std::string_view op, Work work) {
  Queue& q = queue(stream);
  make_room(tickets_, ticket);
  tickets_[ticket] = {static_cast<uint8_t>(stream), q.issued++};
  q.push(Queue::Task{op, std::move(work)});
}

void CpuDevice::wait(plan::Stream stream, Ticket ticket) {
  Queue& q = queue(stream);
  const Position on = tickets_[ticket];
  if (on.stream == static_cast<uint8_t>(stream)) return;
  q.push(Queue::Until{queues_[on.stream].get(), on.number});
}

Status CpuDevice::wait_host(Ticket ticket) {
  submit();
  const Position on = tickets_[ticket];
  queues_[on.stream]->await(on.number, kHost);
  return failure();
}

Status CpuDevice::synchronize() {
  submit();
  for (const auto& q : queues_)
    if (q && q->issued != q->first) q->await(q->issued - 1, kHost);
  synchronized_ = true;
  return failure();
}

Status CpuDevice::read(const Operand& from, void* to) {
  std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
  return failure();
}

Status CpuDevice::write(const void* from, const Operand& to) {
  std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
  return failure();
}

Result<Interval> CpuDevice::interval(Ticket ticket) {
  WT_CHECK(synchronized_ && ticket < tickets_.size());
  const Position at = tickets_[ticket];
  const Queue& q = *queues_[at.stream];
  return q.intervals[at.number - q.first];
}

bool CpuDevice::computing() const {
  const Queue* compute = compute_;
  return compute && compute->busy();
}

void CpuDevice::await_idle(std::chrono::microseconds most) {
  std::unique_lock lock(idle_mutex_);
  ++await_idle_;
  if (computing()) idle_.wait_for(lock, most);
  --await_idle_;
}

void CpuDevice::after_kernels(std::function<void()> hook) {
  (void)synchronize();
  after_kernel_ = std::move(hook);
}

Status CpuDevice::failure() const {
  const std::lock_guard lock(failure_mutex_);
  if (failure_) return *failure_;
  return ok_status();
}

void CpuDevice::fail(const Diagnostic& d) {
  std::function<void(const Diagnostic&)> hook;
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    failure_ = d;
    hook = hook_;
  }
  failed_.store(true, std::memory_order_release);
  if (hook) hook(d);
}

void CpuDevice::on_failure(std::function<void(const Diagnostic&)> hook) {
  const std::lock_guard lock(failure_mutex_);
  hook_ = std::move(hook);
}

}  // namespace wt::exec
