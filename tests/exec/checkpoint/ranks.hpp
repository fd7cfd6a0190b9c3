// Ranks of a plan as threads with host memory, whose state has known bytes: what checkpoint tests save and load.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/lower/lower.hpp"
#include "core/plan/plan_io.hpp"
#include "core/spec/read.hpp"
#include "exec/checkpoint/plan_state.hpp"
#include "exec/checkpoint/store.hpp"

namespace wt::exec {

/// Under ThreadSanitizer every access takes some ten times as long: fewer cases see the same threads.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Host memory; nothing is ever launched.
class HostDevice final : public Device {
 public:
  std::string_view kind() const override { return "host"; }
  std::string description() const override { return "memory of a test"; }
  std::optional<std::string> unsupported(const Launch&) const override { return std::nullopt; }
  Result<std::byte*> allocate(plan::Space, Bytes) override { return Diagnostic{"host", "not used", ""}; }
  void launch(const Launch&, plan::Stream, Ticket) override {}
  void copy(const CopyLaunch&, plan::Stream, Ticket) override {}
  void wait(plan::Stream, Ticket) override {}
  Status wait_host(Ticket) override { return ok_status(); }
  Status synchronize() override { return ok_status(); }
  Status read(const Operand& from, void* to) override {
    std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
    return ok_status();
  }
  Status write(const void* from, const Operand& to) override {
    std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
    return ok_status();
  }
  Result<Interval> interval(Ticket) override { return Interval{}; }
};

/// Index in the whole tensor, element by element: the definition, where segments_of is the fast way.
inline int64_t global_index(const Layout& l, int64_t local) {
  int64_t index = 0, inner = l.elements();
  for (size_t d = 0; d < l.shape.size(); ++d) {
    inner /= l.shape[d];
    int64_t size = l.shape[d], i = local / inner;
    local %= inner;
    for (const Cut& c : l.cuts)
      if (c.dim == d) {
        const int64_t share = l.shape[d] / c.blocks;
        i = i / share * share * c.parts + c.index * share + i % share;
        size *= c.parts;
      }
    index = index * size + i;
  }
  return index;
}

inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// The bytes of an element depend on what it is, not on where it lies: key_of its tensor, and its index.
inline uint64_t key_of(const TensorName& t, uint64_t version) {
  uint64_t h = mixed(version ^ static_cast<uint64_t>(t.layer + 1) << 8 ^ static_cast<uint64_t>(t.role));
  for (const char c : t.name) h = mixed(h ^ static_cast<uint8_t>(c));
  return h;
}
inline uint64_t bits(uint64_t key, int64_t global) { return mixed(key ^ static_cast<uint64_t>(global)); }

inline bool is_padding(const Holding& h, int64_t global) { return h.padding_from >= 0 && global >= h.padding_from; }

/// The memory of one rank.
class RankMemory {
 public:
  RankMemory(const plan::Plan& plan, RankId rank) : plan_(plan) {
    holdings =
        holdings_of(plan, rank, [this](BufferId id, int64_t chunk, int64_t layer) { return locate(id, chunk, layer); });
  }

  /// Only what this rank is to write; the rest may be out of date when a checkpoint is made.
  void fill(uint64_t version) {
    clear();
    for (const Holding& h : holdings) {
      if (!h.written) continue;
      const uint64_t key = key_of(h.tensor, version);
      for (int64_t i = 0; i < h.layout.count; ++i) {
        const uint64_t b = bits(key, global_index(h.layout, h.layout.first + i));
        std::memcpy(static_cast<char*>(h.operand.data) + i * size_of(h.operand.dtype), &b,
                    static_cast<size_t>(size_of(h.operand.dtype)));
      }
    }
  }
  void clear() {
    for (auto& [key, bytes] : storage_) std::fill(bytes->begin(), bytes->end(), std::byte{0xee});
  }
  /// Elements, padding aside, that are not what `fill` of this version makes them.
  int64_t wrong(uint64_t version) const {
    int64_t n = 0;
    for (const Holding& h : holdings) {
      if (!h.loaded) continue;
      const uint64_t key = key_of(h.tensor, version);
      for (int64_t i = 0; i < h.layout.count; ++i) {
        const int64_t global = global_index(h.layout, h.layout.first + i);
        if (is_padding(h, global)) continue;
        const uint64_t b = bits(key, global);
        n += std::memcmp(static_cast<const char*>(h.operand.data) + i * size_of(h.operand.dtype), &b,
                         static_cast<size_t>(size_of(h.operand.dtype))) != 0;
      }
    }
    return n;
  }

