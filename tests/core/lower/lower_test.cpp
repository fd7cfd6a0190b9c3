// Lowering against closed forms that do not use its code: parameters of all ranks add up to the model's, bytes on the wire
// follow the identities of the frameworks, buckets close where they should, and every illegal job is refused with its keys.
#include "core/lower/lower.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "small_job.hpp"

namespace wt::lower {
namespace {

JobSpec tiny_job() {
  JobSpec j = small_job({.layers = 8, .vocab = 1000});
  j.name = "tiny";
  j.training.micro_batch = 2;
  j.training.global_batch = 64;
  return j;
}

struct Traffic {
  std::map<std::string, double> bytes;  // by "<group> <kind>", per rank of program 0 unless asked otherwise
  double sent = 0;
};

Traffic traffic(const plan::Plan& p, size_t program) {
  Traffic t;
  for (const auto& i : p.programs[program].steps[0].order)
    plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      if (const auto* c = std::get_if<plan::Collective>(&op.body))
        t.bytes[p.group(c->group).name + " " + std::string(plan::to_text(c->kind))] += static_cast<double>(c->bytes);
      if (const auto* s = std::get_if<plan::Send>(&op.body)) t.sent += static_cast<double>(s->bytes);
    });
  return t;
}

double matrix_flops(const plan::Plan& p) {
  double flops = 0;
  for (size_t g = 0; g < p.programs.size(); ++g)
    for (const auto& i : p.programs[g].steps[0].order)
      plan::for_each_op(p.block(i.block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
        const auto* c = std::get_if<plan::Compute>(&op.body);
        if (c && (c->kernel == plan::Kernel::gemm || c->kernel == plan::Kernel::attention_forward ||
                  c->kernel == plan::Kernel::attention_backward))
          flops += c->work.flops;
      });
  return flops * static_cast<double>(p.mesh.ranks()) / static_cast<double>(p.programs.size());
}

TEST(Lower, ParametersOfAllRanksAddUpToTheModel) {
  for (const bool tied : {false, true})
    for (const auto& [t, p, v] : {std::tuple{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 2}, {4, 2, 1}, {1, 4, 2}}) {
      JobSpec j = tiny_job();
      j.model.tied_embeddings = tied;
      j.strategy.tensor = t;
      j.strategy.pipeline = p;
      j.strategy.virtual_stages = v;
      j.strategy.schedule = v > 1 ? "interleaved" : "1f1b";
      auto r = lower(j);
      ASSERT_TRUE(r.ok()) << to_text(r.errors());
      int64_t sharded = 0, copies = 0;
      for (const auto& g : r.value().programs)
        for (const PartId part : g.chunks) {
          std::map<uint32_t, int64_t> layers;  // of each weight buffer that is a view in this part
          for (const auto& view : r.value().parts[part.v].views) {
            const auto& b = r.value().buffer(view.buffer);
            if (b.role == plan::Role::weight && !view.shard_group.valid())
              layers[view.buffer.v] += std::max<int64_t>(1, view.layers);
          }
          for (const auto& [id, count] : layers) {
            const auto& b = r.value().buffers[id];
            const int64_t whole = b.elements() * (b.shards.empty() ? 1 : t) * count;
            (b.name == "embedding_copy" ? copies : sharded) += whole;
          }
        }
      EXPECT_EQ(sharded, count_parameters(j.model).total()) << "tensor " << t << " pipeline " << p << " tied " << tied;
      EXPECT_EQ(copies, tied && p > 1 ? 1000 * 64 : 0);
    }
}

