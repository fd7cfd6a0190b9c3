// Weights that are not trained, and low-rank adapters beside them (LoRA, arXiv:2106.09685; QLoRA, arXiv:2305.14314).
// A frozen weight has no gradient, no weight-gradient product, no optimizer state, and its product keeps no input; the
// gradient still flows through it. An adapter adds alpha / r (x A^T) B^T to a product and trains A and B alone.
// Under tensor parallelism an adapter needs no message of its own: beside a product cut by columns A is whole on every rank
// and B is cut; beside one cut by rows A is cut and the partial results go into the sum that the product needs anyway. What
// is whole has the gradient of one rank's part, which are summed with those of the norms at the end of the step.
// Projections that the plan has as one product (q, k, v; gate and up) get one adapter with as many parameters as theirs.
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"
#include "core/lower/layer_ops.hpp"
#include "core/lower/schedule.hpp"
#include "core/lower/work.hpp"

namespace wt::lower {

using plan::Buffer;
using plan::BufferRef;
using plan::Compute;
using plan::Init;
using plan::Kernel;
using plan::Phase;
using plan::Role;
using plan::Scope;

namespace {

constexpr std::array<const char*, kProducts> kNames = {"qkv", "proj", "fc1", "fc2"};

size_t index(Product p) { return static_cast<size_t>(p); }

/// `all`: each projection of the model has an adapter of its own.
bool targeted(const LoraSpec& l, std::string_view name) {
  if (name != "qkv" && name != "fc1" && std::find(l.targets.begin(), l.targets.end(), "all") != l.targets.end())
    return true;
  return std::find(l.targets.begin(), l.targets.end(), name) != l.targets.end();
}

int base_of(const Context& c, Product p) {
  switch (p) {
    case Product::qkv: return c.id.qkv;
    case Product::proj: return c.id.proj;
    case Product::fc1: return c.id.fc1;
    case Product::fc2: return c.id.fc2;
  }
  return -1;
}

/// Columns that a target of the job adapts; 0: it is not one of the product's.
struct Target {
  std::string_view name;
  int64_t in, out;
};

std::vector<Target> targets_of(const ModelSpec& m, Product p) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, f = m.ffn_hidden;
  switch (p) {
    case Product::qkv:
      return {{"qkv", m.hidden, q + 2 * kv}, {"q", m.hidden, q}, {"k", m.hidden, kv}, {"v", m.hidden, kv}};
    case Product::proj: return {{"proj", q, m.hidden}};
    case Product::fc1:
      if (!m.gated_mlp) return {{"fc1", m.hidden, f}, {"up", m.hidden, f}};
      return {{"fc1", m.hidden, 2 * f}, {"gate", m.hidden, f}, {"up", m.hidden, f}};
    case Product::fc2: return {{"fc2", f, m.hidden}};
  }
  return {};
}

/// The rank of the one adapter that has as many parameters as those of the product's targets.
int64_t rank_of(const ModelSpec& m, const LoraSpec& l, Product p) {
  const std::vector<Target> targets = targets_of(m, p);
  int64_t parameters = 0;
  for (const Target& t : targets)
    if (targeted(l, t.name)) parameters += l.rank * (t.in + t.out);
  const int64_t each = targets.front().in + targets.front().out;
  return parameters == 0 ? 0 : std::max<int64_t>(1, (parameters + each / 2) / each);
}

/// Bytes that bitsandbytes keeps of n elements in nf4: half a byte each, an 8-bit scale for each 64, and one fp32 scale for
/// each 256 of those.
int64_t packed_bytes(int64_t n) { return (n + 1) / 2 + (n + 63) / 64 + (n + 64 * 256 - 1) / (64 * 256) * 4; }

bool sharded(const JobSpec& j) { return has_units(j.strategy); }

}  // namespace

