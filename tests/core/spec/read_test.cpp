// The strict readers where nothing is wrong: forms of a job, references, overrides, defaults; and random specs that
// print and read back equal. What is refused is in invalid_test.cpp.
#include "core/spec/read.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/spec/names.hpp"

namespace wt {
namespace {

namespace fs = std::filesystem;
const std::string kTiny = WT_SOURCE_DIR "/examples/tiny-gpt.yaml";

JobSpec with(std::vector<std::string> overrides) {
  Result<JobSpec> j = read_job(kTiny, overrides);
  EXPECT_TRUE(j.ok()) << (j.ok() ? "" : to_text(j.errors()));
  return j.ok() ? j.value() : JobSpec{};
}

TEST(Read, DerivedValuesOfAModel) {
  const JobSpec j = with({});
  EXPECT_EQ(j.name, "tiny-gpt");
  EXPECT_EQ(j.model.kv_heads, 4);   // as many as heads
  EXPECT_EQ(j.model.head_dim, 16);  // hidden / heads
  EXPECT_EQ(j.cluster.name, "tiny-cluster");
  EXPECT_EQ(j.cluster.ranks(), 8);
}

TEST(Read, OverridesAreCheckedLikeTheFile) {
  EXPECT_EQ(with({"strategy.tensor=4"}).strategy.tensor, 4);
  EXPECT_EQ(with({"strategy.tensor=4", "strategy.tensor=1"}).strategy.tensor, 1);
  EXPECT_EQ(with({"cluster.nodes=16"}).cluster.nodes, 16);
  EXPECT_EQ(with({"cluster.fabric.nic_bandwidth=25 GB/s"}).cluster.fabric.nic_bandwidth.n, 25e9);
  EXPECT_EQ(with({"cluster.device.memory=94 GiB"}).cluster.device.memory.n, int64_t{94} << 30);
  EXPECT_EQ(with({"cluster.device=h100-sxm-80"}).cluster.device.name, "h100-sxm-80");
  EXPECT_EQ(with({"model.layers=12"}).model.layers, 12);
  EXPECT_EQ(with({"model=llama2-7b", "model.layers=12"}).model.hidden, 4096);
  EXPECT_EQ(with({"name=other"}).name, "other");
  EXPECT_EQ(with({"strategy.recompute=full"}).strategy.recompute.kind, RecomputeKind::full);
  const RecomputeSpec r = with({"strategy.recompute=full", "strategy.recompute.layers=2"}).strategy.recompute;
  EXPECT_EQ(r.kind, RecomputeKind::full);
  EXPECT_EQ(r.layers, 2);
  EXPECT_EQ(with({"training={micro_batch: 2, global_batch: 4, seq_len: 16}"}).training.seq_len, 16);
}

// In the cache of Hugging Face the file is named by its digest.
TEST(Read, AConfigIsKnownByItsContent) {
  const fs::path file = fs::path(testing::TempDir()) / ("blob-" + std::to_string(::getpid()));
  const auto read_as = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_model(file.string());
  };
  for (const char* text : {"{\"model_type\": \"gpt2\"}", "\xEF\xBB\xBF \n\t{\n  \"model_type\": \"gpt2\"}"}) {
    const Result<ModelSpec> m = read_as(text);
    ASSERT_TRUE(m.ok()) << to_text(m.errors());
    EXPECT_EQ(count_parameters(m.value()).total(), 124439808);
  }
  const Result<ModelSpec> ours =
      read_as("{from: " WT_SOURCE_DIR "/models/llama2-7b.yaml, layers: 3}");  // YAML in braces stays YAML
  ASSERT_TRUE(ours.ok()) << to_text(ours.errors());
  EXPECT_EQ(ours.value().layers, 3);
  fs::remove(file);
}

TEST(Read, DdpAlwaysReducesBesideTheBackward) {
  const auto warned = [](const JobSpec& j) {
    return std::any_of(j.warnings.begin(), j.warnings.end(), [](const std::string& w) {
      return w.find(": false has no effect with data_parallel ddp") != std::string::npos;
    });
  };
  const JobSpec off = with({"strategy.data_parallel=ddp", "strategy.overlap_grad_reduce=false"});
  EXPECT_TRUE(warned(off));
  EXPECT_TRUE(off.strategy.overlap_grad_reduce);
  EXPECT_FALSE(warned(with({"strategy.data_parallel=ddp"})));
  EXPECT_FALSE(warned(with({"strategy.data_parallel=megatron", "strategy.overlap_grad_reduce=false"})));
  const Result<JobSpec> again =
      parse_job(print_job(off), "printed.yaml");  // printed as what it is, so without a warning
  ASSERT_TRUE(again.ok()) << to_text(again.errors());
  EXPECT_FALSE(warned(again.value()));
}

TEST(Read, AnotherClusterKeepsTheNumberOfNodes) {
  const JobSpec j = with({"cluster={from: dgx-h100, nodes: 3, fabric: {nics_per_node: 4}}", "cluster=dgx-a100-80"});
  EXPECT_EQ(j.cluster.device.name, "a100-sxm-80");
  EXPECT_EQ(j.cluster.nodes, 3);
  EXPECT_EQ(j.cluster.fabric.nics_per_node, 8);  // what was said of the old one is gone
  EXPECT_EQ(with({"cluster=dgx-a100-80"}).cluster.nodes, 1);
}

TEST(Read, FromIsReplacedKeyByKey) {
  const Result<ClusterSpec> c = parse_cluster(
      "from: dgx-h100\nnodes: 4\ndevice: {memory: 90 GiB}\nnode: {scale_up: {latency: 1 us}}\n", "x.yaml");
  ASSERT_TRUE(c.ok()) << to_text(c.errors());
  EXPECT_EQ(c.value().nodes, 4);
  EXPECT_EQ(c.value().device.memory.n, int64_t{90} << 30);
  EXPECT_EQ(c.value().device.multiprocessors, 132);
  EXPECT_EQ(c.value().node.scale_up.latency, Time::us(1));
  EXPECT_EQ(c.value().node.scale_up.bandwidth.n, 450e9);
  EXPECT_EQ(c.value().device.name, "h100-sxm-80");
}

TEST(Read, PathsAreRelativeToTheFileThatSaysThem) {
  const fs::path root = fs::temp_directory_path() / ("wt_read_" + std::to_string(getpid()));
  fs::create_directories(root / "jobs");
  fs::create_directories(root / "specs");
  std::ofstream(root / "specs/model.json") << R"({"model_type": "gpt2", "n_layer": 2})";
  std::ofstream(root / "specs/device.yaml") << "from: a100-sxm-40\nmemory: 20 GiB\n";
  std::ofstream(root / "specs/cluster.yaml") << "from: dgx-a100-40\ndevice: ./device.yaml\n";
  std::ofstream(root / "jobs/job.yaml") << "model: ../specs/model.json\ncluster: ../specs/cluster.yaml\n"
                                           "training: {micro_batch: 1, global_batch: 8, seq_len: 128}\n";
  const Result<JobSpec> j = read_job((root / "jobs/job.yaml").string());
  ASSERT_TRUE(j.ok()) << to_text(j.errors());
  EXPECT_EQ(j.value().model.layers, 2);
  EXPECT_EQ(j.value().model.hidden, 768);
  EXPECT_FALSE(j.value().warnings.empty());
  EXPECT_EQ(j.value().cluster.device.memory.n, int64_t{20} << 30);
  const std::vector<std::string> set = {"model.layers=5"};
  EXPECT_EQ(read_job((root / "jobs/job.yaml").string(), set).value().model.layers, 5);
  fs::remove_all(root);
}

TEST(Read, AClockIsForTheRecordOnly) {  // nothing computes with it: it may be left out
  const std::string device =
      "generation: ampere\nmemory: 40 GiB\nmemory_bandwidth: 1.5 TB/s\nmultiprocessors: 108\n"
      "peak: {bf16: 312 TFLOP/s}\ncontext_memory: 600 MiB\n";
  const Result<DeviceSpec> without = parse_device(device, "d.yaml");
  ASSERT_TRUE(without.ok()) << to_text(without.errors());
  EXPECT_EQ(without.value().clock_hz, 0);
  EXPECT_EQ(parse_device(print_device(without.value()), "d.yaml").value(), without.value());
  EXPECT_EQ(parse_device(device + "clock: 1.41 GHz\n", "d.yaml").value().clock_hz, 1.41e9);
}

TEST(Read, PrecisionIsAShortForm) {
  const auto precision = [](const std::string& p) {
    return parse_training("micro_batch: 1\nglobal_batch: 8\nseq_len: 32\n" + p, "t.yaml").value();
  };
  EXPECT_EQ(precision("precision: bf16").compute_dtype, DType::bf16);
  EXPECT_EQ(precision("precision: fp16").param_dtype, DType::f16);
  EXPECT_EQ(precision("precision: fp8").compute_dtype, DType::f8);
  EXPECT_EQ(precision("precision: fp8").param_dtype, DType::bf16);
  EXPECT_FALSE(precision("precision: fp32").master_weights);
  EXPECT_EQ(precision("precision: fp32\nparam_dtype: bf16").param_dtype, DType::bf16);  // what is said in full wins
}

TEST(Read, AnchorsWithinReason) {
  const Result<ModelSpec> m = parse_model(
      "layers: &n 4\nhidden: 64\nffn_hidden: 256\nheads: *n\nvocab: 128\nmax_context: 64\ngated_mlp: false\n"
      "activation: gelu\nnorm: layer_norm\nposition: learned\ntied_embeddings: true\n",
      "m.yaml");
  ASSERT_TRUE(m.ok()) << to_text(m.errors());
  EXPECT_EQ(m.value().heads, 4);
}

TEST(Read, BlockTextsAndQuotes) {
  const std::string rest =
      "\nlayers: 4\nhidden: 64\nffn_hidden: 256\nheads: 4\nvocab: 128\nmax_context: 64\n"
      "gated_mlp: false\nactivation: gelu\nnorm: layer_norm\nposition: learned\ntied_embeddings: true\n";
  EXPECT_EQ(parse_model("source: >\n  two\n  lines" + rest, "m.yaml").value().source, "two lines\n");
  EXPECT_EQ(parse_model("source: 'it''s'" + rest, "m.yaml").value().source, "it's");
  EXPECT_EQ(parse_model("source: \"a \\\" b\"" + rest, "m.yaml").value().source, "a \" b");
  EXPECT_EQ(parse_model("source: &x \"anchored\"" + rest, "m.yaml").value().source, "anchored");
  EXPECT_EQ(parse_model("source: plain # comment" + rest, "m.yaml").value().source, "plain");
}

// ---------------------------------------------------------------------------------------------------- properties

template <class E>
E any_of_names(E e) {
  const auto rows = names_of(e);
  return rows[static_cast<size_t>(*rc::gen::inRange<int>(0, static_cast<int>(rows.size())))].value;
}
int64_t between(int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); }
bool coin() { return *rc::gen::arbitrary<bool>(); }
std::string any_text() {  // any bytes of UTF-8, control characters and quotes among them
  const auto points =
      *rc::gen::container<std::vector<int>>(rc::gen::oneOf(rc::gen::inRange(1, 0x80), rc::gen::inRange(0x80, 0x2fff)));
  std::string out;
  for (int p : points) {
    if (p < 0x80) {
      out += static_cast<char>(p);
    } else if (p < 0x800) {
      out += static_cast<char>(0xc0 | (p >> 6));
      out += static_cast<char>(0x80 | (p & 0x3f));
    } else {
      out += static_cast<char>(0xe0 | (p >> 12));
      out += static_cast<char>(0x80 | ((p >> 6) & 0x3f));
      out += static_cast<char>(0x80 | (p & 0x3f));
    }
  }
  return out;
}

