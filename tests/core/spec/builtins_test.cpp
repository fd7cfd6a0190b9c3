// Every built-in model, device, cluster and example: reads without a fault, has a source, prints and reads back equal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/data_path.hpp"
#include "core/spec/data_dir.hpp"
#include "core/spec/read.hpp"

namespace wt {
namespace {

namespace fs = std::filesystem;

// Nominal counts in 1e9, as the models are called or as their papers say.
const std::map<std::string, double> kNominal = {{"bert-large", 0.335},
                                                {"bloom-176b", 176.2},
                                                {"bloomberggpt-50b", 50.6},
                                                {"dbrx", 131.6},
                                                {"deepseek-v2", 235.7},
                                                {"deepseek-v2-lite", 15.7},
                                                {"deepseek-v3", 671},
                                                {"falcon-180b", 179.5},
                                                {"falcon-40b", 41.8},
                                                {"falcon-7b", 7.22},
                                                {"gemma-2b", 2.51},
                                                {"gemma-7b", 8.54},
                                                {"gemma2-27b", 27.2},
                                                {"gemma2-9b", 9.24},
                                                {"gemma3-27b", 27},
                                                {"gpt-neox-20b", 20.6},
                                                {"gpt-oss-120b", 116.8},
                                                {"gpt-oss-20b", 20.9},
                                                {"gpt2", 0.124},
                                                {"gpt2-large", 0.774},
                                                {"gpt2-medium", 0.355},
                                                {"gpt2-xl", 1.558},
                                                {"gpt3-1.3b", 1.3},
                                                {"gpt3-125m", 0.125},
                                                {"gpt3-13b", 13},
                                                {"gpt3-175b", 175},
                                                {"gpt3-2.7b", 2.7},
                                                {"gpt3-350m", 0.35},
                                                {"gpt3-6.7b", 6.7},
                                                {"gpt3-760m", 0.76},
                                                {"grok-1", 314},
                                                {"internlm-7b", 7.3},
                                                {"kimi-k2", 1040},
                                                {"llama-13b", 13.02},
                                                {"llama-33b", 32.5},
                                                {"llama-65b", 65.2},
                                                {"llama-7b", 6.74},
                                                {"llama2-13b", 13.02},
                                                {"llama2-34b", 33.7},
                                                {"llama2-70b", 68.98},
                                                {"llama2-7b", 6.74},
                                                {"llama3-70b", 70.55},
                                                {"llama3-8b", 8.03},
                                                {"llama3.1-405b", 405.85},
                                                {"llama3.1-70b", 70.55},
                                                {"llama3.1-8b", 8.03},
                                                {"llama3.2-1b", 1.236},
                                                {"llama3.2-3b", 3.213},
                                                {"llama4-maverick", 400},
                                                {"llama4-scout", 109},
                                                {"mistral-7b", 7.24},
                                                {"mistral-large-2407", 122.6},
                                                {"mixtral-8x22b", 140.6},
                                                {"mixtral-8x7b", 46.7},
                                                {"mpt-30b", 29.95},
                                                {"mpt-7b", 6.65},
                                                {"mt-nlg-530b", 530},
                                                {"nemotron3-22b", 21.3},
                                                {"nemotron3-8b", 8.5},
                                                {"nemotron4-15b", 15.6},
                                                {"nemotron4-340b", 341},
                                                {"olmo2-13b", 13.7},
                                                {"olmo2-7b", 7.3},
                                                {"opt-1.3b", 1.3},
                                                {"opt-125m", 0.125},
                                                {"opt-13b", 13},
                                                {"opt-175b", 175},
                                                {"opt-30b", 30},
                                                {"opt-6.7b", 6.7},
                                                {"opt-66b", 66},
                                                {"palm-540b", 540.3},
                                                {"phi-4", 14.7},
                                                {"pythia-12b", 11.85},
                                                {"pythia-6.9b", 6.86},
                                                {"qwen2-57b-a14b", 57.4},
                                                {"qwen2.5-0.5b", 0.494},
                                                {"qwen2.5-14b", 14.77},
                                                {"qwen2.5-32b", 32.8},
                                                {"qwen2.5-72b", 72.7},
                                                {"qwen2.5-7b", 7.62},
                                                {"qwen3-0.6b", 0.596},
                                                {"qwen3-235b-a22b", 235.1},
                                                {"qwen3-30b-a3b", 30.5},
                                                {"qwen3-32b", 32.8},
                                                {"qwen3-8b", 8.19},
                                                {"smollm2-1.7b", 1.71},
                                                {"tinyllama-1.1b", 1.1},
                                                {"yi-34b", 34.4}};
// Further off than 3 %, and why.
const std::map<std::string, const char*> kOff = {};

TEST(Builtins, ModelsHaveTheirNominalCount) {
  ASSERT_GE(list_models().size(), 45u);
  for (const std::string& name : list_models()) {
    const Result<ModelSpec> m = read_model(name);
    ASSERT_TRUE(m.ok()) << to_text(m.errors());
    EXPECT_EQ(m.value().name, name);
    EXPECT_FALSE(m.value().source.empty()) << name;
    ASSERT_TRUE(kNominal.count(name)) << name << " has no nominal count here: add it";
    const double off = static_cast<double>(count_parameters(m.value()).total()) / (kNominal.at(name) * 1e9) - 1;
    EXPECT_EQ(std::abs(off) > 0.03, kOff.count(name) > 0) << name << " is off by " << 100 * off << " %";
  }
}

/// What stands before " G parameters" in the first line of a file.
std::string count_in_header(const std::string& model) {
  std::ifstream in(std::string(WT_SOURCE_DIR "/models/") + model + ".yaml");
  std::string line;
  std::getline(in, line);
  const size_t unit = line.find(" G parameters");
  if (unit == std::string::npos) return "";
  const size_t begin = line.rfind(' ', unit - 1) + 1;
  return line.substr(begin, unit - begin);
}

TEST(Builtins, HeadersSayWhatTheFileCounts) {
  for (const std::string& name : list_models()) {
    const std::string said = count_in_header(name);
    ASSERT_FALSE(said.empty()) << name << ": the first line gives no count";
    const size_t dot = said.find('.');
    const auto digits = dot == std::string::npos ? 0 : static_cast<int>(said.size() - dot - 1);
    const double counted = static_cast<double>(count_parameters(read_model(name).value()).total()) * 1e-9;
    EXPECT_NEAR(std::stod(said), counted, 0.51 * std::pow(10.0, -digits)) << name;
  }
}

TEST(Builtins, DataSheetsAreOfTheVendor) {
  for (const std::string& name : list_devices()) {
    const DeviceSpec d = read_device(name).value();
    for (const auto& [vendor, word] : {std::pair{"nvidia", "NVIDIA"}, {"amd", "AMD"}})
      if (d.source.find(std::string(word) + " data sheet") != std::string::npos) {
        EXPECT_EQ(d.vendor, vendor) << name << ": " << d.source;
      }
  }
}

TEST(Builtins, ModelsReadBackEqual) {
  for (const std::string& name : list_models()) {
    const ModelSpec m = read_model(name).value();
    const Result<ModelSpec> again = parse_model(print_model(m), "printed.yaml");
    ASSERT_TRUE(again.ok()) << to_text(again.errors());
    EXPECT_TRUE(again.value() == m) << print_model(m);
  }
}

TEST(Builtins, DevicesAreDenseAndReadBackEqual) {
  ASSERT_GE(list_devices().size(), 15u);
  for (const std::string& name : list_devices()) {
    const Result<DeviceSpec> d = read_device(name);
    ASSERT_TRUE(d.ok()) << to_text(d.errors());
    EXPECT_FALSE(d.value().source.empty()) << name;
    const auto& peak = d.value().peak;
    ASSERT_TRUE(peak.count(DType::f16)) << name;
    // Sparse figures are what people copy by mistake: no device of these does more than 2.6 PFLOP/s dense in 16 bits,
    // and eight bits are twice sixteen, not four times.
    EXPECT_LE(peak.at(DType::f16).n, 2.6e15) << name;
    if (peak.count(DType::f8)) { EXPECT_NEAR(peak.at(DType::f8).n / peak.at(DType::f16).n, 2, 0.05) << name; }
    const Result<DeviceSpec> again = parse_device(print_device(d.value()), "printed.yaml");
    ASSERT_TRUE(again.ok()) << to_text(again.errors());
    EXPECT_TRUE(again.value() == d.value()) << print_device(d.value());
  }
  EXPECT_EQ(read_device("h100-sxm-80").value().peak.at(DType::bf16).n, 989.4e12);
}

TEST(Builtins, ClustersReadBackEqual) {
  ASSERT_GE(list_clusters().size(), 30u);
  for (const std::string& name : list_clusters()) {
    const Result<ClusterSpec> c = read_cluster(name);
    ASSERT_TRUE(c.ok()) << to_text(c.errors());
    EXPECT_EQ(c.value().name, name);
    EXPECT_FALSE(c.value().source.empty()) << name;
    const Result<ClusterSpec> again = parse_cluster(print_cluster(c.value()), "printed.yaml");
    ASSERT_TRUE(again.ok()) << to_text(again.errors());
    EXPECT_TRUE(again.value() == c.value()) << print_cluster(c.value());
  }
}

TEST(Builtins, NodeNetworkOfKnownSystems) {  // GB/s, one direction, all NICs of a node
  const std::map<std::string, double> known = {
      {"dgx-1v", 50},       {"dgx-a100-80", 200}, {"dgx-h100", 400},       {"dgx-b300", 800},     {"gb200-nvl72", 200},
      {"aws-p4d", 50},      {"aws-p5", 400},      {"aws-p5en", 400},       {"aws-p6-b300", 800},  {"gcp-a3-high", 100},
      {"gcp-a3-mega", 200}, {"azure-ndv5", 400},  {"jean-zay-v100", 50},   {"jean-zay-a100", 50}, {"selene", 200},
      {"oci-h100", 400},    {"mi300x-8x", 400},   {"hgx-h100-eth10", 1.25}};
  for (const auto& [name, gb] : known) {
    const FabricSpec f = read_cluster(name).value().fabric;
    EXPECT_DOUBLE_EQ(static_cast<double>(f.nics_per_node) * f.nic_bandwidth.n / 1e9, gb) << name;
  }
  const ClusterSpec rack = read_cluster("gb200-nvl72").value();
  EXPECT_EQ(rack.ranks(), 72);
  EXPECT_EQ(rack.node.scale_up.domain, 72);
}

TEST(Builtins, ExamplesReadBackEqual) {
  int jobs = 0;
  for (const auto& e : fs::directory_iterator(WT_SOURCE_DIR "/examples")) {
    if (e.path().extension() != ".yaml" || e.path().stem().string().ends_with("cluster")) continue;
    const Result<JobSpec> job = read_job(e.path().string());
    ASSERT_TRUE(job.ok()) << to_text(job.errors());
    Result<JobSpec> again = parse_job(print_job(job.value()), "printed.yaml");
    ASSERT_TRUE(again.ok()) << to_text(again.errors());
    again.value().warnings = job.value().warnings;
    again.value().assumptions = job.value().assumptions;  // what a framework filled in is written out
    EXPECT_TRUE(again.value() == job.value()) << print_job(job.value());
    const StrategySpec& s = job.value().strategy;
    const int64_t model_ranks = s.tensor * s.pipeline * s.context;
    EXPECT_EQ(job.value().cluster.ranks() % model_ranks, 0) << e.path();
    const int64_t data = job.value().cluster.ranks() / model_ranks;
    EXPECT_EQ(job.value().training.global_batch % (data * job.value().training.micro_batch), 0) << e.path();
    ++jobs;
  }
  EXPECT_GE(jobs, 5);
}

TEST(Builtins, TheLargeExampleIsWhatItSays) {
  const JobSpec j = read_job(WT_SOURCE_DIR "/examples/llama3-70b-1024-h100.yaml").value();
  EXPECT_EQ(count_parameters(j.model).total(), 70553706496);
  EXPECT_EQ(j.cluster.ranks(), 1024);
  EXPECT_EQ(j.strategy.virtual_stages, 5);
  EXPECT_EQ(j.training.compute_dtype, DType::bf16);
  ModelSpec builtin = read_model("llama3-70b").value();
  builtin.name = j.model.name;
  builtin.source = j.model.source;
  EXPECT_TRUE(builtin == j.model);
}

TEST(DataDir, EnvironmentComesFirst) {
  const fs::path root = fs::temp_directory_path() / ("wt_data_" + std::to_string(getpid()));
  fs::create_directories(root / "models");
  std::ofstream(root / "models/my-own.yaml") << "from: gpt2\nlayers: 3\n";
  std::ofstream(root / "models/gpt2-large.yaml") << "from: gpt2\nlayers: 4\n";
  ::setenv("WINDTUNNEL_DATA", root.c_str(), 1);
  EXPECT_EQ(data_roots().at(0), root.string());
  EXPECT_EQ(find_data("models", "my-own"), (root / "models/my-own.yaml").string());
  EXPECT_EQ(read_model("my-own").value().layers, 3);
  EXPECT_EQ(read_model("my-own").value().name, "my-own");
  EXPECT_EQ(read_model("gpt2-large").value().layers, 4);  // hides the built-in
  EXPECT_EQ(read_model("gpt2-xl").value().layers, 48);    // the others are still there
  ::setenv("WINDTUNNEL_DATA", "/no/such/folder", 1);
  EXPECT_EQ(find_data("models", "my-own"), "");
  EXPECT_EQ(read_model("gpt2-large").value().layers, 36);
  ::unsetenv("WINDTUNNEL_DATA");
  fs::remove_all(root);
  for (const char* bad : {"", ".", "..", "../models/gpt2", "no-such"}) EXPECT_EQ(find_data("models", bad), "") << bad;
}

// A device with a name and keys of its own in the place of a built-in cluster's: nothing of the old one shows through.
TEST(Builtins, ADeviceInPlaceOfTheClustersBeginsAnew) {
  const auto job = parse_job(
      "model: gpt2\ncluster: {from: dgx-h100, device: {from: h100-sxm-96-500w, kernels: h100_fa2}}\nstrategy: {}\n"
      "training: {micro_batch: 1, global_batch: 8, seq_len: 128}\n",
      "job.yaml");
  ASSERT_TRUE(job) << to_text(job.errors());
  const DeviceSpec& d = job.value().cluster.device;
  EXPECT_EQ(d.power_watts, 500);
  EXPECT_NEAR(d.memory.gib(), 95.04, 0.01);
  EXPECT_EQ(d.kernels, "h100_fa2");
}

}  // namespace
}  // namespace wt
