#include "core/plan/values.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/base/check.hpp"

namespace wt::plan {

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t mix(std::string_view name) {
  uint64_t h = 0;
  for (const char c : name) h = mix(h ^ static_cast<uint8_t>(c));
  return h;
}

namespace {

/// Standard normal that depends on the key alone (Box-Muller).
double normal(uint64_t key) {
  const double u = (static_cast<double>(mix(key) >> 11) + 0.5) * 0x1p-53;
  const double v = (static_cast<double>(mix(key ^ 0x5bd1e995) >> 11) + 0.5) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace

std::string_view weight_name(const Buffer& b) { return std::string_view(b.name).substr(0, b.name.find("_copy")); }

int64_t global_index(const Plan& plan, RankId rank, const Buffer& b, int64_t local) {
  int64_t index = 0, inner = b.elements();
  for (size_t d = 0; d < b.shape.size(); ++d) {
    inner /= b.shape[d];
    int64_t at = local / inner, size = b.shape[d];
    local %= inner;
    for (const Shard& s : b.shards) {
      if (s.dim != d) continue;
      const Group& g = plan.group(s.group);
      const int64_t n = group_size(plan.mesh, g), share = b.shape[d] / s.blocks;
      at = at / share * share * n + group_index(plan.mesh, g, rank) * share + at % share;
      size *= n;
    }
    index = index * size + at;
  }
  return index;
}

const View* view_of(const Part& part, BufferId buffer, int64_t layer) {
  for (const View& v : part.views)
    if (v.buffer == buffer && (v.layers == 0 || (layer >= v.first_layer && layer < v.first_layer + v.layers)))
      return &v;
  return nullptr;
}

int64_t view_offset(const Plan& plan, RankId rank, const View& v, int64_t layer) {
  int64_t offset = v.offset + (v.layers ? v.layer_stride * (layer - v.first_layer) : 0);
  if (v.shard_group.valid())
    offset += group_index(plan.mesh, plan.group(v.shard_group), rank) * plan.buffer(v.buffer).elements();
  return offset;
}

void fill_initial(const Plan& plan, RankId rank, const Buffer& b, int64_t model_layer, std::span<double> out) {
  const uint64_t key = mix(plan.seed ^ mix(weight_name(b)) ^ mix(static_cast<uint64_t>(model_layer + 1)));
  switch (b.init) {
    case Init::none: return;
    case Init::zeros: std::fill(out.begin(), out.end(), 0.0); return;
    case Init::ones: std::fill(out.begin(), out.end(), 1.0); return;
    case Init::normal: break;
  }
  // The innermost dim is contiguous in the whole tensor too, but for the pieces of its own shards.
  int64_t run = b.shape.empty() ? 1 : b.shape.back();
  for (const Shard& s : b.shards)
    if (size_t{s.dim} + 1 == b.shape.size()) run /= s.blocks;
  const auto size = static_cast<int64_t>(out.size());
  for (int64_t begin = 0; begin < size; begin += run) {
    const int64_t global = global_index(plan, rank, b, begin);
    for (int64_t i = 0; i < std::min(run, size - begin); ++i)
      out[static_cast<size_t>(begin + i)] = b.init_scale * normal(key ^ mix(static_cast<uint64_t>(global + i)));
  }
}

void load_initial(const Plan& plan, RankId rank, int64_t chunk, BufferId id, int64_t layer, std::span<double> out) {
  const Program& program = plan.programs[program_of(plan, rank).v];
  const auto at = static_cast<size_t>(chunk);
  const int64_t first = program.first_layer[at];
  const std::vector<View>& views = plan.parts[program.chunks[at].v].views;
  std::fill(out.begin(), out.end(), 0.0);
  // What of the initialised views lies in elements [from, from + out.size()) of `base` (of its layer).
  std::vector<double> values;
  auto fill_from = [&](BufferId base, int64_t from) {
    const auto to = from + static_cast<int64_t>(out.size());
    for (const View& v : views) {
      const Buffer& b = plan.buffer(v.buffer);
      if (v.base != base || !b.view || b.init == Init::none) continue;
      auto one = [&](int64_t of) {
        const int64_t begin = view_offset(plan, rank, v, of), end = begin + b.elements();
        if (end <= from || begin >= to) return;
        values.assign(static_cast<size_t>(b.elements()), 0.0);
        fill_initial(plan, rank, b, of < 0 ? -1 : first + of, values);
        for (int64_t i = std::max(begin, from); i < std::min(end, to); ++i)
          out[static_cast<size_t>(i - from)] = values[static_cast<size_t>(i - begin)];
      };
      if (v.layers == 0) one(-1);
      for (int64_t i = v.first_layer; i < v.first_layer + v.layers; ++i)
        if (!plan.buffer(base).per_layer || i == layer) one(i);
    }
  };
  fill_from(id, 0);
  for (const View& copy : views)
    if (copy.buffer == id && !plan.buffer(id).view) fill_from(copy.base, view_offset(plan, rank, copy, layer));
  if (const Buffer& whole = plan.buffer(id); whole.init != Init::none)
    fill_initial(plan, rank, whole, layer < 0 ? -1 : first + layer, out);
}

int64_t vocabulary_of(const Plan& plan) {
  for (const Block& b : plan.blocks)
    for (const Op& o : b.ops)
      if (const auto* c = std::get_if<Compute>(&o.body); c && c->kernel == Kernel::loss_max) return c->dims[1];
  return 0;
}

int64_t tokens_ahead(const Plan& p) {
  int64_t most = 0;
  for (const Buffer& b : p.buffers)
    if (b.role == Role::labels) most = std::max(most, b.elements() / p.micro_batch_size);
  return 1 + std::max<int64_t>(0, most - p.sequence / p.mesh.context_ranks());
}

int64_t sample_of(const Plan& plan, RankId rank, int64_t micro_batch, int64_t row) {
  const int64_t at = micro_batch * plan.mesh.data_ranks() + plan.mesh.data_coordinate(rank);
  return at * plan.micro_batch_size + row % plan.micro_batch_size;
}

int64_t random_token(uint64_t seed, int64_t step, int64_t sample, int64_t position, int64_t vocabulary) {
  WT_CHECK(vocabulary > 0);
  const uint64_t h =
      mix(mix(mix(seed) ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(sample * 100003 + position));
  return static_cast<int64_t>(h % static_cast<uint64_t>(vocabulary));
}

}  // namespace wt::plan