TEST(ReadProperty, ModelsReadBackEqual) {
  EXPECT_TRUE(rc::check([] {
    ModelSpec m;
    m.name = std::string("m").append(any_text());
    m.source = any_text();
    m.layers = between(1, 200);
    m.kv_heads = between(1, 16);
    m.heads = m.kv_heads * between(1, 8);
    m.head_dim = between(1, 256);
    m.hidden = between(1, 20000);
    m.ffn_hidden = between(1, 80000);
    m.vocab = between(1, 300000);
    m.max_context = between(1, 1 << 30);
    m.gated_mlp = coin(), m.tied_embeddings = coin(), m.attention_bias = coin(), m.output_bias = coin();
    m.mlp_bias = coin(), m.qk_norm = coin(), m.parallel_block = coin(), m.final_norm = coin();
    m.embedding_norm = coin(), m.attention_sinks = coin(), m.head_bias = coin(), m.causal = coin();
    m.head_transform = coin();
    m.activation = any_of_names(m.activation);
    m.norm = any_of_names(m.norm);
    m.position = any_of_names(m.position);
    m.norms_per_layer = between(0, 4);
    m.embedding_dim = between(0, 512);
    m.extra_positions = between(0, 4);
    m.segment_types = between(0, 4);
    m.mtp_layers = between(0, 2);
    if (coin()) {
      m.sliding_window = between(1, 4096);
      if (coin())
        m.sliding_period = between(1, 6);
      else
        m.full_period = between(1, 6);
    }
    if (coin()) {
      m.moe = MoeSpec{between(1, 512), 1,    between(1, 8192), between(0, 100), between(0, m.layers), between(1, 3),
                      coin(),          false};
      m.moe->shared_gate = m.moe->shared_ffn_hidden > 0 && coin();
      m.expert_bias = coin();
    }
    if (coin()) {
      m.mla = MlaSpec{between(0, 2000), between(1, 2000), between(1, 256), between(1, 256), between(1, 256)};
      m.head_dim = m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim;
    }
    const Result<ModelSpec> again = parse_model(print_model(m), "m.yaml");
    if (!again.ok()) RC_FAIL(to_text(again.errors()) + print_model(m));
    RC_ASSERT(again.value() == m);
  }));
}

