// Memory against closed forms: bytes a parameter (facts MG-17, DS), activation bytes a layer (facts 4.8), what users
// measured (P01), and against a replay of every op without summaries.
#include <map>

#include "core/report/report.hpp"
#include "jobs.hpp"

namespace wt::report {
namespace {

constexpr double kGib = 1073741824.0;

int64_t phase_peak(const StageMemory& s, std::string_view phase) {
  for (const PhasePeak& p : s.phases)
    if (p.phase == phase) return p.peak.n;
  return -1;
}
int64_t item(const StageMemory& s, std::string_view name) {
  for (const MemoryItem& i : s.items)
    if (i.name == name) return i.bytes.n;
  return 0;
}

// P01: GPT L=32 h=4096 a=32, fp16, ZeRO-1 on 16 ranks. Printed: 12.39 after the model, 17.04 after the optimizer states;
// gradients come with the first backward.
TEST(Memory, MegatronDeepSpeedLog) {
  const Lowered l = lowered({"model.layers=32", "model.hidden=4096", "model.ffn_hidden=16384", "model.heads=32",
                             "model.vocab=50257", "cluster.nodes=2", "training.precision=fp16",
                             "training.micro_batch=2", "training.global_batch=2048", "framework=megatron_deepspeed"},
                            "{data_parallel: zero1}");
  EXPECT_EQ(l.job.strategy.gradient_dtype, DType::f16);  // the framework's, not said by the job
  const MemoryReport r = memory_report(l.job, l.plan);
  ASSERT_EQ(r.stages.size(), 1u);
  const StageMemory& s = r.stages[0];
  EXPECT_NEAR(static_cast<double>(phase_peak(s, "model built")) / kGib, 12.39, 12.39 * 0.005);
  EXPECT_NEAR(static_cast<double>(phase_peak(s, "master weights built")) / kGib, 13.94, 13.94 * 0.005);
  EXPECT_NEAR(static_cast<double>(phase_peak(s, "optimizer built")) / kGib, 17.04, 17.04 * 0.005);
  // Max_MA between the last two: the states are made by a step on fp32 gradients of zero.
  EXPECT_NEAR(static_cast<double>(phase_peak(s, "start up")) / kGib, 18.58, 18.58 * 0.005);
  EXPECT_GT(phase_peak(s, "backward"), phase_peak(s, "optimizer built") + phase_peak(s, "load"));
}

// product.md names the phases; the device between two steps is what the setup left.
TEST(Memory, PhasesAreThoseOfTheContract) {
  for (const char* strategy :
       {"{data_parallel: megatron}", "{data_parallel: zero1, gradient_dtype: bf16}", "{data_parallel: fsdp}"}) {
    const Lowered l = lowered({}, strategy);
    const StageMemory s = memory_report(l.job, l.plan).stages[0];
    for (const char* phase :
         {"load", "model built", "optimizer built", "forward", "backward", "optimizer", "checkpoint"})
      EXPECT_GT(phase_peak(s, phase), 0) << strategy << ": " << phase;
    EXPECT_LE(phase_peak(s, "load"), phase_peak(s, "model built"));
    EXPECT_GE(phase_peak(s, "checkpoint"), phase_peak(s, "optimizer built"));
    EXPECT_LT(phase_peak(s, "checkpoint"), phase_peak(s, "backward"));
  }
}

// The node's share of a checkpoint, and a process for each device.
TEST(Memory, HostMemoryOfANodeIsItemByItem) {
  const Lowered l = lowered({"cluster.nodes=2"}, "{data_parallel: megatron}");
  const MemoryReport r = memory_report(l.job, l.plan);
  std::map<std::string, double> items;
  double sum = 0;
  for (const MemoryItem& i : r.host_items) sum += items[i.name] = i.bytes.gib();
  EXPECT_NEAR(r.host_gib_per_node, sum, 1e-9);
  EXPECT_NEAR(items.at("checkpoint staged"), r.checkpoint_gib / 2, 1e-6);
  EXPECT_NEAR(items.at("processes"), 8 * 2.0, 1e-9);
}

// FSDP's fp32 shards are weights and master weights in one: 12 bytes a parameter with Adam, not 14.
TEST(Memory, CheckpointOfFsdpHasNoSixteenBitCopy) {
  for (const auto& [strategy, each] : {std::pair{"{data_parallel: fsdp}", 12.0}, {"{data_parallel: megatron}", 14.0}}) {
    const Lowered l = lowered({}, strategy);
    EXPECT_NEAR(memory_report(l.job, l.plan).checkpoint_gib * kGib,
                each * static_cast<double>(count_parameters(l.job.model).total()), 1);
  }
}

// MG-17: bytes a parameter of bf16 weights with fp32 gradients: 18; with the distributed optimizer 6 + 12/d.
TEST(Memory, BytesPerParameter) {
  auto state = [](const char* strategy, std::vector<std::string> more = {}) {
    const Lowered l = lowered(more, strategy);
    const MemoryReport r = memory_report(l.job, l.plan);
    const StageMemory& s = r.stages[0];
    const double n = static_cast<double>(count_parameters(l.job.model).total());
    // The fp32 copy of 16-bit gradients is there in the update only.
    const double bytes = static_cast<double>(
        std::max({phase_peak(s, "optimizer built"), phase_peak(s, "model built"), phase_peak(s, "optimizer")}));
    return bytes / n;
  };
  EXPECT_NEAR(state("{data_parallel: megatron}"), 18, 0.02);
  EXPECT_NEAR(state("{data_parallel: distributed_optimizer}"), 6 + 12.0 / 8, 0.02);
  EXPECT_NEAR(state("{data_parallel: distributed_optimizer, gradient_dtype: bf16}"), 4 + 12.0 / 8 + 4.0 / 8, 0.02);
  EXPECT_NEAR(state("{data_parallel: ddp}", {"training.precision=fp32"}), 16, 0.02);
}

// DeepSpeed's fp16 step: 16-bit weights and gradients, 12/d of states, and of what the rank owns a flat copy and an fp32
// one (DS-6). One layer is a small part, so the embedding's 64-bit norm copy of 8 bytes an element is the other high point.
TEST(Memory, DeepSpeedStep) {
  const Lowered l =
      lowered({"training.precision=fp16", "model.vocab=128", "model.max_context=128", "training.seq_len=128"},
              "{data_parallel: zero1, gradient_dtype: fp16}");
  const double n = static_cast<double>(count_parameters(l.job.model).total());
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  EXPECT_NEAR(static_cast<double>(phase_peak(s, "optimizer")) / n, 4 + 18.0 / 8, 0.03);

  const Lowered one = lowered({"training.precision=fp16", "model.layers=1", "training.seq_len=128",
                               "cluster.node.devices=1", "training.global_batch=4"},
                              "{data_parallel: zero1, gradient_dtype: fp16}");
  const double m = static_cast<double>(count_parameters(one.job.model).total());
  const double step = static_cast<double>(phase_peak(memory_report(one.job, one.plan).stages[0], "optimizer"));
  EXPECT_NEAR(step, 16 * m + 8 * 51200.0 * 1024, 0.01 * step);
}

// DeepSpeed's bf16 optimizer (P59 is of this kind): fp32 gradients are not sharded and autograd's stay beside them.
TEST(Memory, DeepSpeedBf16Gradients) {
  const Lowered l = lowered({"model.vocab=128", "model.max_context=128", "training.seq_len=128"},
                            "{data_parallel: zero1, gradient_dtype: fp32, gradient_copies: none}");
  const double n = static_cast<double>(count_parameters(l.job.model).total());
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  EXPECT_NEAR(static_cast<double>(item(s, "weights") + item(s, "gradients") + item(s, "master weights") +
                                  item(s, "optimizer states")) /
                  n,
              8 + 12.0 / 8, 0.03);
}

// What a pipeline engine keeps: p - r hidden states for the output, as many for a cloned input.
TEST(Memory, KeptEdges) {
  auto activations = [](const char* kept, size_t stage) {
    const Lowered l =
        lowered({"model.vocab=128", std::string("strategy.kept_edges=") + kept}, "{pipeline: 4, tensor: 2}");
    return memory_report(l.job, l.plan).stages[stage].peak.n;
  };
  const int64_t hidden = 2048 * 1024 * 2;
  EXPECT_EQ(activations("2", 1) - activations("1", 1), 3 * hidden);
  EXPECT_EQ(activations("1", 0) - activations("0", 0), 4 * hidden);  // the one that is being sent back is kept too
  EXPECT_EQ(activations("2", 0), activations("1", 0));               // nothing is received
}

TEST(Memory, ReductionsThroughCopies) {
  const Lowered flat = lowered({}, "{data_parallel: zero1, gradient_copies: flat_wide, gradient_dtype: bf16}");
  int64_t bytes = 0;
  bool wide = false;
  for (const plan::Buffer& b : flat.plan.buffers) wide |= b.name.starts_with("grads_wide") && b.dtype == DType::f32;
  for (const plan::Block& b : flat.plan.blocks)
    for (const plan::Op& op : b.ops)
      if (op.name.starts_with("dp all-reduce")) bytes += std::get<plan::Collective>(op.body).bytes;
  EXPECT_TRUE(wide);
  EXPECT_NEAR(static_cast<double>(bytes), 4.0 * static_cast<double>(count_parameters(flat.job.model).total()),
              0.001 * static_cast<double>(bytes));
}

// Korthikanti et al.: bytes that one more layer keeps for one more micro-batch (16-bit, dropout, GPT).
struct Case {
  const char* strategy;
  int64_t t;
  double sbh, sbh_over_t, scores;
};
class ActivationBytes : public ::testing::TestWithParam<Case> {};

TEST_P(ActivationBytes, PerLayer) {
  const Case c = GetParam();
  auto activations = [&](const char* layers) {
    const Lowered l = lowered({"training.dropout=true", std::string("model.layers=") + layers,
                               "strategy.tensor=" + std::to_string(c.t), "model.vocab=128"},
                              c.strategy);
    return memory_report(l.job, l.plan);
  };
  const MemoryReport a = activations("40"), b = activations("41");
  const double grown = static_cast<double>(item(b.stages[0], "activations") - item(a.stages[0], "activations"));
  const double s = 2048, h = 1024, heads = 16, t = static_cast<double>(c.t);
  const double formula = s * h * (c.sbh + c.sbh_over_t / t) + c.scores * heads * s * s / t;
  EXPECT_NEAR(grown / formula, 1, 0.02) << grown / (s * h) << " sbh, formula " << formula / (s * h);
}
INSTANTIATE_TEST_SUITE_P(Korthikanti, ActivationBytes,
                         ::testing::Values(Case{"{attention: unfused}", 1, 34, 0, 5},
                                           Case{"{attention: unfused}", 4, 10, 24, 5},
                                           Case{"{attention: unfused, sequence_parallel: true}", 4, 0, 34, 5},
                                           Case{"{attention: unfused, recompute: selective}", 4, 10, 24, 0},
                                           Case{"{sequence_parallel: true}", 4, 0, 34, 0},
                                           Case{"{recompute: full}", 1, 2, 0, 0},
                                           Case{"{recompute: full, sequence_parallel: true}", 4, 0, 2, 0}));

// 1F1B keeps p - r micro-batches on stage r: the first stage is the fullest, though layers are balanced.
TEST(Memory, FirstStageHoldsMoreMicroBatches) {
  const Lowered l = lowered({"model.vocab=128"}, "{pipeline: 4, tensor: 2}");
  const MemoryReport r = memory_report(l.job, l.plan);
  ASSERT_EQ(r.stages.size(), 4u);
  EXPECT_EQ(r.peak_stage, 0u);
  const double one = static_cast<double>(item(r.stages[3], "activations"));
  for (int64_t stage = 0; stage < 4; ++stage)
    EXPECT_NEAR(static_cast<double>(item(r.stages[static_cast<size_t>(stage)], "activations")) / one,
                static_cast<double>(4 - stage), 0.15)
        << stage;
}

// The logits of the last stage: 16-bit, fp32 and the gradient (P31).
TEST(Memory, CopiesOfTheLogitsAreAnItem) {
  const Lowered l = lowered({});
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  const double one = 2048.0 * 51200 * 2;
  EXPECT_GE(static_cast<double>(item(s, "logits")), 3 * one);
}

// The summaries against plain replay of every op, with the composition at the peak.
TEST(Memory, SummariesEqualPlainReplay) {
  for (const char* strategy :
       {"{pipeline: 4, tensor: 2, data_parallel: distributed_optimizer}", "{tensor: 2, recompute: full}",
        "{pipeline: 2, tensor: 1, virtual_stages: 3, schedule: interleaved}",
        "{recompute: selective, attention: unfused}"}) {
    const Lowered l = lowered({}, strategy);
    const MemoryReport r = memory_report(l.job, l.plan);
    for (const plan::Program& program : l.plan.programs) {
      int64_t now = 0, peak = 0;
      auto run = [&](const std::vector<plan::Invocation>& order) {
        for (const plan::Invocation& i : order) {
          const plan::Block& block = l.plan.block(i.block);
          plan::for_each_op(block, [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
            for (uint32_t k = 0; k < op.reserves.count; ++k)
              now += l.plan.buffer(block.refs[op.reserves.begin + k].buffer).bytes().n;
            peak = std::max(peak, now);
            for (uint32_t k = 0; k < op.releases.count; ++k)
              now -= l.plan.buffer(block.refs[op.releases.begin + k].buffer).bytes().n;
          });
        }
      };
      run(program.setup);
      const int64_t after_setup = now;
      run(program.steps[0].order);
      EXPECT_EQ(now, after_setup) << strategy;
      const StageMemory& s = r.stages[static_cast<size_t>(program.when.values.empty() ? 0 : program.when.values[0])];
      EXPECT_EQ(s.peak.n, peak) << strategy;
      int64_t items = 0;
      for (const MemoryItem& i : s.items) items += i.bytes.n;
      EXPECT_EQ(items, peak);
      int64_t highest = 0;
      for (const PhasePeak& p : s.phases) highest = std::max(highest, p.peak.n);
      EXPECT_EQ(highest, peak);
      EXPECT_EQ(s.reserved.n, s.peak.n + s.cached.n + s.context.n + s.communicators.n + s.fragmentation.n);
    }
  }
}

TEST(Memory, Verdicts) {
  auto of = [](int64_t reserved) { return verdict({reserved}, {1000}); };
  EXPECT_EQ(of(0), "fits");
  EXPECT_EQ(of(919), "fits");
  EXPECT_EQ(of(920), "tight");
  EXPECT_EQ(of(969), "tight");
  EXPECT_EQ(of(971), "borderline");
  EXPECT_EQ(of(1029), "borderline");
  EXPECT_EQ(of(1031), "out_of_memory");
}

TEST(Memory, FragmentationAndContextAreAdded) {
  const Lowered l = lowered({"training.fragmentation=0.1"}, "{tensor: 8}");
  const StageMemory s = memory_report(l.job, l.plan).stages[0];
  EXPECT_EQ(s.fragmentation.n, static_cast<int64_t>(static_cast<double>(s.peak.n) * 0.1));
  EXPECT_EQ(s.context, l.job.cluster.device.context_memory);
  EXPECT_EQ(s.communicator_count, 2);  // tensor, and the same ranks again for the gradient norm
}

// P100: 8 B parameters are 96 GB with fp32 weights and moments; bf16 weights beside fp32 master add 2 bytes.
TEST(Memory, CheckpointSize) {
  const Lowered l = lowered({});
  const double n = static_cast<double>(count_parameters(l.job.model).total());
  EXPECT_NEAR(memory_report(l.job, l.plan).checkpoint_gib, 14 * n / kGib, 1e-6);
}

// FS1-10, FS2-9, DS-7: what a rank holds when the optimizer works, in bytes a parameter. DeepSpeed's own estimators say
// 2 + 18/d and 18/d: that of stage 3 counts 2 bytes for shards and gradients together.
TEST(Memory, ShardedUnitsBytesPerParameter) {
  auto at_update = [](const char* strategy) {
    const Lowered l = lowered({}, strategy);
    const MemoryReport r = memory_report(l.job, l.plan);
    const double n = static_cast<double>(count_parameters(l.job.model).total());
    return static_cast<double>(phase_peak(r.stages[0], "optimizer")) / n;
  };
  EXPECT_NEAR(at_update("{data_parallel: fsdp}"), 16.0 / 8, 0.01);
  EXPECT_NEAR(at_update("{data_parallel: fsdp2}"), 16.0 / 8, 0.01);
  EXPECT_NEAR(at_update("{data_parallel: fsdp, fsdp: {sharding: no_shard}}"), 16, 0.01);
  EXPECT_NEAR(at_update("{data_parallel: fsdp, fsdp: {sharding: hybrid_shard, shard_size: 4}}"), 16.0 / 4, 0.01);
  EXPECT_NEAR(at_update("{data_parallel: zero2, gradient_dtype: bf16}"), 2 + 18.0 / 8, 0.01);
  EXPECT_NEAR(at_update("{data_parallel: zero3, gradient_dtype: bf16, zero: {persistence_threshold: 0}}"), 20.0 / 8,
              0.01);
}

// The forward of one token holds shards, the root and few blocks: with FSDP 1 two, since a block's memory can be used again
// only when its kernels are over; SHARD_GRAD_OP holds them all. A gather begins with a 16-bit copy of the shard.
TEST(Memory, BlocksThatAreGathered) {
  auto forward = [](const std::string& fsdp) {
    const Lowered l = lowered({"training.seq_len=1", "model.max_context=128", "training.global_batch=8"},
                              "{data_parallel: fsdp, fsdp: " + fsdp + "}");
    const MemoryReport r = memory_report(l.job, l.plan);
    return static_cast<double>(phase_peak(r.stages[0], "forward"));
  };
  const double block = 12.0 * 1024 * 1024 + 13 * 1024, root = (51200 + 128 + 2) * 1024.0, layers = 24;
  const double kept = 12.0 / 8 * (layers * block + root) + 2 * root, copy = 2.0 / 8, slack = 0.1 * block;
  EXPECT_NEAR(forward("{}"), kept + (2 * 2 + copy) * block, slack);
  EXPECT_NEAR(forward("{forward_prefetch: true}"), kept + (3 * 2 + copy) * block, slack);
  EXPECT_NEAR(forward("{sharding: shard_grad_op}"), kept + (layers * 2 + copy) * block, slack);
  EXPECT_NEAR(forward("{wrap: model}"), kept + layers * 2 * block + copy * (layers * block + root), slack);
}

}  // namespace
}  // namespace wt::report