TEST(Lower, MatrixFlopsAreThoseOfTheModel) {
  // 6 per weight and token (embedding look-up excluded, head included) + causal attention, 2 + 5 products of 2 s^2 d / 2.
  JobSpec j = tiny_job();
  const auto n = count_parameters(j.model);
  const double tokens = 64.0 * 128;
  const double weights = static_cast<double>(n.attention + n.mlp + n.head);
  const double attention = 8.0 * 64 * (4 + 10) * 0.5 * 128.0 * 128 * 64;
  for (const auto& [t, p] : {std::pair{1, 1}, {2, 1}, {4, 2}}) {
    j.strategy.tensor = t;
    j.strategy.pipeline = p;
    auto r = lower(j);
    ASSERT_TRUE(r.ok());
    EXPECT_NEAR(matrix_flops(r.value()) / (6 * weights * tokens + attention), 1.0, 1e-12);
  }
  j.strategy.tensor = j.strategy.pipeline = 1;
  j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::uniform, 1};  // one more forward of the layers
  const double again = 2 * static_cast<double>(n.attention + n.mlp) * tokens + attention * 4 / 14;
  EXPECT_NEAR(matrix_flops(lower(j).value()) / (6 * weights * tokens + attention + again), 1.0, 1e-12);
  j.strategy.recompute.early_stop = true;  // but not of the last product, whose output nobody needs
  const double left_out = 2.0 * static_cast<double>(j.model.layers * j.model.ffn_hidden * j.model.hidden) * tokens;
  EXPECT_NEAR(matrix_flops(lower(j).value()) / (6 * weights * tokens + attention + again - left_out), 1.0, 1e-12);
  j.training.dropout = true;  // the mask behind it is needed
  EXPECT_NEAR(matrix_flops(lower(j).value()) / (6 * weights * tokens + attention + again), 1.0, 1e-12);
}

/// Bytes that the kernels of a name move, each op once.
double bytes_named(const JobSpec& j, std::string_view name) {
  auto r = lower(j);
  EXPECT_TRUE(r.ok()) << to_text(r.errors());
  double bytes = 0;
  for (const plan::Block& block : r.value().blocks)
    for (const plan::Op& op : block.ops)
      if (const auto* kernel = std::get_if<plan::Compute>(&op.body); kernel && op.name == name)
        bytes += static_cast<double>(kernel->work.bytes_read + kernel->work.bytes_written);
  return bytes;
}

TEST(Lower, WhatFrameworksDoInMorePasses) {
  JobSpec j = tiny_job();
  // Adam: 28 bytes a parameter and the 16-bit copy; torch's operations 80, 8 for the clipped gradient, 6 for the copy.
  const double fused = bytes_named(j, "adam");
  j.training.fused_optimizer = false;
  EXPECT_NEAR(bytes_named(j, "adam") / fused, (80.0 + 8 + 6) / 30, 1e-9);
  // The gradients of q, k and v, read and written once more.
  EXPECT_EQ(bytes_named(j, "join qkv gradients"), 0);
  j.training.packed_qkv_gradient = false;
  EXPECT_GT(bytes_named(j, "join qkv gradients"), 0);
  // A scale of the tensor's own maximum: read twice, 4 + 2 bytes for 2 + 2.
  j.training.compute_dtype = DType::f8;
  const double delayed = bytes_named(j, "fp8 cast");
  j.training.fp8_recipe = Fp8Recipe::current;
  EXPECT_NEAR(bytes_named(j, "fp8 cast") / delayed, 1.5, 1e-9);
  // Each metric: cast to fp32, log_softmax; 14 bytes a logit.
  j.training.loss_metrics = 2;
  const double logits = static_cast<double>(j.training.micro_batch * j.training.seq_len * j.model.vocab);
  EXPECT_GE(bytes_named(j, "metric cast") + bytes_named(j, "metric loss"), 2 * 14 * logits);
}

TEST(Lower, TensorTrafficPerLayerAndMicroBatch) {
  // Without sequence parallelism 4 all-reduces of s b h (8 units), with it 10 units: facts MG-3, MG-4.
  JobSpec j = tiny_job();
  j.strategy.tensor = 4;
  const double sbh = 128.0 * 2 * 64 * 2, micro_batches = 64.0 / (2 * 2), layers = 8;
  auto plain = traffic(lower(j).value(), 0);
  // + embedding, logits' input gradient, loss (3 x fp32 per token)
  const double edges = 2 * sbh + 3 * 128 * 2 * 4;
  EXPECT_DOUBLE_EQ(plain.bytes["tp all_reduce"], micro_batches * (layers * 4 * sbh + edges));
  EXPECT_EQ(plain.bytes.count("tp all_gather"), 0u);

  j.strategy.sequence_parallel = true;
  auto sp = traffic(lower(j).value(), 0);
  EXPECT_DOUBLE_EQ(
      sp.bytes["tp all_gather"] + sp.bytes["tp reduce_scatter"],
      micro_batches * (layers * 10 * sbh + 5 * sbh));  // edges: RS embedding, AG+RS+AG logits, AG d_embedding
}