TEST(ReadProperty, StrategiesAndTrainingReadBackEqual) {
  EXPECT_TRUE(rc::check([] {
    StrategySpec s;
    s.tensor = between(1, 64), s.pipeline = between(1, 64), s.context = between(1, 8), s.expert = between(1, 64);
    s.data = between(0, 1000), s.virtual_stages = between(1, 12), s.group_size = between(0, 9);
    s.first_stage_layers = between(0, 9), s.last_stage_layers = between(0, 9);
    s.sequence_parallel = coin(), s.account_for_embedding = coin(), s.account_for_loss = coin();
    s.overlap_p2p = coin(), s.overlap_grad_reduce = coin(), s.overlap_param_gather = coin(), s.tensor_overlap = coin();
    s.data_parallel = any_of_names(s.data_parallel);
    s.ddp_bucket = Bytes{between(1, int64_t{1} << 40)};
    s.ddp_first_bucket = Bytes{between(1, int64_t{1} << 20)};
    s.bucket_elements = between(0, 1 << 30);
    s.gradient_dtype = coin() ? DType::bf16 : DType::f32;
    s.recompute = {any_of_names(RecomputeKind{}), any_of_names(RecomputeMethod{}), between(1, 80), coin()};
    s.attention = any_of_names(s.attention);
    s.fsdp.sharding = any_of_names(s.fsdp.sharding), s.fsdp.wrap = any_of_names(s.fsdp.wrap);
    s.fsdp.backward_prefetch = any_of_names(s.fsdp.backward_prefetch);
    s.fsdp.shard_size = between(0, 64), s.fsdp.reshard_after_forward = between(0, 64), s.fsdp.keep_last = between(0, 9);
    s.fsdp.forward_prefetch = coin(), s.fsdp.limit_all_gathers = coin(), s.fsdp.no_sync = coin();
    s.zero = {between(0, 1 << 30), between(0, 1 << 20), between(0, 1 << 30), between(0, 1 << 30), coin()};
    s.zero.secondary_shard = between(1, 64), s.zero.quantized_weights = coin();
    s.offload.optimizer = any_of_names(OffloadDevice{}), s.offload.parameters = any_of_names(OffloadDevice{});
    s.offload.ratio = static_cast<double>(between(0, 7)) / 7, s.offload.activation_layers = between(0, 80);
    s.offload.pinned = coin(), s.offload.overlap = coin();
    s.recompute.every = between(1, 80);
    s.keep_gathered = coin(), s.gradient_copies = any_of_names(s.gradient_copies), s.kept_edges = between(-1, 2);
    const Result<StrategySpec> again = parse_strategy(print_strategy(s), "s.yaml");
    RC_ASSERT(again.ok());
    RC_ASSERT(again.value() == s);

    TrainingSpec t;
    t.micro_batch = between(1, 64), t.global_batch = t.micro_batch * between(1, 64), t.seq_len = between(1, 1 << 20);
    t.compute_dtype = coin() ? DType::f8 : DType::f16, t.param_dtype = coin() ? DType::f32 : DType::bf16;
    t.moment_dtype = coin() ? DType::f32 : DType::bf16;
    t.master_weights = coin(), t.dropout = coin(), t.fused_kernels = coin(), t.fused_loss = coin();
    t.optimizer = any_of_names(t.optimizer), t.fp8_recipe = any_of_names(t.fp8_recipe);
    t.fused_optimizer = coin(), t.packed_qkv_gradient = coin(), t.loss_metrics = between(0, 16);
    t.packed_qkv = coin(), t.norm_kernel = any_of_names(t.norm_kernel), t.loss = any_of_names(t.loss);
    t.gradient_clipping = static_cast<double>(between(0, 1000)) / 7;
    t.total_tokens = static_cast<double>(between(0, int64_t{1} << 50));
    t.loop = {static_cast<double>(between(0, 1000)) / 7, between(0, 1000), between(0, 1000)};
    t.seed = static_cast<uint64_t>(between(0, int64_t{1} << 62));
    t.host_issue = Time::ps(between(0, int64_t{1} << 50));
    t.host_profile = std::string("p").append(any_text());
    t.fragmentation = static_cast<double>(between(0, 899)) / 1000;
    const Result<TrainingSpec> back = parse_training(print_training(t), "t.yaml");
    if (!back.ok()) RC_FAIL(to_text(back.errors()) + print_training(t));
    RC_ASSERT(back.value() == t);
  }));
}

