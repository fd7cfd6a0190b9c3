// Pipeline parallelism: the messages between neighbouring stages (facts MG-11). A receive is posted when the host
// reaches it; blocking schedules post it only after the compute issued before (the current stream of the call) and let
// no compute start before everything sent has arrived; overlapped ones leave both to the streams. Interleaved without
// overlap exchanges once for a forward and the backward after it: here the forward's message is posted after the compute
// before it and shows, the backward's hides behind the forward, and sends are not waited for (Megatron's first stage
// receives what the last one sends long before its turn; waiting in program order would close a ring of sends).
// DeepSpeed's engine (0.6 runtime/pipe/engine.py, pipe_buffers) clones what it received for the first layer, which leaves
// both, and keeps the output until its backward; Megatron frees what it sent (deallocate_pipeline_outputs).
#include <fmt/format.h>

#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Direction;
using plan::Phase;
using plan::Stream;
using plan::Wait;

namespace {
int64_t message_bytes(const Context& c) { return c.n.rows * c.n.h * size_of(c.act); }
Wait tail(Stream s) { return {Wait::Kind::tail, static_cast<uint32_t>(s)}; }

void receive(BlockBuilder& b, const Context& c, const char* name, Phase phase, Stream stream, Direction from,
             plan::BufferRef into, bool after_compute, P2p p2p) {
  const plan::Receive body{from, message_bytes(c)};
  const uint32_t op = after_compute ? b.op(name, phase, stream, body, {}, {into}, {tail(Stream::compute)})
                                    : b.op(name, phase, stream, body, {}, {into});
  b.before_next_compute({Wait::Kind::op, op});
  if (p2p == P2p::blocking)  // Megatron synchronises the device behind each exchange that is not overlapped
    b.op(fmt::format("{} on host", name), phase, Stream::compute, plan::HostWait{}, {}, {});
}
}  // namespace

int64_t kept_edges(const StrategySpec& s) {
  return s.kept_edges >= 0 ? s.kept_edges : s.data_parallel == DataParallel::zero1 ? 2 : 0;
}

void begin_block(BlockBuilder& b, const Context& c, P2p p2p) {
  if (p2p != P2p::blocking || c.n.p == 1) return;
  b.before_next_compute(tail(Stream::send_next));
  b.before_next_compute(tail(Stream::send_previous));
}

void receive_input(BlockBuilder& b, const Context& c, P2p p2p) {
  b.segment(0);
  const bool cloned = c.edge.received.valid();
  receive(b, c, "receive forward", Phase::forward, Stream::receive_previous, Direction::previous_stage,
          ref(cloned ? c.edge.received : c.edge.hidden), p2p != P2p::overlapped, p2p);
  if (cloned) {
    const int64_t bytes = message_bytes(c);
    b.compute("clone input", Phase::forward, streaming(plan::Kernel::copy, c.act, c.n.rows, c.n.h, bytes, bytes, 0),
              {ref(c.edge.received)}, {ref(c.edge.hidden)});
  }
}

void send_output(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  b.segment(part.layers);
  b.op("send forward", Phase::forward, Stream::send_next, plan::Send{Direction::next_stage, message_bytes(c)},
       {ref(c.edge.hidden)}, {});
  if (kept_edges(c.strategy()) == 0) b.release_here(ref(c.edge.hidden));
}

void receive_gradient(BlockBuilder& b, const Context& c, const ChunkPart& part, P2p p2p) {
  b.segment(part.layers);
  receive(b, c, "receive backward", Phase::backward_input, Stream::receive_next, Direction::next_stage,
          ref(c.tmp.d_hidden), p2p == P2p::blocking, p2p);
}

void send_gradient(BlockBuilder& b, const Context& c) {
  b.segment(0);
  b.op("send backward", Phase::backward_input, Stream::send_previous,
       plan::Send{Direction::previous_stage, message_bytes(c)}, {ref(c.tmp.d_hidden)}, {});
}

void release_edges(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  if (!part.embedding && c.edge.received.valid()) b.release_here(ref(c.edge.received));
  if (!part.head && kept_edges(c.strategy()) > 0) b.release_here(ref(c.edge.hidden, part.layers));
}

}  // namespace wt::lower