TEST(Lower, DataTrafficFollowsTheIdentities) {
  JobSpec j = tiny_job();
  const double n = static_cast<double>(count_parameters(j.model).total());
  const double tolerance = 0.01;  // bucket padding
  {
    auto t = traffic(lower(j).value(), 0);
    EXPECT_NEAR(t.bytes["dp all_reduce"] / (4 * n), 1, tolerance);  // DDP: the gradient dtype is fp32 here
  }
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  for (const bool overlap : {false, true}) {
    j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = overlap;
    j.strategy.bucket_elements = 100000;
    auto t = traffic(lower(j).value(), 0);
    EXPECT_NEAR(t.bytes["dp reduce_scatter"] / (4 * n), 1, tolerance);
    EXPECT_NEAR(t.bytes["dp all_gather"] / (2 * n), 1, tolerance);
  }
  j.strategy.overlap_grad_reduce = j.strategy.overlap_param_gather = false;
  j.strategy.data_parallel = DataParallel::zero1;
  j.strategy.gradient_dtype = DType::bf16;
  auto t = traffic(lower(j).value(), 0);
  EXPECT_NEAR(t.bytes["dp all_reduce"] / (2 * n), 1, tolerance);
  EXPECT_NEAR(t.bytes["dp all_gather"] / (2 * n), 1, tolerance);
}

TEST(Lower, PipelineSendsEveryBoundaryOnce) {
  JobSpec j = tiny_job();
  for (const auto& [v, sp] : {std::pair{1, false}, {2, false}, {2, true}}) {
    j.strategy.pipeline = 4;
    j.strategy.tensor = 2;
    j.strategy.virtual_stages = v;
    j.strategy.sequence_parallel = sp;
    j.strategy.schedule = v > 1 ? "interleaved" : "1f1b";
    auto r = lower(j);
    ASSERT_TRUE(r.ok()) << to_text(r.errors());
    double sent = 0;
    for (size_t g = 0; g < 4; ++g) sent += traffic(r.value(), g).sent;
    const double message = 128.0 * 2 * 64 * 2 / (sp ? 2 : 1);
    EXPECT_DOUBLE_EQ(sent, 2 * (4.0 * v - 1) * 32 * message);  // forward and backward, 32 micro-batches, data = 1
  }
}

TEST(Lower, ShardedMessagesAreCutAndGatheredAgain) {
  JobSpec j = tiny_job();
  j.strategy.pipeline = 2;
  j.strategy.tensor = 4;
  const auto gathered = [](const plan::Plan& p, size_t g) { return traffic(p, g).bytes["tp all_gather"]; };
  const plan::Plan whole = lower(j).value();
  j.strategy.shard_messages = true;
  const plan::Plan cut = lower(j).value();
  for (size_t g = 0; g < 2; ++g) {
    const double edge = traffic(whole, g).sent;  // one message for each micro-batch
    EXPECT_DOUBLE_EQ(traffic(cut, g).sent, edge / 4);
    EXPECT_EQ(gathered(whole, g), 0);
    EXPECT_DOUBLE_EQ(gathered(cut, g), edge);  // as many messages come in as go out
  }
  j.strategy.sequence_parallel = true;  // the rows are cut already
  const plan::Plan rows = lower(j).value();
  j.strategy.shard_messages = false;
  EXPECT_DOUBLE_EQ(traffic(rows, 0).sent, traffic(lower(j).value(), 0).sent);
}

