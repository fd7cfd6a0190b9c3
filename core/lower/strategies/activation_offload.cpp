// Saved activations that wait for their backward in host memory (OffloadSpec::activation_layers): every w-th layer of a
// chunk, w = layers / activation_layers. A layer's copy has the next w layers to hide behind, out and back in:
//
//   compute  | layer 0 | layer 1 | layer 2 | ...              w = 2: layers 0, 2, 4 ... go to the host
//   copy_out           | --- layer 0 --- | --- layer 2 --- |
//
// The kernels wait for a copy before the next one begins, and only then its device storage is free: Transformer Engine's
// double buffer (transformer_engine/pytorch/cpu_offload.py, AsyncDoubleBufferGroupOffloadHandler), which takes the first n
// layers and gives each copy a window of w layers; here each window's own first layer goes. Not a choice of tensors: a layer
// goes with all that it saved and with its input.
#include <algorithm>
#include <array>
#include <numeric>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Phase;
using plan::Stream;
using plan::Wait;

void make_activation_twins(Context& c) {
  if (c.strategy().offload.activation_layers == 0) return;
  const size_t buffers = c.plan.buffers.size();
  for (size_t i = 0; i < buffers; ++i) {
    plan::Buffer b = c.plan.buffers[i];
    if (b.role != plan::Role::activation || b.scope != plan::Scope::micro_batch || !b.per_layer || b.view) continue;
    b.name += "_on_host";
    b.role = plan::Role::copy;
    b.space = host_space(c.strategy());
    c.on_host[static_cast<uint32_t>(i)] = c.add_buffer(std::move(b));
  }
}

int64_t ActivationHooks::window() const {
  return std::max<int64_t>(1, part_.layers / std::max<int64_t>(1, c_.strategy().offload.activation_layers));
}
bool ActivationHooks::goes(int64_t layer) const {
  return layer >= 0 && layer < part_.layers && layer % window() == 0 &&
         layer / window() < c_.strategy().offload.activation_layers;
}
/// At whose end the copy of `layer` is waited for; in the backward, at whose begin it is asked for.
int64_t ActivationHooks::partner(int64_t layer) const { return std::min(layer + window(), part_.layers - 1); }
/// The layer whose copy ends (is asked for) at `layer` and is not its own; -1: none.
int64_t ActivationHooks::ends_at(int64_t layer) const {
  for (int64_t x = layer - 1; x >= std::max<int64_t>(0, layer - window()); --x)
    if (goes(x) && partner(x) == layer) return x;
  return -1;
}

int64_t ActivationHooks::period(Way) const { return window(); }
bool ActivationHooks::alike(Way, int64_t x, int64_t y) const {
  const auto same = [&](int64_t layer) {
    const int64_t ends = ends_at(layer);
    return std::array<int64_t, 3>{goes(layer), ends < 0 ? 0 : layer - ends, goes(layer) && partner(layer) == layer};
  };
  return same(x) == same(y);
}

namespace {

/// Sharded units cast their shards on copy_in: there what comes back must not stand in their way, and nothing goes out then.
Stream way_in(const Context& c) { return has_units(c.strategy()) ? Stream::copy_out : Stream::copy_in; }

Refs at(const std::vector<BufferId>& buffers, int64_t offset) {
  Refs out;
  for (const BufferId b : buffers) out.push_back(ref(b, offset));
  return out;
}

}  // namespace

void ActivationHooks::move(BlockBuilder& b, const std::vector<BufferId>& saved, int64_t offset, bool out) {
  Refs here = at(saved, offset), there;
  plan::Copy copy;
  for (const BufferId id : saved) {
    there.push_back(ref(c_.on_host.at(id.v), offset));
    copy.bytes += c_.plan.buffer(id).bytes().n;
  }
  const plan::Space host = host_space(c_.strategy());
  (out ? copy.to : copy.from) = host;
  (out ? copy.from : copy.to) = plan::Space::device;
  const Phase phase = out ? Phase::forward : Phase::backward_input;
  const Stream stream = out ? Stream::copy_out : way_in(c_);
  const Wait kernels[] = {tail(Stream::compute)};
  b.beside(out ? "activations to host" : "activations to device", phase, stream, copy, out ? here : there,
           out ? there : here, kernels);
  if (!out)
    for (const BufferRef& r : here) b.reserve_here(r);
  if (host == plan::Space::pageable) b.beside("copy on host", phase, stream, plan::HostWait{}, {}, {}, {});
}

void ActivationHooks::after_forward(BlockBuilder& b, const LayerPlace& place) {
  const auto finish = [&](int64_t layer) {
    b.op("activations on host", Phase::forward, Stream::compute, plan::Join{}, {}, {}, {tail(Stream::copy_out)});
    for (const BufferRef& r : at(saved_->at(layer), place.offset + (layer - place.layer))) b.release_here(r);
  };
  if (const int64_t ended = ends_at(place.layer); ended >= 0) finish(ended);
  if (!goes(place.layer)) return;
  std::vector<BufferId> saved = b.saved_by_layer(place.offset);
  if (std::find(saved.begin(), saved.end(), c_.edge.hidden) == saved.end()) saved.push_back(c_.edge.hidden);
  for (int64_t i = 0; i < place.times; ++i) (*saved_)[place.layer + i * place.items] = saved;
  move(b, saved, place.offset, true);
  if (partner(place.layer) == place.layer) finish(place.layer);
}

void ActivationHooks::before_backward(BlockBuilder& b, const LayerPlace& place) {
  if (goes(place.layer)) {
    if (partner(place.layer) == place.layer) move(b, saved_->at(place.layer), place.offset, false);
    b.op("activations back", Phase::backward_input, Stream::compute, plan::Join{}, {}, {}, {tail(way_in(c_))});
  }
  if (const int64_t next = ends_at(place.layer); next >= 0)
    move(b, saved_->at(next), place.offset + (next - place.layer), false);
}

int64_t HookList::period(Way way) const {
  int64_t all = 1;
  for (const LayerHooks* h : list_) all = std::lcm(all, h->period(way));
  return all;
}
bool HookList::alike(Way way, int64_t x, int64_t y) const {
  return std::all_of(list_.begin(), list_.end(), [&](const LayerHooks* h) { return h->alike(way, x, y); });
}
void HookList::before_forward(BlockBuilder& b, const LayerPlace& p) {
  for (LayerHooks* h : list_) h->before_forward(b, p);
}
void HookList::after_forward(BlockBuilder& b, const LayerPlace& p) {
  for (LayerHooks* h : list_) h->after_forward(b, p);
}
void HookList::before_backward(BlockBuilder& b, const LayerPlace& p) {
  for (LayerHooks* h : list_) h->before_backward(b, p);
}
void HookList::after_backward(BlockBuilder& b, const LayerPlace& p) {
  for (LayerHooks* h : list_) h->after_backward(b, p);
}

}  // namespace wt::lower