  std::vector<Holding> holdings;
  HostDevice device;

 private:
  Operand locate(BufferId id, int64_t chunk, int64_t layer) {
    const plan::Buffer& b = plan_.buffer(id);
    auto& bytes = storage_[{id.v, chunk, layer}];
    if (!bytes) bytes = std::make_unique<std::vector<std::byte>>(static_cast<size_t>(b.bytes().n));
    return {bytes->data(), b.dtype, b.elements(), {}};
  }
  const plan::Plan& plan_;
  std::map<std::tuple<uint32_t, int64_t, int64_t>, std::unique_ptr<std::vector<std::byte>>> storage_;
};

/// gather() of threads.
class Meeting {
 public:
  explicit Meeting(int64_t size) : texts_(static_cast<size_t>(size)), barrier_(size) {}
  Team team(uint32_t rank) {
    return {RankId{rank}, static_cast<int64_t>(texts_.size()),
            [this, rank](std::string_view text) -> Result<std::vector<std::string>> {
              texts_[rank] = text;
              barrier_.arrive_and_wait();
              std::vector<std::string> all = texts_;
              barrier_.arrive_and_wait();
              return all;
            }};
  }

 private:
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

struct Job {
  plan::Plan plan;
  int64_t parameters = 0;  // of the model, without padding
  int64_t world() const { return plan.mesh.ranks(); }
  uint64_t digest() const { return plan::digest(plan); }
};

inline Job job_of(const std::vector<std::string>& overrides, const char* example = "tiny-gpt") {
  std::vector<std::string> all = {"strategy.tensor=1", "strategy.pipeline=1", "strategy.virtual_stages=1",
                                  "strategy.schedule=1f1b", "cluster.nodes=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  auto job = read_job(fmt::format("{}/examples/{}.yaml", WT_SOURCE_DIR, example), all);
  EXPECT_TRUE(job) << to_text(job.errors());
  if (!job) return {};
  auto plan = lower::lower(job.value());
  EXPECT_TRUE(plan) << to_text(plan.errors());
  if (!plan) return {};
  return {std::move(plan.value()), count_parameters(job.value().model).total()};
}

/// All ranks of a plan; `each(rank)` runs on a thread for each.
class Ranks {
 public:
  explicit Ranks(const Job& job) : meeting_(job.world()) {
    for (uint32_t r = 0; r < job.world(); ++r) memory_.push_back(std::make_unique<RankMemory>(job.plan, RankId{r}));
  }
  template <class F>
  void each(F&& f) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < memory_.size(); ++r) threads.emplace_back([&, r] { f(*memory_[r], meeting_.team(r)); });
    for (std::thread& t : threads) t.join();
  }
  RankMemory& operator[](size_t r) { return *memory_[r]; }
  size_t size() const { return memory_.size(); }

  void fill(uint64_t version) {
    for (auto& m : memory_) m->fill(version);
  }
  int64_t wrong(uint64_t version) {
    int64_t n = 0;
    for (auto& m : memory_) n += m->wrong(version);
    return n;
  }

  /// One synchronous save; the first rank's answer (all have the same).
  Status save(const std::string& root, uint64_t digest, const Progress& progress, int64_t keep = 2) {
    std::vector<Diagnostics> faults(memory_.size());
    each([&](RankMemory& m, const Team& team) {
      Saver saver({root, keep, false}, team, m.device);
      if (auto s = saver.save({digest, progress, m.holdings}); !s) faults[team.rank.v] = s.errors();
    });
    for (const Diagnostics& f : faults) EXPECT_EQ(to_text(f), to_text(faults[0]));
    return status_of(faults[0]);
  }
  Result<std::optional<Loaded>> load(const std::string& root) {
    std::vector<std::optional<Result<std::optional<Loaded>>>> out(memory_.size());
    each([&](RankMemory& m, const Team& team) {
      m.clear();
      out[team.rank.v].emplace(load_newest(root, m.holdings, team, m.device));
    });
    for (const auto& o : out) EXPECT_EQ(o->ok(), out[0]->ok());
    return *out[0];
  }

 private:
  std::vector<std::unique_ptr<RankMemory>> memory_;
  Meeting meeting_;
};

}  // namespace wt::exec