TEST(ReadProperty, OneBrokenCharacterNeverAborts) {
  const std::string text = print_job(with({}));
  EXPECT_TRUE(rc::check([&] {
    std::string broken = text;
    const int64_t edits = between(1, 4);
    for (int64_t i = 0; i < edits; ++i)
      broken[static_cast<size_t>(between(0, static_cast<int64_t>(text.size()) - 1))] =
          static_cast<char>(between(1, 255));
    const Result<JobSpec> j = parse_job(broken, "j.yaml");
    if (!j.ok())
      for (const Diagnostic& d : j.errors()) RC_ASSERT(d.where.rfind("j.yaml", 0) == 0 && !d.what.empty());
  }));
}

const char* const kMeasured = R"(name: pair
device:
  generation: other
  memory: 4 GiB
  memory_bandwidth: 10 GB/s
  multiprocessors: 1
  clock: 2.5 GHz
  peak: {fp32: 80 GFLOP/s}
  context_memory: 1 MiB
  measured:
    source: by hand
    op_overhead: 1 us
    kernels:
      - kernel: gemm
        variant: transpose_b
        dtype: fp32
        rate: 70 GFLOP/s
        points:
          - {dims: [64, 64, 64], flops: 524288, bytes: 48 KiB, time: 8 us}
          - {dims: [512, 512, 512], flops: 268435456, bytes: 3 MiB, time: 4 ms}