std::vector<JobFault> adapter_faults(const JobSpec& j) {
  std::vector<JobFault> out;
  const LoraSpec& l = j.training.lora;
  if (l.rank == 0) {
    if (l.base != BaseWeights::plain)
      out.push_back(
          {"training.lora.base", "4-bit weights cannot be trained", "with lora.rank above 0, or base: plain"});
    return out;
  }
  const ModelSpec& m = j.model;
  constexpr std::array<std::string_view, 10> kLegal = {"all", "qkv", "q", "k", "v", "proj", "fc1", "gate", "up", "fc2"};
  for (const std::string& t : l.targets) {
    if (std::find(kLegal.begin(), kLegal.end(), t) == kLegal.end())
      out.push_back({"training.lora.targets", fmt::format("'{}' is not a product of a layer", t),
                     "legal: all, or some of qkv or q, k, v; proj; fc1 or gate, up; fc2"});
    else if (t == "gate" && !m.gated_mlp)
      out.push_back({"training.lora.targets", "the model's MLP has no gate", "legal: up, fc2"});
  }
  for (const auto& [whole, parts] :
       {std::pair<std::string_view, std::array<std::string_view, 3>>{"qkv", {"q", "k", "v"}},
        {"fc1", {"gate", "up", "up"}}})
    if (targeted(l, whole) && std::any_of(parts.begin(), parts.end(), [&](auto t) { return targeted(l, t); }))
      out.push_back({"training.lora.targets", fmt::format("'{}' and a part of it are both targets", whole),
                     "one adapter for all of it, or one for each part"});
  if (l.targets.empty())
    out.push_back({"training.lora.targets", "nothing is trained", "such as [qkv, proj, fc1, fc2]"});
  if (m.moe) out.push_back({"training.lora", "adapters of a model with experts cannot be planned yet", ""});
  if (const Schedule* s = find_schedule(j.strategy.schedule); s && s->splits_backward)
    out.push_back({"strategy.schedule", "adapters with a schedule that splits the backward cannot be planned yet",
                   "legal: 1f1b, interleaved, gpipe"});
  if (j.training.fp8_params)
    out.push_back({"training.fp8_params", "frozen weights kept in 8 bits cannot be planned yet", "legal: false"});
  if (m.mla) out.push_back({"training.lora", "adapters of latent attention cannot be planned yet", ""});
  if (l.base == BaseWeights::nf4 && sharded(j))
    out.push_back({"training.lora.base", "4-bit weights in sharded units cannot be planned yet",
                   "legal: data_parallel ddp, megatron, distributed_optimizer or zero1"});
  if (l.base == BaseWeights::nf4 && j.training.compute_dtype == DType::f8)
    out.push_back({"training.lora.base", "fp8 products of 4-bit weights are not made", "legal: bf16, fp16"});
  return out;
}

void make_adapter_parameters(Context& c) {
  const LoraSpec& l = c.training().lora;
  if (l.rank == 0) return;
  const bool cut = c.n.t > 1;
  const auto shard = [&](uint8_t dim, int64_t blocks) {
    return cut ? std::vector<plan::Shard>{{dim, c.tp, blocks}} : std::vector<plan::Shard>{};
  };
  const int64_t blocks = c.model_spec().gated_mlp ? 2 : 1;
  for (const Product p : {Product::qkv, Product::proj, Product::fc1, Product::fc2}) {
    Adapter& a = c.adapters[index(p)];
    a.rank = base_of(c, p) >= 0 ? rank_of(c.model_spec(), l, p) : 0;
    if (a.rank == 0) continue;
    const auto& shape = c.plan.buffer(c.parameters[static_cast<size_t>(base_of(c, p))].weight).shape;
    a.out = shape[0];
    a.in = shape[1];
    const bool columns = p == Product::qkv || p == Product::fc1;
    const std::string name = kNames[index(p)];
    a.a = add_parameter(c, name + ".lora_a", {a.rank, a.in}, columns ? std::vector<plan::Shard>{} : shard(1, 1), true,
                        Init::normal, kSigma);
    a.b = add_parameter(c, name + ".lora_b", {a.out, a.rank},
                        columns ? shard(0, p == Product::fc1 ? blocks : 1) : std::vector<plan::Shard>{}, true,
                        Init::zeros, 0);
    for (const int k : {a.a, a.b})
      if (Parameter& q = c.parameters[static_cast<size_t>(k)]; q.tensor_duplicate) q.partial_over_tensor = true;
  }
}

void note_adapters(const Context& c, std::vector<std::string>& out) {
  const LoraSpec& l = c.training().lora;
  if (l.rank == 0) return;
  int64_t trained = 0;  // of the whole model, whatever it is cut into
  for (const Product p : {Product::qkv, Product::proj, Product::fc1, Product::fc2}) {
    if (base_of(c, p) < 0) continue;
    for (const Target& t : targets_of(c.model_spec(), p))
      if (targeted(l, t.name)) trained += c.model_spec().layers * l.rank * (t.in + t.out);
  }
  const int64_t frozen = count_parameters(c.model_spec()).total();
  out.push_back(fmt::format("adapters of rank {} train {} parameters, {:.3f} % of all; the other {} are frozen", l.rank,
                            trained, 100 * static_cast<double>(trained) / static_cast<double>(trained + frozen),
                            frozen));
  if (l.base == BaseWeights::nf4) out.push_back("4-bit weights are simulated; the executor does not run them");
}

