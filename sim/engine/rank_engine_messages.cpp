// Of RankEngine: sends and receives. A pair meets on its channel; a message whose predecessor on the stream is not over
// waits in a queue of that stream, so that neither the host nor other streams wait for it.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sim/engine/rank_engine.hpp"

namespace wt::sim {

void RankEngine::make_channels() {
  if (fold_.message_bytes.empty()) return;
  chunks_ = static_cast<uint32_t>(std::max<int64_t>(1, plan_.placement.chunks));
  port_.assign(size_t{fold_.units()} * chunks_ * 4, kNone);
  std::unordered_map<uint64_t, uint32_t> index;
  for (uint32_t u = 0; u < fold_.units(); ++u)
    for (uint32_t chunk = 0; chunk < chunks_; ++chunk)
      for (uint32_t port = 0; port < 4; ++port) {
        const bool previous = port & 1, receives = port & 2;
        const RankId rank{fold_.rank_of[u]};
        const auto peer =
            peer_of(plan_, rank, chunk, previous ? plan::Direction::previous_stage : plan::Direction::next_stage);
        if (!peer) continue;
        const uint32_t other = fold_.unit_of(peer->rank);
        const uint32_t from = receives ? other : u, to = receives ? u : other;
        const bool backward = receives != previous;  // direction in which the message travels
        const uint64_t key = (uint64_t{from} << 32 | to) << 1 | backward;
        const auto [it, fresh] = index.try_emplace(key, static_cast<uint32_t>(channels_.size()));
        port_[(size_t{u} * chunks_ + chunk) * 4 + port] = it->second;
        if (!fresh) continue;
        channels_.emplace_back();
        channels_.back().from = from;
        channels_.back().to = to;
        for (int64_t bytes : fold_.message_bytes)
          message_time_.push_back(
              message_time(plan_, pricing_, bytes, receives ? peer->rank : rank, receives ? rank : peer->rank)
                  .count_ps());
      }
}

/// `ready`: but for the message before it on the stream.
void RankEngine::queue(uint32_t u, const OrderEntry& entry, const FlatOp& op, int64_t ready, bool traced) {
  uint32_t span = kNone;
  if (traced) {
    span = static_cast<uint32_t>(spans_[u].size());
    spans_[u].push_back({units_[u].invocation, op.instance, 0, 0});
  }
  Posted& first = posted_[size_t{u} * plan::kStreams + op.stream];
  uint32_t at = free_queued_;
  if (at == kNone) {
    at = static_cast<uint32_t>(queued_.size());
    queued_.emplace_back();
  } else {
    free_queued_ = queued_[at].next;
  }
  const int64_t before = first.behind == kNone ? first.token : queued_[first.last].token;
  queued_[at] = {&op, ready, before + plan::kStreams, channel_of(u, entry, op), span};
  if (first.behind == kNone) {
    first.behind = at;
  } else {
    queued_[first.last].next = at;
  }
  first.last = at;
  int64_t* const v = &times_[size_t{u} * priced_.row];
  v[op.stream] = v[op.out] = queued_[at].token;
  ++units_[u].open;
}

/// Messages whose predecessor is over. In a loop, since one that is met may free the next, here or at its partner.
void RankEngine::post_next_messages() {
  while (!next_messages_.empty()) {
    const uint32_t at = next_messages_.back();
    next_messages_.pop_back();
    const auto u = static_cast<uint32_t>(at / plan::kStreams);
    Posted& first = posted_[at];
    const uint32_t index = first.behind, last = first.last;
    const Queued message = queued_[index];
    queued_[index].next = std::exchange(free_queued_, index);
    first = {message.op, nullptr, message.ready, message.token, message.span, message.next, last};
    if (message.op->channels) units_[u].open_exposed |= static_cast<uint16_t>(1u << message.op->stream);
    if (message.span != kNone) spans_[u][message.span].begin_ps = message.ready - origin_;
    if (const auto met = meet(message.channel, *message.op, message.ready))
      resolve(u, message.op->stream, met->begin, met->end);
  }
}

}  // namespace wt::sim
