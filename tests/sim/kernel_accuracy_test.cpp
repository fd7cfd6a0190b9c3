// How well the kernel models meet the published measurements in data/kernels: as they stand, with a tenth left out, and
// with whole series left out. Prints the table of docs/kernels.md; the bounds hold each column.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/base/data_path.hpp"
#include "sim/cost/attention_model.hpp"
#include "sim/cost/gemm_model.hpp"

namespace wt::sim {
namespace {

GemmShape shape_of(const GemmPoint& p) {
  return {p.groups, p.m, p.n, p.k, p.bytes, p.accumulate > 0 ? p.accumulate : 2, p.accumulate, p.layout};
}

struct Error {
  int n = 0;
  double sum = 0, bias = 0;
  void add(double log_ratio) { ++n, sum += std::abs(log_ratio), bias += log_ratio; }
  double mean() const { return n ? sum / n : 0; }
};

/// Mean |ln(estimate / measured)| over the set's own single products of one element size, leaving out for each point
/// those that `together` says go with it.
Error gemm_error(const KernelSet& set, int64_t bytes, const std::function<bool(size_t, size_t)>& together) {
  const GemmModel model(set);
  std::vector<char> skip(set.gemm.size());
  Error error;
  for (size_t i = 0; i < set.gemm.size(); ++i) {
    const GemmPoint& p = set.gemm[i];
    if (p.set != 0 || p.bytes != bytes || p.groups > 1) continue;
    for (size_t j = 0; j < skip.size(); ++j) skip[j] = together(i, j);
    const GemmShape shape = shape_of(p);
    error.add(std::log(model.estimate(shape, chip_of(set.facts(), bytes), p.regime, skip).seconds * p.flops_per_second /
                       shape.flops()));
  }
  return error;
}

size_t tenth(size_t i) { return (i * 2654435761u >> 7) % 10; }

TEST(KernelAccuracy, Products) {
  struct Row {
    const char* set;
    int64_t bytes;
    double model, tenth, series, all;  // bounds of the mean error
  };
  const Row rows[] = {
      {"a100", 2, 0.08, 0.07, 0.09, 0.03},   {"a100_pcie", 2, 0.08, 0.04, 0.09, 0.01},
      {"a40", 2, 0.08, 0.07, 0.08, 0.03},    {"h100", 2, 0.08, 0.07, 0.08, 0.03},
      {"h100", 1, 0.16, 0.11, 0.16, 0.01},   {"h200", 1, 0.26, 0.17, 0.20, 0.01},
      {"b200", 2, 0.12, 0.11, 0.14, 0.04},   {"gb200", 1, 0.19, 0.14, 0.19, 0.01},
      {"mi300x", 1, 0.16, 0.14, 0.16, 0.01},
  };
  fmt::print("{:<10} {:>5} {:>6} {:>8} {:>8} {:>8} {:>8}\n", "set", "bytes", "points", "model", "tenth", "series",
             "all");
  for (const Row& row : rows) {
    const auto read = read_kernel_set(data_directory(), row.set);
    ASSERT_TRUE(read.ok()) << to_text(read.errors());
    const KernelSet& set = read.value();
    const auto& g = set.gemm;
    const Error model = gemm_error(set, row.bytes, [](size_t, size_t) { return true; });
    const Error part = gemm_error(set, row.bytes, [](size_t i, size_t j) { return tenth(i) == tenth(j); });
    const Error series = gemm_error(set, row.bytes, [&](size_t i, size_t j) { return g[i].series == g[j].series; });
    const Error all = gemm_error(set, row.bytes, [](size_t, size_t) { return false; });
    fmt::print("{:<10} {:>5} {:>6} {:>7.1f}% {:>7.1f}% {:>7.1f}% {:>7.1f}%\n", row.set, row.bytes, all.n,
               100 * model.mean(), 100 * part.mean(), 100 * series.mean(), 100 * all.mean());
    EXPECT_LT(model.mean(), row.model) << row.set;
    EXPECT_LT(part.mean(), row.tenth) << row.set;
    EXPECT_LT(series.mean(), row.series) << row.set;
    EXPECT_LT(all.mean(), row.all) << row.set;
  }
}

TEST(KernelAccuracy, Attention) {
  fmt::print("{:<10} {:>6} {:>8} {:>8}\n", "set", "points", "model", "all");
  for (const auto& [name, bound_model, bound_all] : {std::tuple{"a100", 0.05, 0.02},
                                                     {"a100_pcie", 0.17, 0.02},
                                                     {"h100", 0.06, 0.01},
                                                     {"h100_fa2", 0.10, 0.04},
                                                     {"a100_fa1", 0.25, 0.05},
                                                     {"h100_fa1", 0.25, 0.05},
                                                     {"b200", 0.18, 0.02}}) {
    const auto read = read_kernel_set(data_directory(), name);
    ASSERT_TRUE(read.ok()) << to_text(read.errors());
    const KernelSet& set = read.value();
    const AttentionModel learned(set);
    Error model, all;
    for (const AttentionPoint& p : set.attention) {
      if (p.kernel != set.attention_kernel ||
          (p.set != 0 && !std::string(name).ends_with("_fa1") && std::string(name) != "h100_fa2"))
        continue;
      const Facts& f = set.facts();
      const Chip chip = chip_of(f, 2);
      double plain = 0, corrected = 0, flops = 0;
      for (const bool backward : {false, true}) {
        if (p.pass != Pass::both && (p.pass == Pass::backward) != backward) continue;
        AttentionShape s{p.batch, p.seq, p.heads, p.kv_heads, (p.qk_dim + p.v_dim) / 2, p.causal, backward, 0};
        s.flops = attention_flops(s);
        flops += s.flops;
        plain += AttentionModel::model_time(s, chip, f, 1);
        corrected += learned.estimate(s, chip, 1).seconds;
      }
      model.add(std::log(plain * p.flops_per_second / flops));
      all.add(std::log(corrected * p.flops_per_second / flops));
    }
    fmt::print("{:<10} {:>6} {:>7.1f}% {:>7.1f}%\n", name, all.n, 100 * model.mean(), 100 * all.mean());
    EXPECT_LT(model.mean(), bound_model) << name;
    EXPECT_LT(all.mean(), bound_all) << name;
  }
}

class BadFiles : public ::testing::Test {
 protected:
  std::string root =
      ::testing::TempDir() + "wt_bad_kernels_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  void write(const std::string& name, const std::string& text) { std::ofstream(root + "/kernels/bad/" + name) << text; }
  void SetUp() override {
    std::filesystem::create_directories(root + "/kernels/bad");
    std::filesystem::remove(root + "/kernels/bad/gemm.csv");
    std::filesystem::remove(root + "/kernels/bad/tiles.csv");
    std::filesystem::copy(data_directory() + "/kernels/a100/device.csv", root + "/kernels/bad/device.csv",
                          std::filesystem::copy_options::overwrite_existing);
    std::filesystem::create_directories(root + "/kernels/a100_pcie");
    std::filesystem::copy(data_directory() + "/kernels/a100_pcie/device.csv", root + "/kernels/a100_pcie/device.csv",
                          std::filesystem::copy_options::overwrite_existing);
    std::filesystem::create_directories(root + "/kernels/a100");
    for (const char* file : {"device.csv", "tiles.csv"})
      std::filesystem::copy(data_directory() + "/kernels/a100/" + file, root + "/kernels/a100/" + file,
                            std::filesystem::copy_options::overwrite_existing);
    write("tiles.csv", "bytes,m,n,efficiency\n2,128,128,0.8\n");
  }
  std::string errors() {
    const auto set = read_kernel_set(root, "bad");
    return set.ok() ? "" : to_text(set.errors());
  }
  void expect(const std::string& part) {
    const std::string text = errors();
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
};

TEST_F(BadFiles, AGoodSetReads) { EXPECT_EQ(errors(), ""); }
TEST_F(BadFiles, WrongHeader) {
  write("gemm.csv", "# comment\nseries,m\n");
  expect("bad/gemm.csv:2: header 'series,m'");
}
TEST_F(BadFiles, MissingCell) {
  write("tiles.csv", "bytes,m,n,efficiency\n2,128,128\n");
  expect("bad/tiles.csv:2: 3 cells (expected 4: bytes,m,n,efficiency)");
}
TEST_F(BadFiles, NotANumber) {
  write("tiles.csv", "bytes,m,n,efficiency\n2,128,x,0.8\n2,128,nan,0.8\n2,,128,0.8\n");
  expect("bad/tiles.csv:2: n: 'x' is not a number");
  expect("bad/tiles.csv:3: n: 'nan' is not a number");
  expect("bad/tiles.csv:4: m: empty cell");
}
TEST_F(BadFiles, AbovePeak) {
  write("tiles.csv", "bytes,m,n,efficiency\n2,128,128,1.2\n");
  expect("bad/tiles.csv:2: efficiency: above 1");
}
TEST_F(BadFiles, UnknownWords) {
  write("gemm.csv", "series,dtype,layout,accumulate,regime,groups,m,n,k,tflops\ns,bf1,tn,none,training,1,1,1,1,1\n");
  expect("bad/gemm.csv:2: dtype: unknown value 'bf1' (did you mean 'bf16'?)");
}
TEST_F(BadFiles, UnknownKey) {
  std::ofstream(root + "/kernels/bad/device.csv", std::ios::app) << "gapp_us,1,x\ngap_us,2,x\n";
  expect("unknown key 'gapp_us' (did you mean 'gap_us'?)");
  expect("'gap_us' again");
}
TEST_F(BadFiles, Circle) {
  write("device.csv", "key,value,source\nlike,bad,x\n");
  expect("sets build on each other in a circle");
}
TEST_F(BadFiles, MissingFact) {
  write("device.csv", "key,value,source\npeak_16_tflops,312,x\n");
  expect("'multiprocessors' is missing");
}
TEST_F(BadFiles, NoSuchSet) {
  const auto set = read_kernel_set(root, "a10");
  ASSERT_FALSE(set.ok());
  EXPECT_NE(to_text(set.errors()).find("no such kernel set (did you mean 'a100'?)"), std::string::npos)
      << to_text(set.errors());
}

TEST(KernelSets, EverySetReads) {
  int sets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data_directory() + "/kernels")) {
    const auto set = read_kernel_set(data_directory(), entry.path().filename().string());
    EXPECT_TRUE(set.ok()) << to_text(set.errors());
    ++sets;
  }
  EXPECT_GE(sets, 14);
}

}  // namespace
}  // namespace wt::sim