node:
  devices: 2
  scale_up: {kind: pcie, bandwidth: 8 GB/s}
  pcie_bandwidth: 8 GB/s
  host_memory: 8 GiB
nodes: 1
transfers:
  - kind: all_reduce
    ranks: 2
    nodes: 1
    dtype: fp32
    device_share: 0.5
    lines:
      - {from: 8 B, latency: 5 us, bandwidth: 1 GB/s}
      - {from: 64 KiB, latency: 20 us, bandwidth: 10 GB/s}
    points:
      - {bytes: 8 B, time: 5 us}
)";

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(Read, MeasuredCurvesReadBackEqual) {
  const auto c = parse_cluster(kMeasured, "c.yaml");
  ASSERT_TRUE(c.ok()) << to_text(c.errors());
  const KernelCurve& k = c.value().device.measured->kernels.at(0);
  EXPECT_EQ(k.points.at(1).dims, (std::vector<int64_t>{512, 512, 512}));
  EXPECT_EQ(k.points.at(1).time, Time::us(4000));
  EXPECT_EQ(c.value().transfers.at(0).lines.at(1).bandwidth.n, 10e9);
  const std::string text = print_cluster(c.value());
  EXPECT_NE(text.find("- {dims: [64, 64, 64], flops: 524288, bytes: 48 KiB, time: 8 us}"), std::string::npos) << text;
  const auto again = parse_cluster(text, "again.yaml");
  ASSERT_TRUE(again.ok()) << to_text(again.errors());
  EXPECT_TRUE(again.value() == c.value()) << text;
}

