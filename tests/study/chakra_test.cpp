// Chakra traces read back: by protoc with the published schema, and by a reader and a replay of our own. What the plan says
// of order, groups and partners is in the files, whole: replayed from them alone, a step takes as long as it was simulated.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/file.hpp"
#include "core/spec/read.hpp"
#include "core/trace/export_chakra.hpp"
#include "study/run_job.hpp"

namespace wt::study {
namespace {

using testing::HasSubstr;

struct Node {
  uint64_t id = 0, type = 0, micros = 0;
  std::string name;
  std::vector<uint64_t> deps;
  std::map<std::string, std::string> text;
  std::map<std::string, int64_t> number;
};

/// Fields of a message: (number, value or bytes).
struct Field {
  uint64_t number = 0, value = 0;
  std::string_view bytes;
};

uint64_t varint(std::string_view& in) {
  uint64_t v = 0;
  for (int shift = 0; !in.empty() && shift < 64; shift += 7) {
    const auto c = static_cast<unsigned char>(in[0]);
    in.remove_prefix(1);
    v |= uint64_t{c & 0x7fu} << shift;
    if (c < 0x80) break;
  }
  return v;
}

std::string_view framed(std::string_view& in) {
  const uint64_t n = varint(in);
  EXPECT_LE(n, in.size());
  const std::string_view m = in.substr(0, n);
  in.remove_prefix(m.size());
  return m;
}

std::vector<Field> fields(std::string_view in) {
  std::vector<Field> out;
  while (!in.empty()) {
    const uint64_t key = varint(in);
    Field f{key >> 3, 0, {}};
    if ((key & 7) == 2)
      f.bytes = framed(in);
    else
      f.value = varint(in);
    out.push_back(f);
  }
  return out;
}

Node node_of(std::string_view message) {
  Node n;
  for (const Field& f : fields(message)) {
    if (f.number == 1) n.id = f.value;
    if (f.number == 2) n.name = f.bytes;
    if (f.number == 3) n.type = f.value;
    if (f.number == 7) n.micros = f.value;
    if (f.number == 4 || f.number == 5)
      for (std::string_view list = f.bytes; !list.empty();) n.deps.push_back(varint(list));
    if (f.number != 10) continue;
    std::string name;
    for (const Field& a : fields(f.bytes)) {
      if (a.number == 1) name = a.bytes;
      if (a.number == 29) n.text[name] = a.bytes;
      if (a.number != 1 && a.number != 29) n.number[name] = static_cast<int64_t>(a.value);
    }
  }
  return n;
}

enum Type : uint64_t { kLoad = 2, kStore, kCompute, kSend, kReceive, kCollective };

struct Exported {
  std::map<uint32_t, std::vector<Node>> ranks;
  nlohmann::json groups;
  double simulated_s = 0;
  std::string prefix;
};

class Chakra : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// A job whose kernels take microseconds, so that whole ones tell of its time.
  Exported exported(const std::vector<std::string>& strategy, bool all_ranks = true) {
    std::vector<std::string> set = {"model.hidden=2048",      "model.heads=16",        "model.head_dim=128",
                                    "model.kv_heads=16",      "model.ffn_hidden=8192", "model.layers=4",
                                    "model.max_context=2048", "training.seq_len=2048"};
    set.insert(set.end(), strategy.begin(), strategy.end());
    auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml", set);
    EXPECT_TRUE(job) << to_text(job.errors());
    RunOptions options;
    options.all_ranks = all_ranks;
    options.keep_trace = true;
    auto run = run_job(job.value(), options);
    EXPECT_TRUE(run) << to_text(run.errors());
    Exported out;
    out.prefix = folder_ / "job";
    out.simulated_s = run.value().report.step_time.seconds();
    auto wrote = trace::write_chakra(out.prefix, *run.value().trace, run.value().plan);
    EXPECT_TRUE(wrote) << to_text(wrote.errors());
    const int64_t world = run.value().plan.mesh.ranks();
    EXPECT_EQ(static_cast<int64_t>(wrote.value().files), world);
    for (uint32_t r = 0; int64_t{r} < world; ++r) {
      const std::string bytes = read_file(fmt::format("{}.{}.et", out.prefix, r)).value();
      std::string_view in = bytes;
      framed(in);  // metadata
      while (!in.empty()) out.ranks[r].push_back(node_of(framed(in)));
    }
    out.groups = nlohmann::json::parse(read_file(out.prefix + ".comm_group.json").value());
    return out;
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("chakra{}", ::getpid());
};

void expect_sound(const Exported& e) {
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int64_t>> sent, received;  // by (from, to, tag)
  std::map<std::string, std::map<uint32_t, std::vector<std::pair<int64_t, int64_t>>>> calls;
  for (const auto& [rank, nodes] : e.ranks)
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& n = nodes[i];
      ASSERT_EQ(n.id, i);
      for (const uint64_t d : n.deps) ASSERT_LT(d, n.id) << n.name;
      ASSERT_TRUE(n.number.contains("is_cpu_op")) << n.name;
      if (n.type == kCompute && n.number.contains("num_ops")) { EXPECT_GE(n.number.at("num_ops"), 0) << n.name; }
      if (n.type == kSend || n.type == kReceive) {
        const bool send = n.type == kSend;
        EXPECT_EQ(n.number.at(send ? "comm_src" : "comm_dst"), rank);
        (send ? sent : received)[{n.number.at("comm_src"), n.number.at("comm_dst"), n.number.at("comm_tag")}].push_back(
            n.number.at("comm_size"));
      }
      if (n.type == kCollective)
        calls[n.text.at("pg_name")][rank].emplace_back(n.number.at("comm_type"), n.number.at("comm_size"));
    }
  EXPECT_EQ(sent, received);
  for (const auto& [key, sizes] : sent) EXPECT_EQ(sizes.size(), 1u) << "a tag used twice";
  EXPECT_EQ(calls.size(), e.groups.size());
  for (const auto& [group, of_rank] : calls) {
    ASSERT_TRUE(e.groups.contains(group)) << group;
    EXPECT_EQ(of_rank.size(), e.groups[group].size()) << group;
    for (const auto& member : e.groups[group])
      EXPECT_EQ(of_rank.at(member.get<uint32_t>()), of_rank.begin()->second) << group;
  }
}

/// From the files alone: compute takes its time, communication the least time of its members from when the last is ready.
double replay(const Exported& e) {
  std::map<uint32_t, std::vector<int64_t>> end;  // microseconds; -1: not yet
  std::map<std::string, std::vector<std::pair<uint32_t, uint64_t>>> meetings;
  std::map<std::pair<uint32_t, uint64_t>, std::string> meeting_of;
  for (const auto& [rank, nodes] : e.ranks) {
    end[rank].assign(nodes.size(), -1);
    std::map<std::string, int> nth;
    for (const Node& n : nodes) {
      std::string key;
      if (n.type == kCollective) key = fmt::format("{}#{}", n.text.at("pg_name"), nth[n.text.at("pg_name")]++);
      if (n.type == kSend || n.type == kReceive)
        key = fmt::format("{}>{}:{}", n.number.at("comm_src"), n.number.at("comm_dst"), n.number.at("comm_tag"));
      if (key.empty()) continue;
      meetings[key].emplace_back(rank, n.id);
      meeting_of[{rank, n.id}] = key;
    }
  }
  auto ready = [&](uint32_t rank, uint64_t id) {
    int64_t at = 0;
    for (const uint64_t d : e.ranks.at(rank)[id].deps) {
      if (end[rank][d] < 0) return int64_t{-1};
      at = std::max(at, end[rank][d]);
    }
    return at;
  };
  int64_t last = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [rank, nodes] : e.ranks)
      for (const Node& n : nodes) {
        if (end[rank][n.id] >= 0) continue;
        const auto meeting = meeting_of.find({rank, n.id});
        int64_t at = 0, takes = static_cast<int64_t>(n.micros);
        if (meeting == meeting_of.end()) {
          at = ready(rank, n.id);
        } else {
          for (const auto& [r, id] : meetings[meeting->second]) {
            const int64_t there = ready(r, id);
            at = there < 0 || at < 0 ? -1 : std::max(at, there);
            takes = std::min(takes, static_cast<int64_t>(e.ranks.at(r)[id].micros));
          }
        }
        if (at < 0) continue;
        moved = true;
        last = std::max(last, at + takes);
        if (meeting == meeting_of.end())
          end[rank][n.id] = at + takes;
        else
          for (const auto& [r, id] : meetings[meeting->second]) end[r][id] = at + takes;
      }
  }
  for (const auto& [rank, ends] : end)
    for (size_t i = 0; i < ends.size(); ++i)
      EXPECT_GE(ends[i], 0) << "rank " << rank << " is stuck at " << e.ranks.at(rank)[i].name;
  return static_cast<double>(last) * 1e-6;
}