namespace {

/// A pass over `tiles` read and `written` of rows x columns.
Compute pass(const Context& c, Kernel kernel, int64_t columns, int64_t read, int64_t written, int launches) {
  const int64_t tile = c.n.tokens * columns * size_of(c.act);
  return streaming(kernel, c.act, c.n.tokens, columns, read * tile, written * tile, 1, launches);
}

Compute scaled(const Context& c, const Adapter& a) {
  const LoraSpec& l = c.training().lora;
  Compute op = pass(c, Kernel::scale, a.rank, 1, 1, 1);
  op.dims = {c.n.tokens * a.rank};
  op.scalar = (l.alpha > 0 ? l.alpha : 2 * static_cast<double>(l.rank)) / static_cast<double>(l.rank);
  return op;
}

}  // namespace

void make_adapter_layer(Context& c, LayerBuffers& layer, const std::string& suffix, Scope scope) {
  for (size_t p = 0; p < kProducts; ++p) {
    const Adapter& a = c.adapters[p];
    if (a.rank == 0) continue;
    const std::string name = std::string(kNames[p]) + ".lora";
    AdapterBuffers& x = layer.adapters[p];
    const bool f8 = c.narrow();
    x.rank = c.add_layer_buffer(name + suffix, Role::activation, f8 ? Scope::invocation : scope, c.act,
                                {c.n.tokens, a.rank});
    if (f8)
      x.rank_f8 = c.add_layer_buffer(name + "_f8" + suffix, Role::activation, scope, DType::f8, {c.n.tokens, a.rank});
    if (!c.training().lora.dropout) continue;
    x.dropped = c.add_layer_buffer(name + "_dropped" + suffix, Role::activation, scope, c.act, {c.n.tokens, a.in});
    x.mask = c.add_layer_buffer(name + "_mask" + suffix, Role::activation, scope, DType::u8, {c.n.tokens, a.in});
  }
}

void make_adapter_transients(Context& c) {
  for (size_t p = 0; p < kProducts; ++p) {
    Adapter& a = c.adapters[p];
    if (a.rank == 0) continue;
    const std::string name = std::string(kNames[p]) + ".lora";
    const auto make = [&](const char* what, DType dtype, int64_t columns) {
      return c.add_layer_buffer(name + what, Role::transient, Scope::invocation, dtype, {c.n.tokens, columns});
    };
    a.branch = make("_out", c.act, a.out);
    a.d_rank = make("_d_rank", c.act, a.rank);
    a.d_in = make("_d_in", c.act, a.in);
    if (c.narrow()) a.d_rank_f8 = make("_d_rank_f8", DType::f8, a.rank);
  }
}

void adapter_forward(BlockBuilder& b, const Context& c, const LayerBuffers& layer, Product product, int j, Phase phase,
                     BufferRef x, BufferRef y) {
  const Adapter& a = c.adapters[index(product)];
  if (a.rank == 0) return;
  const AdapterBuffers& kept = layer.adapters[index(product)];
  const std::string name = kNames[index(product)];
  if (kept.dropped.valid()) {  // the executor's dropout is that of the job's; this one is storage and time
    const int64_t tile = c.n.tokens * a.in * size_of(c.act);
    Compute op = streaming(Kernel::dropout_forward, c.act, c.n.tokens, a.in, tile, tile + c.n.tokens * a.in, 1);
    op.scalar = 0.1;
    b.compute(name + " lora dropout", phase, op, {x}, {ref(kept.dropped, j), ref(kept.mask, j)});
    x = ref(kept.dropped, j);
  }
  linear(b, c, (name + " lora a").c_str(), phase, x, a.a, -1, j, ref(kept.rank, j), a.rank, a.in);
  b.compute(name + " lora scale", phase, scaled(c, a), {ref(kept.rank, j)}, {ref(kept.rank, j)});
  const BufferRef z = narrowed(b, c, phase, ref(kept.rank, j), ref(kept.rank_f8, j));
  linear(b, c, (name + " lora b").c_str(), phase, z, a.b, -1, j, ref(a.branch, j), a.out, a.rank);
  // Frameworks scale the wide result, a pass of its own, and add it in another.
  b.compute(name + " lora add", phase, pass(c, Kernel::add, a.out, 3, 2, 1), {y, ref(a.branch, j)}, {y});
}