TEST(Lower, BucketsCloseWhereTheFrameworksCloseThem) {
  JobSpec j =
      tiny_job();  // embedding and head 64,000 each; a layer 61,568 (q 4096, kv 4096, o 4096, mlp 49152, norms 128)
  auto buckets = [&] {
    const auto p = lower(j).value();
    std::vector<int64_t> sizes;
    for (const auto& b : p.buffers)
      if (b.role == plan::Role::gradient && b.scope == plan::Scope::persistent && !b.view)
        sizes.push_back(b.elements());
    return sizes;
  };
  // PyTorch: closes after the tensor that reaches the limit; the first limit is its own.
  j.strategy.ddp_first_bucket = {4};
  j.strategy.ddp_bucket = {4 * 100000};
  auto ddp = buckets();
  ASSERT_GE(ddp.size(), 3u);
  EXPECT_EQ(ddp[0], 64000);                       // the head alone exceeds the first limit
  EXPECT_EQ(ddp[1], 64 + 61568 + 16384 + 32768);  // final norm, a layer, then fc2 and fc1 of the next reach 100,000
  // Megatron: infinite unless the reduction overlaps.
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  EXPECT_EQ(buckets().size(), 1u);
  j.strategy.overlap_grad_reduce = true;
  j.strategy.bucket_elements = 100000;
  auto split = buckets();
  EXPECT_GE(split.size(), 5u);
  for (int64_t n : split) EXPECT_EQ(n % 128, 0);  // lcm(8, 128)
  // Megatron: later stages keep one buffer.
  j.strategy.pipeline = 2;
  const auto p = lower(j).value();
  int64_t of_last = 0;
  for (const auto& b : p.buffers) of_last += b.name.starts_with("grads.last");
  EXPECT_EQ(of_last, 1);
}

TEST(Lower, LayerSplit) {
  JobSpec j = tiny_job();
  j.strategy.pipeline = 4;
  j.model.layers = 10;
  j.strategy.first_stage_layers = 1;
  j.strategy.last_stage_layers = 1;
  auto sizes = [&] {
    std::vector<int64_t> out;
    const auto p = lower(j).value();
    for (const auto& g : p.programs)
      for (PartId c : g.chunks) out.push_back(p.parts[c.v].layers);
    return out;
  };
  EXPECT_EQ(sizes(), (std::vector<int64_t>{1, 4, 4, 1}));
  j.strategy.first_stage_layers = j.strategy.last_stage_layers = 0;
  j.strategy.account_for_embedding = j.strategy.account_for_loss = true;
  EXPECT_EQ(sizes(), (std::vector<int64_t>{2, 3, 3, 2}));
}

TEST(Lower, UnevenStagesAreBlamedOnTheKeyThatSaysThem) {
  JobSpec j = tiny_job();
  j.model.layers = 32;
  j.strategy.pipeline = 4;
  j.strategy.last_stage_layers = 6;
  const auto r = lower(j);
  ASSERT_FALSE(r.ok());
  ASSERT_EQ(r.errors().size(), 1u) << to_text(r.errors());
  EXPECT_EQ(r.errors()[0].where, "strategy.last_stage_layers");
  EXPECT_EQ(r.errors()[0].hint, "legal: 2, 5, 8, 11, 14, 17, 20, 23");
  for (const int64_t n : {2, 5, 8, 23}) {
    j.strategy.last_stage_layers = n;
    EXPECT_TRUE(lower(j).ok()) << n;
  }
}

TEST(Lower, WhatFollowsFromAFaultIsNoFault) {
  JobSpec j = tiny_job();  // 5 stages of 8 ranks: no number of data-parallel ranks that a batch could miss
  j.model.layers = 10;
  j.strategy.pipeline = 5;
  j.training.global_batch = 63;
  const auto r = lower(j);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.errors().size(), 1u) << to_text(r.errors());
  EXPECT_EQ(r.errors()[0].where, "strategy");
}

