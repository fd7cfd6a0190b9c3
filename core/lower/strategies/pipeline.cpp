// Pipeline parallelism: the messages between neighbouring stages. A receive is posted when the host
// reaches it; blocking schedules post it only after the compute issued before (the current stream of the call) and let
// no compute start before everything sent has arrived; overlapped ones leave both to the streams. Interleaved without
// overlap exchanges once for a forward and the backward after it: here the forward's message is posted after the compute
// before it and shows, the backward's hides behind the forward, and sends are not waited for (Megatron's first stage
// receives what the last one sends long before its turn; waiting in program order would close a ring of sends).
// DeepSpeed's engine (0.6 runtime/pipe/engine.py, pipe_buffers) clones what it received for the first layer, which leaves
// both, and keeps the output until its backward; Megatron frees what it sent (deallocate_pipeline_outputs).
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Direction;
using plan::Phase;
using plan::Stream;
using plan::Wait;

namespace {
int64_t edge_bytes(const Context& c) { return c.n.rows * c.n.h * size_of(c.act); }
bool sharded(const Context& c) { return c.edge.sent_piece.valid(); }
int64_t message_bytes(const Context& c) { return sharded(c) ? edge_bytes(c) / c.n.t : edge_bytes(c); }
void receive(BlockBuilder& b, const Context& c, const char* name, Phase phase, Stream stream, Direction from,
             BufferId piece, plan::BufferRef whole, bool after_compute, P2p p2p) {
  const plan::Receive body{from, message_bytes(c)};
  const plan::BufferRef into = sharded(c) ? ref(piece) : whole;
  const bool in_turn = p2p == P2p::blocking && c.strategy().serial_messages && from == Direction::previous_stage;
  const uint32_t op =
      in_turn ? b.op(name, phase, stream, body, {}, {into}, {tail(Stream::compute), tail(Stream::send_previous)})
      : after_compute ? b.op(name, phase, stream, body, {}, {into}, {tail(Stream::compute)})
                      : b.op(name, phase, stream, body, {}, {into});
  b.before_next_compute({Wait::Kind::op, op});
  if (p2p == P2p::blocking)  // Megatron synchronises the device behind each exchange that is not overlapped
    b.op(fmt::format("{} on host", name), phase, Stream::compute, plan::HostWait{}, {}, {});
  if (sharded(c)) {
    const plan::Collective gather{plan::CollectiveKind::all_gather, plan::Reduction::sum, c.act, c.tp, edge_bytes(c)};
    b.before_next_compute({Wait::Kind::op, b.op("tp all-gather edge", phase, Stream::tensor, gather, {into}, {whole})});
  }
}

void send(BlockBuilder& b, const Context& c, const char* name, Phase phase, Stream stream, Direction to,
          plan::BufferRef whole, BufferId piece) {
  plan::BufferRef from = whole;
  if (sharded(c)) {
    plan::Compute slice =
        streaming(plan::Kernel::copy, c.act, c.n.rows / c.n.t, c.n.h, message_bytes(c), message_bytes(c), 0);
    slice.group = c.tp;
    b.compute("cut edge", phase, slice, {whole}, {ref(piece)});
    from = ref(piece);
  }
  b.op(name, phase, stream, plan::Send{to, message_bytes(c)}, {from}, {});
}
}  // namespace

int64_t kept_edges(const StrategySpec& s) {
  return s.kept_edges >= 0 ? s.kept_edges : s.data_parallel == DataParallel::zero1 ? 2 : 0;
}

int64_t kept_outputs(const Context& c) {
  // pipe_buffers["outputs"] of the last stage is never taken: a new micro-batch overwrites the one before the last
  // (num_pipe_buffers is at least 2).
  const bool engine = c.n.p > 1 ? kept_edges(c.strategy()) > 0 : c.strategy().kept_edges > 0;
  return engine ? std::min<int64_t>(2, c.n.micro_batches) : 0;
}

void begin_block(BlockBuilder& b, const Context& c, P2p p2p) {
  if (p2p != P2p::blocking || c.n.p == 1) return;
  b.before_next_compute(tail(Stream::send_next));
  b.before_next_compute(tail(Stream::send_previous));
}

void receive_input(BlockBuilder& b, const Context& c, const ChunkPart& part, P2p p2p) {
  b.segment(0);
  const bool cloned = c.edge.received.valid();
  receive(b, c, "receive forward", Phase::forward, part.back ? Stream::back_receive_previous : Stream::receive_previous,
          Direction::previous_stage, c.edge.received_piece, ref(cloned ? c.edge.received : c.edge.hidden),
          p2p != P2p::overlapped, p2p);
  if (cloned) {
    const int64_t bytes = edge_bytes(c);
    b.compute("clone input", Phase::forward, streaming(plan::Kernel::copy, c.act, c.n.rows, c.n.h, bytes, bytes, 0),
              {ref(c.edge.received)}, {ref(c.edge.hidden)});
  }
}

void send_output(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  b.segment(part.layers);
  send(b, c, "send forward", Phase::forward, part.back ? Stream::back_send_next : Stream::send_next,
       Direction::next_stage, ref(c.edge.hidden), c.edge.sent_piece);
  if (kept_edges(c.strategy()) == 0) b.release_here(ref(c.edge.hidden));
}

void receive_gradient(BlockBuilder& b, const Context& c, const ChunkPart& part, P2p p2p) {
  b.segment(part.layers);
  receive(b, c, "receive backward", Phase::backward_input, part.back ? Stream::back_receive_next : Stream::receive_next,
          Direction::next_stage, c.edge.received_gradient_piece, ref(c.tmp.d_hidden), p2p == P2p::blocking, p2p);
}

void send_gradient(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  b.segment(0);
  send(b, c, "send backward", Phase::backward_input, part.back ? Stream::back_send_previous : Stream::send_previous,
       Direction::previous_stage, ref(c.tmp.d_hidden), c.edge.sent_gradient_piece);
}

void release_edges(BlockBuilder& b, const Context& c, const ChunkPart& part) {
  if (!part.embedding && c.edge.received.valid()) b.release_here(ref(c.edge.received));
  if (!part.head && kept_edges(c.strategy()) > 0) b.release_here(ref(c.edge.hidden, part.layers));
}

}  // namespace wt::lower