void adapter_input(BlockBuilder& b, const Context& c, const LayerBuffers& layer, Product product, int j,
                   BufferRef d_out, BufferRef d_in) {
  const Adapter& a = c.adapters[index(product)];
  if (a.rank == 0) return;
  const AdapterBuffers& kept = layer.adapters[index(product)];
  const std::string name = kNames[index(product)];
  const Phase input = Phase::backward_input;
  linear_input(b, c, (name + " lora b dgrad").c_str(), d_out, a.b, j, ref(a.d_rank, j), a.out, a.rank);
  Compute scale = scaled(c, a);  // and the scaled result's gradient, as wide as the output
  const int64_t wide = c.n.tokens * a.out * size_of(c.act);
  scale.work.bytes_read += wide;
  scale.work.bytes_written += wide;
  b.compute(name + " lora scale backward", input, scale, {ref(a.d_rank, j)}, {ref(a.d_rank, j)});
  const BufferRef d_rank = narrowed(b, c, input, ref(a.d_rank, j), ref(a.d_rank_f8, j));
  linear_input(b, c, (name + " lora a dgrad").c_str(), d_rank, a.a, j, ref(a.d_in, j), a.rank, a.in);
  if (kept.mask.valid()) {
    const int64_t tile = c.n.tokens * a.in * size_of(c.act);
    Compute op = streaming(Kernel::dropout_backward, c.act, c.n.tokens, a.in, tile + c.n.tokens * a.in, tile, 1);
    op.scalar = 0.1;
    b.compute(name + " lora dropout backward", input, op, {ref(a.d_in, j), ref(kept.mask, j)}, {ref(a.d_in, j)});
  }
  b.compute(name + " lora add gradient", input, pass(c, Kernel::add, a.in, 2, 1, 1), {d_in, ref(a.d_in, j)}, {d_in});
}

void adapter_weight(BlockBuilder& b, const Context& c, const LayerBuffers& layer, Product product, int j,
                    BufferRef d_out, BufferRef x) {
  const Adapter& a = c.adapters[index(product)];
  if (a.rank == 0) return;
  const AdapterBuffers& kept = layer.adapters[index(product)];
  const std::string name = kNames[index(product)];
  const BufferRef z = ref(kept.rank_f8.valid() ? kept.rank_f8 : kept.rank, j);
  const BufferRef d_rank = ref(a.d_rank_f8.valid() ? a.d_rank_f8 : a.d_rank, j);
  linear_weight(b, c, (name + " lora b wgrad").c_str(), d_out, z, a.b, -1, j, a.out, a.rank, 0);
  linear_weight(b, c, (name + " lora a wgrad").c_str(), d_rank, kept.dropped.valid() ? ref(kept.dropped, j) : x, a.a,
                -1, j, a.rank, a.in, 0);
}

void pack_weight(Context& c, Parameter& q) {
  Buffer& w = c.plan.buffers[q.weight.v];
  w.view = false;
  w.role = Role::transient;
  w.scope = Scope::invocation;
  w.init = Init::none;
  w.init_scale = 0;
  Buffer p;
  p.name = q.name + ".nf4";
  p.role = Role::weight;
  p.dtype = DType::u8;
  p.scope = Scope::persistent;
  p.per_layer = q.per_layer;
  p.view = true;
  p.shape = {packed_bytes(q.elements)};
  q.packed = c.add_buffer(std::move(p));
}

void widen_packed(BlockBuilder& b, const Context& c, int parameter, int j, Phase phase) {
  const Parameter& q = c.parameters[static_cast<size_t>(parameter)];
  if (!q.packed.valid()) return;
  const int64_t read = c.plan.buffer(q.packed).bytes().n;
  Compute op = streaming(Kernel::cast, c.act, 1, q.elements, read, q.elements * size_of(c.act), 4, 2);
  op.dims = {q.elements};
  b.compute("widen 4-bit weights", phase, op, {ref(q.packed, j)}, {c.weight(parameter, j)});
}

}  // namespace wt::lower