TEST(Lower, TheEndsOfAModelMayCountAsLayersWhereThatHelps) {
  JobSpec j = tiny_job();
  j.strategy.pipeline = 4;
  const auto hint_of = [&](int64_t layers) {
    j.model.layers = layers;
    return lower(j).errors().front().hint;
  };
  EXPECT_NE(hint_of(70).find("account_for_embedding: true with account_for_loss: true"), std::string::npos);
  EXPECT_NE(hint_of(71).find("or account_for_loss: true"), std::string::npos);
  EXPECT_EQ(hint_of(69).find("account_for"), std::string::npos);
  j.model.layers = 70;
  j.strategy.account_for_embedding = j.strategy.account_for_loss = true;
  EXPECT_TRUE(lower(j).ok());
}

TEST(Lower, IllegalJobsAreRefusedWithTheirKeysAndLegalValues) {
  struct Row {
    std::string where, what, hint;
    std::function<void(JobSpec&)> spoil;
  };
  const Row rows[] = {
      {"strategy.pipeline", "30 layers do not divide over 4 stages", "nearest legal: 3, 5",
       [](JobSpec& j) {
         j.model.layers = 30;
         j.strategy.pipeline = 4;
       }},
      {"strategy.tensor", "6 attention heads do not divide over tensor = 4", "nearest legal: 3, 6",
       [](JobSpec& j) {
         j.model.heads = j.model.kv_heads = 6;
         j.strategy.tensor = 4;
       }},
      {"strategy.data", "tensor 2 x pipeline 1 x context 1 x data 3 = 6 is not the 8 ranks", "legal: 4",
       [](JobSpec& j) {
         j.strategy.tensor = 2;
         j.strategy.data = 3;
         j.training.global_batch = 6;
       }},
      {"training.global_batch", "63 is not a multiple of micro_batch 2 x data 8 = 16", "nearest legal: 48, 64",
       [](JobSpec& j) { j.training.global_batch = 63; }},
      {"strategy.schedule", "unknown schedule '2f2b'", "1f1b",
       [](JobSpec& j) {
         j.strategy.schedule = "2f2b";
         j.strategy.pipeline = 2;
       }},
      {"strategy.overlap_param_gather", "needs data_parallel: distributed_optimizer", "",
       [](JobSpec& j) { j.strategy.overlap_param_gather = true; }},
      {"training.precision", "test has no fp16 matrix products", "legal: bf16, fp8",
       [](JobSpec& j) { j.training.compute_dtype = DType::f16; }},
      {"training.seq_len", "256 exceeds the 128 learned positions", "up to 128",
       [](JobSpec& j) {
         j.model.position = Position::learned;
         j.training.seq_len = 256;
       }},
      {"strategy.recompute.layers", "block recompute of 5 layers in chunks of 4", "legal: 1 to 4",
       [](JobSpec& j) {
         j.strategy.pipeline = 2;
         j.strategy.recompute = {RecomputeKind::full, RecomputeMethod::block, 5};
       }},
      {"model.moe.experts", "must be at least 1", "", [](JobSpec& j) { j.model.moe.emplace(); }},
      {"training.seq_len", "130 tokens do not divide over 2 x context = 4 pieces", "nearest legal: 128, 132",
       [](JobSpec& j) {
         j.strategy.context = 2;
         j.training.seq_len = 130;
       }},
      {"strategy.context_all_to_all", "groups of 3 in a ring of 4", "a divisor of context",
       [](JobSpec& j) {
         j.strategy.context = 4;
         j.strategy.context_all_to_all = 3;
       }},
      {"strategy.attention", "context parallelism needs flash", "legal: flash",
       [](JobSpec& j) {
         j.strategy.context = 2;
         j.strategy.attention = AttentionKernel::unfused;
       }},
      {"strategy.context_exchange", "a ring knows no sliding window", "all_gather",
       [](JobSpec& j) {
         j.strategy.context = 2;
         j.model.sliding_window = 16;
       }},
      {"strategy.recompute.kind", "full recompute with schedule zb-h1", "legal: none, selective",
       [](JobSpec& j) {
         j.strategy.pipeline = 2;
         j.strategy.schedule = "zb-h1";
         j.strategy.recompute.kind = RecomputeKind::full;
       }},
      {"strategy.schedule_file", "none is given", "a path", [](JobSpec& j) { j.strategy.schedule = "csv"; }},
  };
  for (const Row& row : rows) {
    JobSpec j = tiny_job();
    row.spoil(j);
    auto r = lower(j);
    ASSERT_FALSE(r.ok()) << row.where << " " << row.what;
    bool found = false;
    for (const auto& e : r.errors())
      found |= e.where == row.where && e.what.find(row.what) != std::string::npos &&
               e.hint.find(row.hint) != std::string::npos;
    EXPECT_TRUE(found) << "wanted " << row.where << ": " << row.what << " (" << row.hint << "), got\n"
                       << to_text(r.errors());
  }
  JobSpec many = tiny_job();  // all faults at once
  many.model.heads = many.model.kv_heads = 6;
  many.strategy.tensor = 4;
  many.training.global_batch = 63;
  many.strategy.schedule = "none";
  EXPECT_GE(lower(many).errors().size(), 3u);
}

