#include "sim/cost/kernel_set.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/base/text.hpp"
#include "sim/cost/csv.hpp"

namespace wt::sim {
namespace {

struct FactKey {
  std::string_view key;
  double Facts::*member;
};
constexpr FactKey kFactKeys[] = {
    {"peak_16_tflops", &Facts::peak_16},
    {"peak_8_tflops", &Facts::peak_8},
    {"peak_32_tflops", &Facts::peak_32},
    {"peak_64_tflops", &Facts::peak_64},
    {"multiprocessors", &Facts::multiprocessors},
    {"memory_gbps", &Facts::memory_gbps},
    {"l2_mib", &Facts::l2_mib},
    {"power_w", &Facts::power_w},
    {"power_idle_w", &Facts::power_idle_w},
    {"power_memory_w", &Facts::power_memory_w},
    {"clock_burst", &Facts::clock_burst},
    {"clock_sustained", &Facts::clock_sustained},
    {"matrix_duty", &Facts::matrix_duty},
    {"gemm_fixed_us", &Facts::gemm_fixed_us},
    {"gemm_prologue_k", &Facts::gemm_prologue_k},
    {"gemm_memory_share", &Facts::gemm_memory_share},
    {"gemm_split_us", &Facts::gemm_split_us},
    {"gemm_tail", &Facts::gemm_tail},
    {"gemm_l2_share", &Facts::gemm_l2_share},
    {"gemm_split_waves", &Facts::gemm_split_waves},
    {"gemm_split_k", &Facts::gemm_split_k},
    {"align_8", &Facts::align_8},
    {"align_4", &Facts::align_4},
    {"align_2", &Facts::align_2},
    {"batch_unaligned", &Facts::batch_unaligned},
    {"kernel_us", &Facts::kernel_us},
    {"stream_share", &Facts::stream_share},
    {"l2_gain", &Facts::l2_gain},
    {"class_pointwise", &Facts::class_pointwise},
    {"class_norm", &Facts::class_norm},
    {"class_norm_backward", &Facts::class_norm_backward},
    {"class_reduce", &Facts::class_reduce},
    {"class_loss", &Facts::class_loss},
    {"class_gather", &Facts::class_gather},
    {"class_scatter", &Facts::class_scatter},
    {"class_transpose", &Facts::class_transpose},
    {"attention_forward", &Facts::attention_forward},
    {"attention_backward", &Facts::attention_backward},
    {"attention_head_power", &Facts::attention_head_power},
    {"attention_wide_power", &Facts::attention_wide_power},
    {"attention_wide_most", &Facts::attention_wide_most},
    {"attention_ramp", &Facts::attention_ramp},
    {"attention_ramp_causal", &Facts::attention_ramp_causal},
    {"attention_rows_forward", &Facts::attention_rows_forward},
    {"attention_rows_backward", &Facts::attention_rows_backward},
    {"attention_tail", &Facts::attention_tail},
    {"attention_longest", &Facts::attention_longest},
    {"gap_us", &Facts::gap_us},
    {"channel_gbps", &Facts::channel_gbps},
    {"overlap_most", &Facts::overlap_most},
};

constexpr std::string_view kRegimes[] = {"burst", "training", "sustained"};
constexpr std::string_view kLayouts[] = {"tn", "nn", "nt"};
constexpr std::string_view kDTypes[] = {"f16", "bf16", "f8"};
constexpr std::string_view kAccumulate[] = {"none", "f32", "bf16"};
constexpr std::string_view kPasses[] = {"forward", "backward", "both"};
constexpr std::string_view kMasks[] = {"full", "causal"};

/// One set: facts down the chain of "like" (the nearest file wins), points of the set itself and of every "also".
class Reader {
 public:
  explicit Reader(const std::string& data) : root_(data + "/kernels/") {}

  void read(const std::string& name) {
    set_.sets.push_back({name, facts(name, 0)});
    points(name, 0);
    const auto also = std::move(also_);
    for (const std::string& other : also) {
      const auto tiles = set_.tiles;
      const auto kernel = set_.attention_kernel;
      set_.sets.push_back({other, facts(other, 1)});
      set_.tiles = tiles;
      set_.attention_kernel = kernel;
      points(other, static_cast<uint16_t>(set_.sets.size() - 1));
    }
  }

