// The ranks of mpi_faults_test.cpp: argv[1] says what goes wrong on rank 2 of three. Each prints what it is told.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "exec/comm/mpi.hpp"

using namespace wt;
using namespace wt::exec;

namespace {

void say(const std::string& line) { (void)!::write(STDOUT_FILENO, line.data(), line.size()); }

Transfer message(Transfer::Kind kind, uint32_t peer, const Operand* x) {
  Transfer t;
  t.kind = kind;
  t.op = kind == Transfer::Kind::send ? "send on" : "receive from before";
  t.peer = {peer};
  (kind == Transfer::Kind::send ? t.reads : t.writes) = {x, 1};
  return t;
}

}  // namespace

int main(int argc, char** argv) {
  auto session = MpiSession::open(&argc, &argv);
  if (!session || argc < 2) return 1;
  const std::string mode = argv[1];
  const uint32_t rank = session.value().rank().v;
  MpiOptions options;
  options.timeout = std::chrono::milliseconds(1500);
  bool failed = false;
  {
    auto machine = session.value().machine(options);
    if (!machine) return 1;
    Machine& m = machine.value();
    auto& device = static_cast<CpuDevice&>(*m.device);
    Channel all{plan::Stream::tensor, {{0}, {1}, {2}}, rank};
    if (!m.communicator->connect({&all, 1})) return 1;
    const bool odd = rank == 2;
    if (odd && mode == "stopped") ::raise(SIGSTOP);
    if (odd && mode == "killed") ::raise(SIGKILL);
    if (odd && mode == "hangs") std::this_thread::sleep_for(std::chrono::seconds(60));
    if (odd && mode == "fails")
      device.enqueue(plan::Stream::tensor, 0, "broken", [] { return Status(Diagnostic{"", "out of luck", ""}); });
    double x = 1;
    const Operand one{&x, DType::f64, 1, {}};
    if (mode == "chain") {  // 0 waits for 1, who waits for 2, who has stopped
      if (odd) ::raise(SIGSTOP);
      m.communicator->start(message(Transfer::Kind::receive, rank + 1, &one), plan::Stream::receive_next, 1);
    } else {
      const plan::Collective op{plan::CollectiveKind::all_reduce, plan::Reduction::sum, DType::f64, {}, 0};
      Transfer t;
      t.op = "meeting";
      t.collective = &op;
      t.reads = t.writes = {&one, 1};
      m.communicator->start(t, plan::Stream::tensor, 1);
    }
    if (const Status s = m.device->synchronize(); !s) {
      failed = true;
      say(fmt::format("rank {} is told: {}", rank, to_text(s.errors())));
    }
  }
  if (failed) session.value().end_all(4);
  return 0;
}