/// The values after `lead` in the hint of the fault at `where`; none if there is no such hint.
std::vector<int64_t> offered(const Diagnostics& faults, const std::string& where, const std::string& lead) {
  std::vector<int64_t> out;
  for (const auto& e : faults)
    if (const size_t at = e.hint.find(lead); e.where == where && at != std::string::npos)
      for (std::istringstream rest(e.hint.substr(at + lead.size())); rest;) {
        int64_t n = 0;
        if (rest >> n) out.push_back(n);
        rest.ignore(2, ' ');
      }
  return out;
}

// What a hint offers, put in the place of what was refused, must be taken.
TEST(Lower, WhatAHintOffersIsLegal) {
  struct Row {
    std::string where, lead;
    std::function<void(JobSpec&)> spoil;
    std::function<void(JobSpec&, int64_t)> heed;
  };
  const auto nodes = [](JobSpec& j, int64_t n) { j.cluster.nodes = n; };
  const auto chunks = [](JobSpec& j, int64_t n) { j.strategy.virtual_stages = n; };
  const Row rows[] = {
      // 12 ranks a replica in nodes of 8: a multiple of 3 nodes.
      {"strategy", "cluster.nodes nearest legal: ",
       [](JobSpec& j) {
         j.model.layers = 12;
         j.cluster.nodes = 128;
         j.strategy.tensor = 4;
         j.strategy.pipeline = 3;
       },
       nodes},
      {"training.seq_len", "nearest legal: ",
       [](JobSpec& j) {
         j.strategy.tensor = 4;
         j.strategy.sequence_parallel = true;
         j.training.seq_len = 127;
       },
       [](JobSpec& j, int64_t n) { j.training.seq_len = n; }},
      {"strategy.virtual_stages", "nearest legal: ",
       [](JobSpec& j) {
         j.strategy.pipeline = 2;
         j.strategy.virtual_stages = 3;
         j.strategy.schedule = "interleaved";
       },
       chunks},
      // No number of chunks cuts 9 units on 2 ranks: the degree of the pipeline is at fault.
      {"strategy.pipeline", "nearest legal: ",
       [](JobSpec& j) {
         j.strategy.pipeline = 2;
         j.strategy.virtual_stages = 3;
         j.strategy.schedule = "interleaved";
         j.strategy.account_for_loss = true;
       },
       [](JobSpec& j, int64_t n) { j.strategy.pipeline = n; }},
  };
  for (const Row& row : rows) {
    JobSpec j = tiny_job();
    row.spoil(j);
    auto refused = lower(j);
    ASSERT_FALSE(refused.ok()) << row.where;
    const auto values = offered(refused.errors(), row.where, row.lead);
    EXPECT_FALSE(values.empty()) << to_text(refused.errors());
    for (const int64_t n : values) {
      JobSpec heeded = j;
      row.heed(heeded, n);
      auto again = lower(heeded);
      if (again.ok()) continue;
      for (const auto& e : again.errors()) EXPECT_NE(e.where, row.where) << n << " was offered: " << e.what;
    }
  }
}