  bool known(const std::string& name) const { return std::filesystem::exists(root_ + name + "/device.csv"); }
  std::string hint(std::string_view name) const {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(root_, ignored))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    const std::vector<std::string_view> views(names.begin(), names.end());
    return suggest(name, views);
  }

  KernelSet set_;
  Diagnostics errors_;

 private:
  Facts facts(const std::string& name, int depth) {
    const std::string folder = root_ + name;
    static constexpr std::string_view columns[] = {"key", "value", "source"};
    Facts facts;
    if (depth > 4) {
      errors_.push_back({folder + "/device.csv", "sets build on each other in a circle", ""});
      return facts;
    }
    auto csv = open(folder + "/device.csv", columns);
    if (!csv) return facts;
    std::vector<std::string_view> keys, seen;
    for (const FactKey& k : kFactKeys) keys.push_back(k.key);
    for (std::string_view k : {"like", "also", "attention_kernel"}) keys.push_back(k);
    const auto named_set = [&](size_t row) -> std::optional<std::string> {
      std::string other(csv->text(row, 1));
      if (known(other)) return other;
      csv->fail(row, 1, fmt::format("no kernel set '{}'", other), hint(other));
      return {};
    };
    for (size_t row = 0; row < csv->rows(); ++row)
      if (csv->text(row, 0) == "like")
        if (const auto base = named_set(row)) facts = this->facts(*base, depth + 1);
    for (size_t row = 0; row < csv->rows(); ++row) {
      const std::string_view key = csv->text(row, 0);
      if (key == "also") {
        const auto other = named_set(row);
        if (other && depth == 0) also_.push_back(*other);
        continue;
      }
      if (std::ranges::find(seen, key) != seen.end()) csv->fail(row, 0, fmt::format("'{}' again", key));
      seen.push_back(key);
      if (key == "like") continue;
      if (key == "attention_kernel") {
        set_.attention_kernel = static_cast<uint8_t>(csv->choice(row, 1, kAttentionKernels));
        continue;
      }
      const auto fact = std::ranges::find(kFactKeys, key, &FactKey::key);
      if (fact == std::end(kFactKeys)) {
        csv->fail(row, 0, fmt::format("unknown key '{}'", key), suggest(key, keys));
        continue;
      }
      facts.*(fact->member) = csv->number(row, 1);
      if (facts.*(fact->member) < 0) csv->fail(row, 1, "negative");
    }
    collect(*csv);
    if (std::filesystem::exists(folder + "/tiles.csv")) {
      set_.tiles.clear();
      tiles(folder);
    }
    return facts;
  }

  void points(const std::string& name, uint16_t index) {
    const std::string folder = root_ + name;
    gemm(folder, index);
    attention(folder, index);
    memory(folder, index);
  }

  void collect(Csv& csv) {
    for (Diagnostic& e : csv.errors()) errors_.push_back(std::move(e));
  }
  std::optional<Csv> open(const std::string& path, std::span<const std::string_view> columns) {
    auto csv = Csv::read(path, columns);
    if (csv) return std::move(csv.value());
    for (const Diagnostic& e : csv.errors()) errors_.push_back(e);
    return {};
  }
  double positive(Csv& csv, size_t row, size_t column) {
    const double value = csv.number(row, column);
    if (value <= 0 && !csv.text(row, column).empty()) csv.fail(row, column, "must be positive");
    return value;
  }