TEST(Read, EveryFaultOfMeasuredCurvesIsNamedWithItsPlace) {
  std::string text = replaced(kMeasured, "[64, 64, 64]", "[64, many, 64]");
  text = replaced(text, "time: 4 ms", "time: 4");
  text = replaced(text, "kind: all_reduce", "kind: allreduce");
  text = replaced(text, "bytes: 8 B", "byte: 8 B");
  const auto c = parse_cluster(text, "c.yaml");
  ASSERT_FALSE(c.ok());
  const std::string told = to_text(c.errors());
  for (const char* part : {"device.measured.kernels[0].points[0].dims: 'many' is not a whole number",
                           "device.measured.kernels[0].points[1].time", "transfers[0].kind: unknown value 'allreduce'",
                           "transfers[0].points[0]"})
    EXPECT_NE(told.find(part), std::string::npos) << part << "\n" << told;
  const auto unsorted = parse_cluster(replaced(kMeasured, "from: 64 KiB", "from: 4 B"), "c.yaml");
  ASSERT_FALSE(unsorted.ok());
  EXPECT_NE(to_text(unsorted.errors()).find("not sorted"), std::string::npos);
}

TEST(Names, EveryChoiceIsSpelled) {
  for (int i = 0; i < 4; ++i) EXPECT_NE(to_text(static_cast<DataParallel>(i)), "?");
  for (int i = 0; i <= static_cast<int>(GpuGeneration::other); ++i)
    EXPECT_NE(to_text(static_cast<GpuGeneration>(i)), "?");
  for (int i = 0; i <= static_cast<int>(FabricKind::tcpx); ++i) EXPECT_NE(to_text(static_cast<FabricKind>(i)), "?");
  for (int i = 0; i <= static_cast<int>(ScaleUpKind::pcie); ++i) EXPECT_NE(to_text(static_cast<ScaleUpKind>(i)), "?");
}

}  // namespace
}  // namespace wt