TEST_F(Chakra, ReplayedFromTheFilesAStepTakesAsLong) {
  const std::vector<std::vector<std::string>> jobs = {
      {},  // tensor 2, pipeline 2, data 2
      {"strategy.schedule=interleaved", "strategy.virtual_stages=2", "strategy.overlap_grad_reduce=true"},
      {"strategy.tensor=1", "strategy.pipeline=1", "strategy.data_parallel=fsdp2"},
      {"strategy.tensor=1", "strategy.pipeline=1", "strategy.context=4"},
      {"strategy.tensor=4", "strategy.pipeline=1", "strategy.data_parallel=distributed_optimizer"}};
  for (const auto& job : jobs) {
    SCOPED_TRACE(testing::PrintToString(job));
    const Exported e = exported(job);
    expect_sound(e);
    EXPECT_NEAR(replay(e), e.simulated_s, 0.01 * e.simulated_s);
  }
}

// A folded trace gives every rank a file, and the files still fit together.
TEST_F(Chakra, FoldedRanksHaveFilesToo) {
  const Exported e = exported({}, false);
  expect_sound(e);
  EXPECT_NEAR(replay(e), e.simulated_s, 0.01 * e.simulated_s);
}

TEST_F(Chakra, DecodesByThePublishedSchema) {
  if (std::system("protoc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "protoc is not installed";
  const Exported e = exported({});
  const std::string bytes = read_file(e.prefix + ".0.et").value();
  std::string file;
  auto field = [&](char key, std::string_view m) {
    file += key;
    for (size_t n = m.size();; n >>= 7) {
      file += static_cast<char>(n < 0x80 ? n : n | 0x80);
      if (n < 0x80) break;
    }
    file += m;
  };
  std::string_view in = bytes;
  field('\x0a', framed(in));                      // File.metadata
  while (!in.empty()) field('\x12', framed(in));  // File.node
  const std::string path = (folder_ / "file").string();
  ASSERT_TRUE(write_file_atomically(path, file));
  const std::string schema = WT_SOURCE_DIR "/tests/core/trace";
  ASSERT_EQ(
      std::system(
          fmt::format("protoc --decode=ChakraProtoMsg.File -I'{0}' '{0}/chakra_subset.proto' < '{1}' > '{1}.text'",
                      schema, path)
              .c_str()),
      0);
  std::ifstream text(path + ".text");
  std::map<std::string, size_t> lines;
  for (std::string line; std::getline(text, line);) {
    const size_t start = line.find_first_not_of(' ');
    EXPECT_FALSE(std::isdigit(static_cast<unsigned char>(line[start]))) << line;
    ++lines[line.substr(start)];
  }
  EXPECT_EQ(lines["node {"], e.ranks.at(0).size());
  EXPECT_EQ(lines["version: \"0.0.4\""], 1u);
  size_t collectives = 0;
  for (const Node& n : e.ranks.at(0)) collectives += n.type == kCollective;
  EXPECT_EQ(lines["type: COMM_COLL_NODE"], collectives);
}

TEST_F(Chakra, RefusesWhatItCannotWrite) {
  auto job = read_job(WT_SOURCE_DIR "/examples/tiny-gpt.yaml");
  ASSERT_TRUE(job) << to_text(job.errors());
  RunOptions options;
  options.keep_trace = true;
  auto run = run_job(job.value(), options);
  ASSERT_TRUE(run) << to_text(run.errors());
  const std::string prefix = folder_ / "job";
  auto outside = trace::write_chakra(prefix, *run.value().trace, run.value().plan, {0, 8, 9});
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.errors().size(), 2u);
  EXPECT_THAT(to_text(outside.errors()), HasSubstr("rank 8: is not in the trace"));
  auto many = trace::write_chakra(prefix, *run.value().trace, run.value().plan, {}, 100);
  ASSERT_FALSE(many);
  EXPECT_THAT(to_text(many.errors()), HasSubstr("more than 100"));
  EXPECT_FALSE(trace::write_chakra("/no/such/folder/job", *run.value().trace, run.value().plan, {0}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace wt::study