  void tiles(const std::string& folder) {
    static constexpr std::string_view columns[] = {"bytes", "m", "n", "efficiency"};
    auto csv = open(folder + "/tiles.csv", columns);
    if (!csv) return;
    for (size_t row = 0; row < csv->rows(); ++row) {
      const Tile tile{static_cast<int64_t>(positive(*csv, row, 0)), positive(*csv, row, 1), positive(*csv, row, 2),
                      positive(*csv, row, 3)};
      if (tile.efficiency > 1) csv->fail(row, 3, "above 1");
      set_.tiles.push_back(tile);
    }
    collect(*csv);
  }
  void gemm(const std::string& folder, uint16_t index) {
    static constexpr std::string_view columns[] = {"series", "dtype", "layout", "accumulate", "regime",
                                                   "groups", "m",     "n",      "k",          "tflops"};
    if (!std::filesystem::exists(folder + "/gemm.csv")) return;
    auto csv = open(folder + "/gemm.csv", columns);
    if (!csv) return;
    set_.gemm.reserve(set_.gemm.size() + csv->rows());
    for (size_t row = 0; row < csv->rows(); ++row) {
      GemmPoint p;
      p.bytes = csv->choice(row, 1, kDTypes) == 2 ? 1 : 2;
      p.layout = static_cast<Layout>(csv->choice(row, 2, kLayouts));
      static constexpr double bytes_of[] = {0, 4, 2};
      p.accumulate = bytes_of[csv->choice(row, 3, kAccumulate)];
      p.regime = static_cast<Regime>(csv->choice(row, 4, kRegimes));
      p.groups = positive(*csv, row, 5);
      p.m = positive(*csv, row, 6);
      p.n = positive(*csv, row, 7);
      p.k = positive(*csv, row, 8);
      p.flops_per_second = positive(*csv, row, 9) * 1e12;
      p.set = index;
      if (row == 0 || csv->text(row, 0) != csv->text(row - 1, 0)) ++series_;
      p.series = series_;
      set_.gemm.push_back(p);
    }
    collect(*csv);
  }
  void attention(const std::string& folder, uint16_t index) {
    static constexpr std::string_view columns[] = {"series", "kernel",   "pass",   "mask",  "batch", "seq",
                                                   "heads",  "kv_heads", "qk_dim", "v_dim", "tflops"};
    if (!std::filesystem::exists(folder + "/attention.csv")) return;
    auto csv = open(folder + "/attention.csv", columns);
    if (!csv) return;
    for (size_t row = 0; row < csv->rows(); ++row) {
      AttentionPoint p;
      p.kernel = static_cast<uint8_t>(csv->choice(row, 1, kAttentionKernels));
      p.pass = static_cast<Pass>(csv->choice(row, 2, kPasses));
      p.causal = csv->choice(row, 3, kMasks) == 1;
      double* fields[] = {&p.batch, &p.seq, &p.heads, &p.kv_heads, &p.qk_dim, &p.v_dim, &p.flops_per_second};
      for (size_t i = 0; i < 7; ++i) *fields[i] = positive(*csv, row, 4 + i);
      p.flops_per_second *= 1e12;
      p.set = index;
      set_.attention.push_back(p);
    }
    collect(*csv);
  }
  void memory(const std::string& folder, uint16_t index) {
    static constexpr std::string_view columns[] = {"series", "class", "rows", "columns", "bytes", "us"};
    if (!std::filesystem::exists(folder + "/memory.csv")) return;
    auto csv = open(folder + "/memory.csv", columns);
    if (!csv) return;
    for (size_t row = 0; row < csv->rows(); ++row)
      set_.memory.push_back({std::string(csv->text(row, 1)), positive(*csv, row, 2), positive(*csv, row, 3),
                             positive(*csv, row, 4), positive(*csv, row, 5) * 1e-6, index});
    collect(*csv);
  }

  std::string root_;
  std::vector<std::string> also_;
  uint16_t series_ = 0;
};

}  // namespace

Result<KernelSet> read_kernel_set(const std::string& data, const std::string& name) {
  Reader reader(data);
  if (!reader.known(name))
    return Diagnostic{fmt::format("{}/kernels/{}", data, name), "no such kernel set", reader.hint(name)};
  reader.read(name);
  if (reader.errors_.empty()) {
    const Facts& f = reader.set_.facts();
    for (const FactKey& k : kFactKeys)
      if (f.*(k.member) == 0 && k.member != &Facts::peak_8 && k.member != &Facts::gemm_split_us &&
          k.member != &Facts::attention_ramp && k.member != &Facts::batch_unaligned)
        reader.errors_.push_back(
            {fmt::format("{}/kernels/{}/device.csv", data, name), fmt::format("'{}' is missing", k.key), ""});
    if (reader.set_.tiles.empty())
      reader.errors_.push_back({fmt::format("{}/kernels/{}/tiles.csv", data, name), "no tiles", ""});
  }
  if (!reader.errors_.empty()) return reader.errors_;
  return std::move(reader.set_);
}

}  // namespace wt::sim
