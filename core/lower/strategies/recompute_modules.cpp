// Selective recomputation: named parts of a layer leave nothing for the backward but what they read, and are run again
// before the first gradient that needs their inside. Which ops those are is not written down anywhere: it follows from the
// buffers that a part does not keep, traced back through the ops of the layer's forward to what is kept.
// Parts run to their last op, as Megatron's checkpoints do; those whose output is dropped too end there by themselves.
#include <fmt/format.h>

#include <algorithm>

#include "core/lower/context.hpp"

namespace wt::lower {

using plan::BufferRef;
using plan::Op;
using plan::Phase;
using plan::Scope;

namespace {

using Ids = std::vector<BufferId>;

bool has_dense(const ModelSpec& m) { return has_layers(m, LayerKind::dense); }
bool has_experts(const ModelSpec& m) { return m.moe.has_value(); }

struct Module {
  std::string_view name;
  bool (*in)(const ModelSpec&);  // models that have the part
  Ids (*drops)(const LayerBuffers&);
  Ids (*ends)(
      const Context&);     // the output where it is run again although it is kept: the first of these that is written
  bool attention = false;  // what it remakes is needed from attention's backward on
};

constexpr Module kModules[] = {
    {"core_attn", [](const ModelSpec&) { return true; },
     [](const LayerBuffers&) { return Ids{}; },  // buffers.cpp gives the inside of attention its scope
     [](const Context& c) { return Ids{c.saved.attention}; }, true},
    {"layernorm", [](const ModelSpec&) { return true; },
     [](const LayerBuffers& l) {
       return Ids{l.norm1,        l.norm1_normed, l.norm1_wide, l.norm1_full, l.norm2,
                  l.norm2_normed, l.norm2_wide,   l.norm2_full, l.moe.in};
     },
     nullptr},
    {"mla_up_proj", [](const ModelSpec& m) { return m.mla.has_value(); },
     [](const LayerBuffers& l) {
       return Ids{l.attention_in, l.latent.q_normed, l.latent.kv_normed, l.latent.q_normed_f8, l.latent.kv_normed_f8};
     },
     nullptr},
    {"mlp", has_dense,
     [](const LayerBuffers& l) {
       return Ids{l.fc1, l.gate, l.activation, l.activation_f8};
     },
     [](const Context& c) {
       return Ids{c.tmp.fc2_sum, c.tmp.fc2};
     }},
    {"moe", has_experts,
     [](const LayerBuffers& l) {
       const ExpertBuffers& m = l.moe;
       return Ids{m.router_probs, m.router_map,          m.weights,    m.experts,           m.rows,    m.row_weights,
                  m.fc1,          m.activation,          m.shared_fc1, m.shared_activation, m.rows_f8, m.activation_f8,
                  m.shared_in_f8, m.shared_activation_f8};
     },
     [](const Context& c) {
       return Ids{c.expert.sum, c.expert.mixed};
     }},
    {"moe_act", has_experts,
     [](const LayerBuffers& l) {
       return Ids{l.moe.activation, l.moe.activation_f8};
     },
     nullptr},
    {"shared_experts", [](const ModelSpec& m) { return m.moe && m.moe->shared_ffn_hidden > 0; },
     [](const LayerBuffers& l) {
       return Ids{l.moe.shared_fc1, l.moe.shared_activation, l.moe.shared_activation_f8};
     },
     [](const Context& c) {
       return Ids{c.expert.shared_sum, c.expert.shared_out};
     }},
    // Of plain layers, in torch's terms: every activation function, and the sum after attention with the product before it.
    {"act", [](const ModelSpec&) { return true; },
     [](const LayerBuffers& l) {
       return Ids{l.gate,
                  l.activation,
                  l.activation_f8,
                  l.moe.activation,
                  l.moe.activation_f8,
                  l.moe.shared_activation,
                  l.moe.shared_activation_f8};
     },
     nullptr},
    {"residual", [](const ModelSpec& m) { return !m.parallel_block; },
     [](const LayerBuffers& l) {
       return Ids{l.residual, l.residual_mask};
     },
     nullptr},
};

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(", "), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::vector<const Module*> modules_of(const StrategySpec& s) {
  std::vector<const Module*> out;
  if (s.recompute.kind != RecomputeKind::selective) return out;
  const std::vector<std::string_view> words = words_of(s.recompute.modules);
  for (const Module& m : kModules)
    if (std::ranges::find(words, m.name) != words.end() || (words.empty() && m.name == "core_attn")) out.push_back(&m);
  return out;
}

bool contains(const std::vector<BufferRef>& refs, const BufferRef& r) {
  return std::ranges::find(refs, r) != refs.end();
}

template <class F>
void each(const plan::Block& block, const plan::Range& range, F f) {
  for (uint32_t i = range.begin; i < range.begin + range.count; ++i) f(block.refs[i]);
}

/// The ops of the forward that make `needed` from what is kept.
std::vector<uint8_t> ops_that_make(const plan::Plan& plan, const plan::Block& forward, std::vector<BufferRef> needed) {
  std::vector<uint8_t> wanted(forward.ops.size(), 0);
  for (size_t k = forward.ops.size(); k-- > 0;) {
    const Op& o = forward.ops[k];
    each(forward, o.writes, [&](const BufferRef& r) { wanted[k] |= contains(needed, r); });
    if (!wanted[k]) continue;
    each(forward, o.writes, [&](const BufferRef& r) { std::erase(needed, r); });
    each(forward, o.reads, [&](const BufferRef& r) {
      if (plan.buffer(r.buffer).scope == Scope::invocation && !contains(needed, r)) needed.push_back(r);
    });
  }
  if (std::ranges::find(wanted, 1) == wanted.end()) wanted.clear();
  return wanted;
}

/// Of one kind of layer, from a layer built aside.
RemadeOps remade_ops(const Context& c, LayerKind kind, const std::vector<const Module*>& modules) {
  BlockBuilder f(c.plan, "forward", {}, BlockBuilder::Lifetimes::forward);
  f.segment(0);
  layer_forward(f, c, c.saved, 0, kind, ref(c.edge.hidden), ref(c.tmp.flow, 1), Phase::recompute);
  const plan::Block forward = f.finish();
  BlockBuilder b(c.plan, "backward", {}, BlockBuilder::Lifetimes::backward);
  b.segment(0);
  layer_backward(b, c, c.saved, 0, kind, ref(c.edge.hidden), ref(c.tmp.d_hidden, 1), ref(c.tmp.d_hidden));
  const std::vector<uint32_t> stages = b.marks();
  const plan::Block backward = b.finish();

  RemadeOps out;
  std::vector<BufferRef> there;  // written by the backward itself, or remade for an earlier stage
  for (size_t stage = 0; stage < out.wanted.size(); ++stage) {
    std::vector<BufferRef> needed;
    const size_t end = stage + 1 < stages.size() ? stages[stage + 1] : backward.ops.size();
    for (size_t k = stages[stage]; k < end; ++k) {
      each(backward, backward.ops[k].reads, [&](const BufferRef& r) {
        if (c.plan.buffer(r.buffer).scope == Scope::invocation && !contains(there, r) && !contains(needed, r))
          needed.push_back(r);
      });
      each(backward, backward.ops[k].writes, [&](const BufferRef& r) { there.push_back(r); });
    }
    for (const Module* m : modules) {
      if (!m->ends || m->attention != (stage == 1)) continue;
      for (const BufferId id : m->ends(c)) {
        const bool written = id.valid() && std::ranges::any_of(forward.ops, [&](const Op& o) {
                               bool hit = false;
                               each(forward, o.writes, [&](const BufferRef& r) { hit |= r == ref(id); });
                               return hit;
                             });
        if (!written) continue;
        needed.push_back(ref(id));
        break;
      }
    }
    out.wanted[stage] = ops_that_make(c.plan, forward, needed);
    for (size_t k = 0; k < out.wanted[stage].size(); ++k)
      if (out.wanted[stage][k])
        each(forward, forward.ops[k].writes, [&](const BufferRef& r) {
          const plan::Buffer& buffer = c.plan.buffer(r.buffer);
          if (buffer.scope == Scope::invocation) out.written.push_back(r.buffer);
          if (buffer.role == plan::Role::activation) there.push_back(r);
        });
  }
  return out;
}

}  // namespace

bool recomputes_core_attention(const StrategySpec& s) {
  const auto modules = modules_of(s);
  return std::ranges::any_of(modules, [](const Module* m) { return m->name == "core_attn"; });
}

Diagnostics check_recompute_modules(const JobSpec& job) {
  Diagnostics faults;
  for (const std::string_view word : words_of(job.strategy.recompute.modules)) {
    const auto* const found = std::ranges::find(kModules, word, &Module::name);
    std::vector<std::string_view> legal;
    for (const Module& m : kModules)
      if (m.in(job.model)) legal.push_back(m.name);
    if (word == "layernorm" && job.training.compute_dtype == DType::f8 && job.training.norm_kernel != NormKernel::fused)
      faults.push_back({"strategy.recompute.modules",
                        "layernorm with fp8 products and norms of plain ops cannot be planned",
                        "legal: training.norm_kernel: fused"});
    if (found == std::end(kModules))
      faults.push_back({"strategy.recompute.modules", fmt::format("unknown part '{}'", word),
                        fmt::format("legal: {}", fmt::join(legal, ", "))});
    else if (!found->in(job.model))
      faults.push_back({"strategy.recompute.modules", fmt::format("the model has no part '{}'", word),
                        fmt::format("legal: {}", fmt::join(legal, ", "))});
  }
  return faults;
}

void drop_modules(Context& c) {
  const auto modules = modules_of(c.strategy());
  if (modules.empty()) return;
  for (const Module* m : modules)
    for (const BufferId id : m->drops(c.saved))
      if (id.valid()) c.plan.buffers[id.v].scope = Scope::invocation;
  for (const LayerKind kind : {LayerKind::dense, LayerKind::experts})
    if (has_layers(c.model_spec(), kind)) c.remade_ops[static_cast<size_t>(kind)] = remade_ops(c, kind, modules);
}

void remake(BlockBuilder& b, const Context& c, const LayerBuffers& l, int j, LayerKind kind, BufferRef in, int stage) {
  b.mark();
  const RemadeOps& ops = c.remade_ops[static_cast<size_t>(without_window(kind))];
  const std::vector<uint8_t>& wanted = ops.wanted[static_cast<size_t>(stage)];
  if (wanted.empty()) return;
  b.only(wanted);
  layer_forward(b, c, l, j, kind, in, ref(c.tmp.flow, j + 1), Phase::recompute);
  b.only({});
  for (const BufferId id : ops.written) b.discard(ref(id, j));
}

}  // namespace wt::lower
