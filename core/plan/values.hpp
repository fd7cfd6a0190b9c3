// What tensors hold before the first step, and where an element of a rank's shard lies in the whole tensor: the same
// weights and the same batch under every strategy. Pure functions of the plan; storage and training belong to who runs it.
// Invariant: a value depends on (seed, tensor, layer of the model, global index) alone, never on the mesh.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/plan/plan.hpp"

namespace wt::plan {

/// Spreads the bits of a key (splitmix64) or of a name.
uint64_t mix(uint64_t key);
uint64_t mix(std::string_view name);

/// The name by which copies of one weight on several stages are the same tensor: up to "_copy".
std::string_view weight_name(const Buffer&);

/// Row-major index in the unsharded tensor of element `local` of what `rank` holds.
int64_t global_index(const Plan&, RankId rank, const Buffer&, int64_t local);

/// Where a view of the part lies; nothing if the part does not place the buffer. `layer` of the chunk, -1: of no layer.
const View* view_of(const Part&, BufferId, int64_t layer);
/// First element of the view in its base.
int64_t view_offset(const Plan&, RankId rank, const View&, int64_t layer);

/// Values of one initialised tensor (Buffer::init) on a rank; `model_layer` -1: of no layer.
void fill_initial(const Plan&, RankId rank, const Buffer&, int64_t model_layer, std::span<double> out);
/// What a Join of the setup writes to a buffer: every initialised view in it (or in the range of which it is a copy, see
/// View), zero between them. `layer` of the chunk.
void load_initial(const Plan&, RankId rank, int64_t chunk, BufferId, int64_t layer, std::span<double> out);

/// Tokens of the model's vocabulary, padding left out; 0 if the plan has no loss.
int64_t vocabulary_of(const Plan&);
/// Positions beyond a sequence of which a sample has tokens: labels are those of the next one, and with multi-token
/// prediction of more.
int64_t tokens_ahead(const Plan&);
/// The number in the global batch of the sample that stands in `row` of a micro-batch (rows are sequence-major).
int64_t sample_of(const Plan&, RankId rank, int64_t micro_batch, int64_t row);
/// A uniformly drawn token: training on these shows that strategies agree, not that a model learns.
int64_t random_token(uint64_t seed, int64_t step, int64_t sample, int64_t position, int64_t vocabulary);

}  // namespace wt::plan