TEST(Lower, KeysWithoutEffectAreSaid) {
  struct Row {
    std::string said;
    std::function<void(StrategySpec&)> ask, make_it_count;  // the second gives the key its effect
  };
  const auto megatron = [](StrategySpec& s) { s.data_parallel = DataParallel::megatron; };
  const auto ddp = [](StrategySpec& s) { s.data_parallel = DataParallel::ddp; };
  const auto full = [](StrategySpec& s) { s.recompute.kind = RecomputeKind::full; };
  const auto none = [](StrategySpec& s) { s.recompute.kind = RecomputeKind::none; };
  const auto split = [](StrategySpec& s) { s.tensor = 2; };
  const auto both_split = [](StrategySpec& s) { s.tensor = 2, s.sequence_parallel = true; };
  const auto interleaved = [](StrategySpec& s) {
    s.pipeline = s.virtual_stages = 2;
    s.schedule = "interleaved";
  };
  const Row rows[] = {
      {"sequence_parallel has no effect with tensor = 1", [](StrategySpec& s) { s.sequence_parallel = true; }, split},
      {"tensor_overlap has no effect with tensor = 1", [](StrategySpec& s) { s.tensor_overlap = true; }, both_split},
      {"group_size has no effect with schedule 1f1b", [](StrategySpec& s) { s.group_size = 2; }, interleaved},
      {"ddp_bucket has no effect with data_parallel megatron",
       [&](StrategySpec& s) { megatron(s), s.ddp_bucket = {1 << 20}; }, ddp},
      {"ddp_first_bucket has no effect with data_parallel megatron",
       [&](StrategySpec& s) { megatron(s), s.ddp_first_bucket = {1 << 19}; }, ddp},
      {"bucket_elements has no effect with data_parallel ddp", [](StrategySpec& s) { s.bucket_elements = 1000; },
       megatron},
      {"recompute.layers has no effect with recompute.kind none",
       [&](StrategySpec& s) { none(s), s.recompute.layers = 4; }, full},
      {"recompute.method has no effect with recompute.kind none",
       [&](StrategySpec& s) { none(s), s.recompute.method = RecomputeMethod::block; }, full},
      {"recompute.early_stop has no effect with recompute.kind none",
       [&](StrategySpec& s) { none(s), s.recompute.early_stop = true; }, full},
  };
  const auto says = [](const JobSpec& j, const std::string& text) {
    auto r = lower(j);
    EXPECT_TRUE(r.ok()) << text << ": " << to_text(r.errors());
    const auto& list = r.value().assumptions;
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  for (const Row& row : rows) {
    JobSpec j = tiny_job();
    EXPECT_FALSE(says(j, row.said)) << row.said;
    row.ask(j.strategy);
    EXPECT_TRUE(says(j, row.said)) << row.said;
    row.make_it_count(j.strategy);
    EXPECT_FALSE(says(j, row.said)) << row.said;
  }
}

TEST(Lower, StorageOfEveryRoleIsReservedWithItsSharding) {
  // Bytes per parameter with bf16 weights, fp32 gradients: 18 without, 6 + 12 / d with distributed optimizer (MG-17).
  JobSpec j = tiny_job();
  const double n = static_cast<double>(count_parameters(j.model).total());
  auto per_parameter = [&] {
    const auto p = lower(j).value();
    double bytes = 0;
    for (BufferId id : p.parts[0].persistent) bytes += static_cast<double>(p.buffer(id).bytes().n);
    return bytes / n;
  };
  j.strategy.data_parallel = DataParallel::megatron;
  EXPECT_NEAR(per_parameter(), 18, 0.1);
  j.strategy.data_parallel = DataParallel::distributed_optimizer;
  EXPECT_NEAR(per_parameter(), 6 + 12.0 / 8, 0.1);
  j.strategy.gradient_dtype = DType::bf16;  // both 16-bit: 4 + 16 / d, of which 4 / d in the update only
  EXPECT_NEAR(per_parameter(), 4 + 12.0 / 8, 0.1);
  j.strategy.data_parallel = DataParallel::zero1;
  EXPECT_NEAR(per_parameter(), 4 + 12.0 / 8, 0.1);
}

}  // namespace
}  // namespace wt::lower
