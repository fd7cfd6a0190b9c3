// Exports read back: Chrome's JSON with a JSON parser, Perfetto with a walk of its own over the wire format and with
// protoc against the published schema. Not a picture: whether it looks right is for ui.perfetto.dev.
#include "core/trace/export.hpp"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/base/file.hpp"
#include "core/plan/plan_io.hpp"
#include "core/trace/file.hpp"
#include "sample_trace.hpp"
#include "tests/core/plan/small_plan.hpp"

namespace wt::trace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// The small plan with a second variant of the step, which has one micro-batch less: steps of a trace may differ.
plan::Plan plan_of_two_variants() {
  plan::Plan p = plan::small_plan();
  for (plan::Program& g : p.programs) {
    const auto& o = g.steps[0].order;
    g.steps.push_back({"short", {o[0], o[2], o[4]}});
  }
  return p;
}

/// Every op takes 2 us + 1 ns for each op before it, one after another; a receive is ready from the start of its step,
/// as one that waits is, and ends 1 us after its send. `variant` of each step.
Trace trace_of(const plan::Plan& plan, std::vector<uint32_t> ranks, std::vector<size_t> variants) {
  Trace t;
  t.meta.cluster = "a \"quoted\" cluster";
  t.plan_text = plan::print(plan);
  for (const uint32_t r : ranks) t.meta.ranks.push_back({r, 1});
  for (uint32_t step = 0; step < variants.size(); ++step)
    for (const uint32_t r : ranks) {
      RankSpans run{r, step, {}};
      constexpr int64_t start = 500;  // instants of every step count from the end of the one before
      int64_t now = start;
      std::array<int64_t, plan::kStreams> ends;
      ends.fill(start);
      const plan::Program& program = plan.programs[program_of(plan, RankId{r}).v];
      const auto& order = program.steps[variants[step]].order;
      for (uint32_t i = 0; i < order.size(); ++i)
        plan::for_each_op(plan.block(order[i].block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t instance) {
          const bool receives = std::holds_alternative<plan::Receive>(op.body);
          int64_t& stream = ends[static_cast<size_t>(op.stream)];
          const int64_t begin = receives ? stream : now;
          now += 2'001'000 + (receives ? 50'000'000 : 0);
          run.spans.push_back({i, instance, begin, now});
          stream = now;
        });
      t.ranks.push_back(std::move(run));
    }
  return t;
}

/// Where each step is drawn from: behind the longest of every step before.
std::vector<int64_t> origins_of(const Trace& t) {
  std::vector<int64_t> longest;
  for (const RankSpans& r : t.ranks)
    for (const Span& s : r.spans) {
      longest.resize(std::max<size_t>(longest.size(), r.step + 1));
      longest[r.step] = std::max(longest[r.step], s.end_ps);
    }
  std::vector<int64_t> origins = {0};
  for (const int64_t l : longest) origins.push_back(origins.back() + l);
  return origins;
}

size_t spans_of(const Trace& t) {
  size_t n = 0;
  for (const RankSpans& r : t.ranks) n += r.spans.size();
  return n;
}

const plan::Op& op_of(const plan::Plan& plan, const RankSpans& r, const Span& s, size_t variant) {
  const plan::Op* found = nullptr;
  const auto& order = plan.programs[program_of(plan, RankId{r.rank}).v].steps[variant].order;
  plan::for_each_op(plan.block(order[s.invocation].block), [&](const plan::Op& op, uint32_t, int64_t, uint32_t i) {
    if (i == s.op) found = &op;
  });
  return *found;
}

/// Of small_plan: both bucket buffers of 12 floats; views own nothing.
constexpr int64_t kAfterSetup = 96;

// --- a reader of what the Perfetto export may hold, by the published field numbers --------------------------------

struct Field {
  uint64_t number = 0, value = 0;
  std::string_view bytes;
};

std::vector<Field> fields_of(std::string_view in) {
  std::vector<Field> out;
  size_t at = 0;
  auto varint = [&] {
    uint64_t v = 0;
    for (int shift = 0; at < in.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(in[at++]);
      v |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return v;
    }
    ADD_FAILURE() << "a varint is cut";
    return v;
  };
  while (at < in.size()) {
    Field f;
    const uint64_t key = varint();
    f.number = key >> 3;
    if ((key & 7) == 0) {
      f.value = varint();
    } else if ((key & 7) == 1 && at + 8 <= in.size()) {
      for (int i = 0; i < 8; ++i) f.value |= uint64_t{static_cast<unsigned char>(in[at++])} << (8 * i);
    } else if (uint64_t n = 0; (key & 7) == 2 && (n = varint()) <= in.size() - at) {
      f.bytes = in.substr(at, n);
      at += n;
    } else {
      ADD_FAILURE() << "wire type " << (key & 7) << " at byte " << at << " of " << in.size();
      return out;
    }
    out.push_back(f);
  }
  return out;
}

struct PerfettoSlice {
  std::string name, category;
  uint64_t begin_ns = 0, end_ns = 0;
  std::map<std::string, int64_t> args;
  std::map<std::string, std::string> texts;
};
struct PerfettoTrack {
  std::string name, process;  // process: name of the one that it belongs to
  uint64_t parent = 0, pid = 0, tid = 0;
  bool is_process = false, is_counter = false;
  std::vector<PerfettoSlice> slices;
  std::vector<std::pair<uint64_t, double>> counts;
};
struct PerfettoArrow {
  uint64_t from_track = 0, to_track = 0, from_ns = 0, to_ns = 0;
  int sends = 0, receives = 0;
};
struct PerfettoFile {
  std::map<uint64_t, PerfettoTrack> tracks;
  std::map<uint64_t, PerfettoArrow> arrows;
  size_t packets = 0;

  const PerfettoTrack& track(std::string_view process, std::string_view name) const {
    for (const auto& [id, t] : tracks)
      if (t.name == name && !t.is_process && t.process == process) return t;
    ADD_FAILURE() << "no track " << name << " of " << process;
    static const PerfettoTrack none;
    return none;
  }
};

PerfettoFile parse_perfetto(std::string_view bytes) {
  PerfettoFile file;
  std::map<uint64_t, std::map<uint64_t, std::string>> interned;  // kind (field number), id
  std::set<uint64_t> open;
  auto text_of = [&](uint64_t kind, uint64_t id) {
    EXPECT_TRUE(interned[kind].contains(id)) << "interned " << kind << " " << id << " used before it is told";
    return interned[kind][id];
  };
  for (const Field& top : fields_of(bytes)) {
    EXPECT_EQ(top.number, 1u);
    uint64_t at = 0, flags = 0, sequence = 0;
    std::string_view event, data, descriptor;
    for (const Field& f : fields_of(top.bytes)) {
      if (f.number == 8) at = f.value;
      if (f.number == 10) sequence = f.value;
      if (f.number == 13) flags = f.value;
      if (f.number == 11) event = f.bytes;
      if (f.number == 12) data = f.bytes;
      if (f.number == 60) descriptor = f.bytes;
    }
    EXPECT_NE(sequence, 0u);
    if (file.packets++ == 0) { EXPECT_EQ(flags, 1u) << "the first packet says that no earlier state is needed"; }
    for (const Field& kind : fields_of(data)) {
      uint64_t id = 0;
      std::string text;
      for (const Field& f : fields_of(kind.bytes)) (f.number == 1 ? void(id = f.value) : void(text = f.bytes));
      EXPECT_TRUE(interned[kind.number].emplace(id, text).second);
    }
    if (!descriptor.empty()) {
      uint64_t uuid = 0;
      PerfettoTrack t;
      for (const Field& f : fields_of(descriptor)) {
        if (f.number == 1) uuid = f.value;
        if (f.number == 2) t.name = f.bytes;
        if (f.number == 5) t.parent = f.value;
        if (f.number == 8) t.is_counter = true;
        if (f.number == 3) {
          t.is_process = true;
          for (const Field& p : fields_of(f.bytes)) (p.number == 1 ? void(t.pid = p.value) : void(t.name = p.bytes));
        }
        if (f.number == 4)
          for (const Field& p : fields_of(f.bytes)) {
            if (p.number == 1) t.pid = p.value;
            if (p.number == 2) t.tid = p.value;
          }
      }
      if (t.parent) {
        EXPECT_TRUE(file.tracks.contains(t.parent)) << t.name;
        t.process = file.tracks[t.parent].name;
        if (t.tid) { EXPECT_EQ(t.pid, file.tracks[t.parent].pid); }
      }
      EXPECT_TRUE(file.tracks.emplace(uuid, t).second) << "track " << uuid << " twice";
    }
    if (event.empty()) continue;
    uint64_t type = 0, uuid = 0;
    double count = 0;
    PerfettoSlice s;
    std::vector<uint64_t> flows, ends;
    for (const Field& f : fields_of(event)) {
      if (f.number == 9) type = f.value;
      if (f.number == 11) uuid = f.value;
      if (f.number == 3) s.category = text_of(1, f.value);
      if (f.number == 10) s.name = text_of(2, f.value);
      if (f.number == 30) count = static_cast<double>(static_cast<int64_t>(f.value));
      if (f.number == 44) count = std::bit_cast<double>(f.value);
      if (f.number == 47) flows.push_back(f.value);
      if (f.number == 48) ends.push_back(f.value);
      if (f.number != 4) continue;
      std::string key;
      for (const Field& a : fields_of(f.bytes)) {
        if (a.number == 1) key = text_of(3, a.value);
        if (a.number == 4) s.args[key] = static_cast<int64_t>(a.value);
        if (a.number == 17) s.texts[key] = text_of(29, a.value);
      }
    }
    EXPECT_TRUE(file.tracks.contains(uuid)) << "an event on a track that was not told";
    PerfettoTrack& t = file.tracks[uuid];
    if (type == 1) {
      EXPECT_TRUE(open.insert(uuid).second) << "a slice within a slice on " << t.name;
      if (!t.slices.empty()) { EXPECT_GE(at, t.slices.back().end_ns) << t.name; }
      s.begin_ns = at;
      t.slices.push_back(s);
    } else if (type == 2) {
      EXPECT_EQ(open.erase(uuid), 1u) << "an end without a begin on " << t.name;
      if (t.slices.empty()) continue;
      EXPECT_GE(at, t.slices.back().begin_ns);
      t.slices.back().end_ns = at;
    } else {
      EXPECT_EQ(type, 4u);
      EXPECT_TRUE(t.is_counter);
      t.counts.emplace_back(at, count);
    }
    for (const uint64_t id : flows) {
      PerfettoArrow& a = file.arrows[id];
      a.from_track = uuid;
      a.from_ns = at;
      ++a.sends;
    }
    for (const uint64_t id : ends) {
      PerfettoArrow& a = file.arrows[id];
      a.to_track = uuid;
      a.to_ns = at;
      ++a.receives;
    }
  }
  EXPECT_TRUE(open.empty());
  return file;
}

// ------------------------------------------------------------------------------------------------------ the tests

class TraceExport : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("wt_export_" + std::to_string(::getpid()) + "_" +
                                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }

  std::string written(const std::string& name, const Trace& t, const plan::Plan& plan) {
    const Status s = write_as(path(name), t, plan);
    EXPECT_TRUE(s.ok()) << (s.ok() ? "" : to_text(s.errors()));
    auto bytes = read_file(path(name));
    return bytes.ok() ? bytes.value() : "";
  }
  /// Empty if the stream was cut.
  std::string unpacked(const std::string& name, size_t most) const {
    gzFile in = gzopen(path(name).c_str(), "rb");
    if (!in) return "";
    std::string back(most + 1, '\0');
    const int n = gzread(in, back.data(), static_cast<unsigned>(back.size()));
    if (gzclose_r(in) != Z_OK || n < 0) return "";
    back.resize(static_cast<size_t>(n));
    return back;
  }
  /// Events of one kind, in the order of the file.
  static std::vector<Json> events(const Json& file, std::string_view kind) {
    std::vector<Json> out;
    for (const Json& e : file.at("traceEvents"))
      if (e.at("ph") == kind) out.push_back(e);
    return out;
  }

  plan::Plan plan_ = plan_of_two_variants();
  Trace trace_ = trace_of(plan_, {0, 1, 2, 3}, {0, 1, 0});
  fs::path directory_;
};

TEST_F(TraceExport, TheEndingNamesTheFormat) {
  EXPECT_EQ(format_of("a/b.wttrace").value(), Format::native);
  EXPECT_EQ(format_of("b.pftrace").value(), Format::perfetto);
  EXPECT_EQ(format_of("b.perfetto-trace").value(), Format::perfetto);
  EXPECT_EQ(format_of("b.json").value(), Format::chrome);
  EXPECT_EQ(format_of("b.json.gz").value(), Format::chrome_gz);
  for (const char* bad : {"b", "b.gz", "b.txt", "json", ""}) {
    auto f = format_of(bad);
    ASSERT_FALSE(f.ok()) << bad;
    EXPECT_NE(f.errors()[0].hint.find(".json.gz"), std::string::npos);
  }
}

TEST_F(TraceExport, ChromeHoldsEverySpanUnderItsName) {
  const Json file = Json::parse(written("t.json", trace_, plan_));
  const auto slices = events(file, "X");
  ASSERT_EQ(slices.size(), spans_of(trace_));
  constexpr size_t kVariants[] = {0, 1, 0};
  const std::vector<int64_t> origins = origins_of(trace_);
  size_t i = 0;
  for (const RankSpans& r : trace_.ranks)
    for (const Span& s : r.spans) {
      const Json& e = slices[i++];
      const plan::Op& op = op_of(plan_, r, s, kVariants[r.step]);
      EXPECT_EQ(e.at("name"), op.name);
      EXPECT_EQ(e.at("cat"), std::string(to_text(op.phase)));
      EXPECT_EQ(e.at("pid"), r.rank);
      EXPECT_EQ(e.at("args").at("step"), r.step);
      EXPECT_NEAR(e.at("ts").get<double>() * 1e6, static_cast<double>(origins[r.step] + s.begin_ps), 1);
      EXPECT_NEAR(e.at("dur").get<double>() * 1e6, static_cast<double>(s.end_ps - s.begin_ps), 1);
    }
}

TEST_F(TraceExport, StepsStandBehindEachOther) {
  const Json file = Json::parse(written("t.json", trace_, plan_));
  std::map<uint32_t, std::pair<double, double>> extent;
  for (const Json& e : events(file, "X")) {
    auto& [begin, end] = extent.try_emplace(e.at("args").at("step"), 1e30, 0).first->second;
    begin = std::min(begin, e.at("ts").get<double>());
    end = std::max(end, e.at("ts").get<double>() + e.at("dur").get<double>());
  }
  ASSERT_EQ(extent.size(), 3u);
  for (uint32_t step = 1; step < 3; ++step) EXPECT_GT(extent[step].first, extent[step - 1].second - 1e-6) << step;
}

TEST_F(TraceExport, ChromeNamesRanksAndStreams) {
  const Json file = Json::parse(written("t.json", trace_, plan_));
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  for (const Json& e : events(file, "M")) {
    if (e.at("name") == "process_name") {
      EXPECT_TRUE(processes.emplace(e.at("pid"), e.at("args").at("name")).second) << "named twice";
    }
    if (e.at("name") == "thread_name") {
      EXPECT_TRUE(threads.emplace(std::pair(e.at("pid"), e.at("tid")), e.at("args").at("name")).second);
    }
  }
  ASSERT_EQ(processes.size(), 4u);
  EXPECT_EQ(processes[0], "rank 0 (pp 0, dp 0)");
  EXPECT_EQ(processes[3], "rank 3 (pp 1, dp 1)");
  std::map<std::pair<int, int>, double> end;
  std::set<std::pair<int, int>> used;
  for (const Json& e : events(file, "X")) {
    const std::pair<int, int> track(e.at("pid"), e.at("tid"));
    ASSERT_TRUE(threads.contains(track));
    used.insert(track);
    EXPECT_GE(e.at("ts").get<double>(), end[track] - 1e-9) << "slices of a stream overlap";
    end[track] = e.at("ts").get<double>() + e.at("dur").get<double>();
  }
  EXPECT_EQ(used.size(), threads.size());  // no empty tracks
  std::set<std::string> names;
  for (const auto& [track, name] : threads)
    if (track.first == 2) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{std::string(to_text(plan::Stream::compute)),
                                          std::string(to_text(plan::Stream::data)),
                                          std::string(to_text(plan::Stream::receive_previous)),
                                          std::string(to_text(plan::Stream::send_previous))}));
}

TEST_F(TraceExport, ChromeArrowsJoinEachSendToItsReceive) {
  const Json file = Json::parse(written("t.json", trace_, plan_));
  std::map<std::string, Json> from, to;
  for (const Json& e : events(file, "s")) EXPECT_TRUE(from.emplace(e.at("id"), e).second) << "an id twice";
  for (const Json& e : events(file, "f")) EXPECT_TRUE(to.emplace(e.at("id"), e).second) << "an id twice";
  // Two replicas, two directions, 2 + 1 + 2 micro-batches.
  ASSERT_EQ(from.size(), 20u);
  ASSERT_EQ(to.size(), 20u);
  /// The slice that an arrow's end binds to.
  auto around = [&](const Json& end) -> Json {
    for (const Json& e : events(file, "X")) {
      const double begin = e.at("ts"), stop = begin + e.at("dur").get<double>(), at = end.at("ts");
      if (e.at("pid") == end.at("pid") && e.at("tid") == end.at("tid") && begin <= at && at < stop) return e;
    }
    return {};
  };
  for (const auto& [id, start] : from) {
    ASSERT_TRUE(to.contains(id));
    const Json& end = to[id];
    EXPECT_EQ(end.at("bp"), "e");
    const Json sent = around(start), received = around(end);
    ASSERT_TRUE(sent.is_object() && received.is_object()) << "an arrow that hangs in the air";
    EXPECT_EQ(sent.at("name"), "send");
    EXPECT_EQ(received.at("name"), "receive");
    EXPECT_EQ(sent.at("args").at("step"), received.at("args").at("step"));
    EXPECT_EQ(sent.at("args").at("micro_batch"), received.at("args").at("micro_batch"));
    EXPECT_EQ(sent.at("cat"), received.at("cat"));
    EXPECT_EQ(std::abs(sent.at("pid").get<int>() - received.at("pid").get<int>()), 2);  // the same replica
  }
}

TEST_F(TraceExport, ArgsComeFromThePlan) {
  const Json file = Json::parse(written("t.json", trace_, plan_));
  int layers = 0, second = 0;
  for (const Json& e : events(file, "X")) {
    const Json& args = e.at("args");
    const int stage = e.at("pid").get<int>() / 2;
    if (e.at("name") == "layer") {
      EXPECT_EQ(args.at("layer"), stage);  // of the model, not of the chunk
      EXPECT_EQ(args.at("chunk"), 0);
      EXPECT_EQ(args.at("block"), stage ? "forward last" : "forward first");
      ++layers;
      second += args.at("micro_batch") == 1;
    }
    if (e.at("name") == "reduce") { EXPECT_EQ(args.at("bytes"), 48); }
    if (e.at("name") == "sgd") { EXPECT_FALSE(args.contains("micro_batch") || args.contains("layer")); }
  }
  EXPECT_EQ(layers, 4 * 5);
  EXPECT_EQ(second, 4 * 2);
}

TEST_F(TraceExport, WhatStandsBeforeTheLayersIsOfNoLayer) {
  plan::Block& b = plan_.blocks[plan::kForward0];
  ASSERT_EQ(b.segments.size(), 1u);
  b.segments = {{0, 1, 1, 0, 0}, {1, 2, 1, 0, 1}};  // "input" as an embedding, the rest repeated for layers
  const Json file = Json::parse(written("t.json", trace_of(plan_, {0}, {0}), plan_));
  for (const Json& e : events(file, "X")) {
    if (e.at("name") == "input") { EXPECT_FALSE(e.at("args").contains("layer")); }
    if (e.at("name") == "layer") { EXPECT_EQ(e.at("args").at("layer"), 0); }
  }
}

TEST_F(TraceExport, AnInvocationOfTwoBindingsNamesTheOneOfEachOp) {
  plan::Program& program = plan_.programs[0];
  program.chunks.push_back(program.chunks[0]);
  program.first_layer.push_back(5);
  plan::Block& b = plan_.blocks[plan::kForward0];
  for (uint32_t i = 0; i < b.ops[1].reads.count; ++i) b.refs[b.ops[1].reads.begin + i].binding = 1;
  program.steps = {{"paired", {program.steps[0].order[0]}}};
  program.steps[0].order[0].bindings = 2;
  program.steps[0].order[0].binding = {{{0, 0}, {1, 1}}};
  const Json file = Json::parse(written("t.json", trace_of(plan_, {0}, {0}), plan_));
  const auto slices = events(file, "X");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].at("args").at("chunk"), 0);
  EXPECT_EQ(slices[0].at("args").at("micro_batch"), 0);
  EXPECT_EQ(slices[1].at("args").at("chunk"), 1);
  EXPECT_EQ(slices[1].at("args").at("micro_batch"), 1);
  EXPECT_EQ(slices[1].at("args").at("layer"), 5);
}

TEST_F(TraceExport, PlannedMemoryFollowsTheOpsInTime) {
  // The levels by a replay of its own, in time: reserved at begin, released at end.
  const auto step_1 = static_cast<double>(origins_of(trace_)[1]);
  for (const RankSpans& r : trace_.ranks) {
    if (r.step != 0) continue;
    std::map<int64_t, int64_t> changes;
    for (const Span& s : r.spans) {
      const plan::Op& op = op_of(plan_, r, s, 0);
      const auto& order = plan_.programs[program_of(plan_, RankId{r.rank}).v].steps[0].order;
      const plan::Block& b = plan_.block(order[s.invocation].block);
      for (uint32_t i = 0; i < op.reserves.count; ++i)
        changes[s.begin_ps] += plan_.buffer(b.refs[op.reserves.begin + i].buffer).bytes().n;
      for (uint32_t i = 0; i < op.releases.count; ++i)
        changes[s.end_ps] -= plan_.buffer(b.refs[op.releases.begin + i].buffer).bytes().n;
    }
    std::vector<std::pair<double, int64_t>> wanted, chrome, perfetto;
    int64_t level = kAfterSetup;
    for (const auto& [at, by] : changes) wanted.emplace_back(static_cast<double>(at) * 1e-6, level += by);
    EXPECT_EQ(level, kAfterSetup);
    const Json file = Json::parse(written("t.json", trace_, plan_));
    for (const Json& e : events(file, "C"))
      if (e.at("pid") == r.rank && e.at("ts").get<double>() * 1e6 < step_1 + 250) {
        EXPECT_EQ(e.at("name"), "planned memory");
        chrome.emplace_back(e.at("ts"), e.at("args").at("bytes"));
      }
    // The first value stands at the first span, changed or not.
    if (!chrome.empty() && chrome.front().second == kAfterSetup) chrome.erase(chrome.begin());
    ASSERT_EQ(chrome.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(chrome[i].first, wanted[i].first, 1e-6);
      EXPECT_EQ(chrome[i].second, wanted[i].second) << "rank " << r.rank << " at " << wanted[i].first << " us";
    }
  }
}

TEST_F(TraceExport, HostBuffersAreNotMemoryOfTheDevice) {
  const std::string before = written("a.json", trace_, plan_);
  plan_.buffers[plan::kHidden].space = plan::Space::pinned;
  const Json file = Json::parse(written("b.json", trace_, plan_));
  for (const Json& e : events(file, "C"))
    if (e.at("pid") == 0) { EXPECT_LE(e.at("args").at("bytes"), kAfterSetup + 32 + 64 * 2); }
  EXPECT_NE(Json::parse(before), file);
}

TEST_F(TraceExport, GzipHoldsTheSameBytes) {
  const std::string plain = written("t.json", trace_, plan_), packed = written("t.json.gz", trace_, plan_);
  ASSERT_GT(packed.size(), 2u);
  EXPECT_EQ(packed.substr(0, 2), "\x1f\x8b");
  EXPECT_LT(packed.size() * 4, plain.size());
  EXPECT_EQ(unpacked("t.json.gz", plain.size()), plain);
}

TEST_F(TraceExport, PerfettoHoldsEverySpanOnItsTrack) {
  const PerfettoFile file = parse_perfetto(written("t.pftrace", trace_, plan_));
  size_t slices = 0, counts = 0, processes = 0;
  std::set<uint64_t> threads;
  for (const auto& [id, t] : file.tracks) {
    slices += t.slices.size();
    counts += t.counts.size();
    processes += t.is_process;
    if (t.tid) { EXPECT_TRUE(threads.insert(t.tid).second) << "Perfetto knows threads by tid alone"; }
    if (t.is_process) { EXPECT_TRUE(threads.insert(t.pid).second); }
  }
  EXPECT_EQ(slices, spans_of(trace_));
  EXPECT_EQ(processes, 4u);
  EXPECT_GT(counts, 0u);
  constexpr size_t kVariants[] = {0, 1, 0};
  const std::vector<int64_t> origins = origins_of(trace_);
  std::map<const PerfettoTrack*, size_t> next;
  for (const RankSpans& r : trace_.ranks)
    for (const Span& s : r.spans) {
      const plan::Op& op = op_of(plan_, r, s, kVariants[r.step]);
      const PerfettoTrack& t =
          file.track(fmt::format("rank {} (pp {}, dp {})", r.rank, r.rank / 2, r.rank % 2), to_text(op.stream));
      ASSERT_LT(next[&t], t.slices.size());
      const PerfettoSlice& slice = t.slices[next[&t]++];
      EXPECT_EQ(slice.name, op.name);
      EXPECT_EQ(slice.category, to_text(op.phase));
      EXPECT_EQ(slice.begin_ns, static_cast<uint64_t>((origins[r.step] + s.begin_ps) / 1000));
      EXPECT_EQ(slice.end_ns, static_cast<uint64_t>((origins[r.step] + s.end_ps) / 1000));
      EXPECT_EQ(slice.args.at("step"), r.step);
      if (op.name == "layer") { EXPECT_EQ(slice.args.at("layer"), r.rank / 2); }
      if (op.name == "layer") { EXPECT_EQ(slice.texts.at("block"), r.rank / 2 ? "forward last" : "forward first"); }
      if (op.name == "sgd") { EXPECT_FALSE(slice.args.contains("micro_batch")); }
    }
}

TEST_F(TraceExport, PerfettoArrowsLeaveSendsAndArriveAtReceives) {
  const PerfettoFile file = parse_perfetto(written("t.pftrace", trace_, plan_));
  ASSERT_EQ(file.arrows.size(), 20u);
  for (const auto& [id, a] : file.arrows) {
    EXPECT_EQ(a.sends, 1);
    EXPECT_EQ(a.receives, 1);
    const PerfettoTrack &from = file.tracks.at(a.from_track), &to = file.tracks.at(a.to_track);
    const auto sent = std::ranges::find(from.slices, a.from_ns, &PerfettoSlice::begin_ns);
    const auto received = std::ranges::find(to.slices, a.to_ns, &PerfettoSlice::end_ns);
    ASSERT_TRUE(sent != from.slices.end() && received != to.slices.end());
    EXPECT_EQ(sent->name, "send");
    EXPECT_EQ(received->name, "receive");
    EXPECT_EQ(sent->args.at("step"), received->args.at("step"));
    EXPECT_EQ(sent->args.at("micro_batch"), received->args.at("micro_batch"));
  }
}

TEST_F(TraceExport, BothFormatsCountTheSameMemory) {
  const PerfettoFile file = parse_perfetto(written("t.pftrace", trace_, plan_));
  const Json json = Json::parse(written("t.json", trace_, plan_));
  const auto counters = events(json, "C");
  for (uint32_t r = 0; r < 4; ++r) {
    const PerfettoTrack& t = file.track(fmt::format("rank {} (pp {}, dp {})", r, r / 2, r % 2), "planned memory");
    size_t i = 0;
    for (const Json& e : counters) {
      if (e.at("pid") != r) continue;
      ASSERT_LT(i, t.counts.size());
      EXPECT_EQ(e.at("args").at("bytes").get<double>(), t.counts[i].second);
      if (i > 0) { EXPECT_GE(t.counts[i].first, t.counts[i - 1].first); }
      ++i;
    }
    EXPECT_EQ(i, t.counts.size());
    EXPECT_GT(i, 10u);
  }
}

TEST_F(TraceExport, ARankWithoutItsPeerHasNoArrows) {
  const Trace t = trace_of(plan_, {0, 3}, {0});
  EXPECT_TRUE(parse_perfetto(written("t.pftrace", t, plan_)).arrows.empty());
  const Json file = Json::parse(written("t.json", t, plan_));
  EXPECT_TRUE(events(file, "s").empty() && events(file, "f").empty());
}

TEST_F(TraceExport, FoldedRanksSayHowManyTheyStandFor) {
  Trace t = trace_of(plan_, {0, 2}, {0});
  for (FoldedRank& f : t.meta.ranks) f.count = 2;
  const Json file = Json::parse(written("t.json", t, plan_));
  EXPECT_EQ(events(file, "M")[0].at("args").at("name"), "rank 0 (pp 0, dp 0), stands for 2 ranks");
}

TEST_F(TraceExport, ClocksThatDisagreeDoNotBreakTheNesting) {
  // The second op of rank 0 begins before the first has ended, the run begins before 0, and one op takes no time.
  for (RankSpans& r : trace_.ranks)
    for (Span& s : r.spans) {
      s.begin_ps -= 3'000'000;
      s.end_ps -= 3'000'000;
    }
  trace_.ranks[0].spans[1].begin_ps -= 700'000;
  trace_.ranks[0].spans[3].end_ps = trace_.ranks[0].spans[3].begin_ps;
  const PerfettoFile file = parse_perfetto(written("t.pftrace", trace_, plan_));  // its walk checks the nesting
  size_t slices = 0;
  for (const auto& [id, t] : file.tracks) {
    slices += t.slices.size();
    for (const PerfettoSlice& s : t.slices) EXPECT_LT(s.end_ns, 10'000'000u) << "a time below 0 came out as a huge one";
  }
  EXPECT_EQ(slices, spans_of(trace_));
}

TEST_F(TraceExport, SamplesAreCounters) {
  trace_.samples = {{0, CounterKind::memory_bytes, 5'000'000, 1.5e9},
                    {2, CounterKind::link_bytes_per_second, 3'000'000, 2.25e10},
                    {2, CounterKind::link_bytes_per_second, 4'000'000, std::nan("")}};  // JSON has no such number
  const PerfettoFile file = parse_perfetto(written("t.pftrace", trace_, plan_));
  EXPECT_EQ(file.track("rank 0 (pp 0, dp 0)", "memory of the device").counts,
            (std::vector<std::pair<uint64_t, double>>{{5000, 1.5e9}}));
  EXPECT_EQ(file.track("rank 2 (pp 1, dp 0)", "link bytes per second").counts,
            (std::vector<std::pair<uint64_t, double>>{{3000, 2.25e10}}));
  const Json json = Json::parse(written("t.json", trace_, plan_));
  EXPECT_TRUE(std::ranges::any_of(events(json, "C"), [](const Json& e) {
    return e.at("name") == "link bytes per second" && e.at("args").at("bytes_per_second") == 2.25e10;
  }));
}

TEST_F(TraceExport, AnyNameIsWrittenAsJson) {
  plan_.blocks[plan::kForward0].ops[1].name = "a \"b\" \\ \n \x01 \xc3\xa9";
  plan_.blocks[plan::kForward0].ops[0].name = "not utf-8: \xff";
  const Json file = Json::parse(written("t.json", trace_, plan_));
  EXPECT_EQ(file.at("otherData").at("cluster"), trace_.meta.cluster);
  const auto slices = events(file, "X");
  EXPECT_EQ(slices[0].at("name"), "not utf-8: ?");
  EXPECT_EQ(slices[1].at("name"), plan_.blocks[plan::kForward0].ops[1].name);
}

TEST_F(TraceExport, NativeGoesByTheSameDoor) {
  written("t.wttrace", trace_, plan_);
  auto back = read_trace(path("t.wttrace"));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(equal(trace_, back.value()));
}

TEST_F(TraceExport, WhatDoesNotBelongToThePlanIsRefusedAndLeavesNothing) {
  trace_.ranks[0].spans.pop_back();
  for (const char* name : {"t.json", "t.json.gz", "t.pftrace", "t.wttrace", "t.bin"}) {
    EXPECT_FALSE(write_as(path(name), trace_, plan_).ok());
    EXPECT_FALSE(fs::exists(path(name))) << name;
  }
}

TEST_F(TraceExport, EqualTracesGiveEqualBytes) {
  for (const char* name : {"t.json", "t.json.gz", "t.pftrace"})
    EXPECT_EQ(written(name, trace_, plan_), written(std::string("again_") + name, trace_, plan_)) << name;
}

TEST_F(TraceExport, LongTracesPassThroughTheBuffers) {
  const Trace t = trace_of(plan_, {0, 1, 2, 3}, std::vector<size_t>(200, 0));
  const std::string plain = written("t.json", t, plan_);
  ASSERT_GT(plain.size(), size_t{1} << 20);
  EXPECT_EQ(events(Json::parse(plain), "X").size(), spans_of(t));
  written("t.json.gz", t, plan_);
  EXPECT_TRUE(unpacked("t.json.gz", plain.size()) == plain);
  EXPECT_EQ(parse_perfetto(written("t.pftrace", t, plan_)).arrows.size(), 200u * 8);
}

TEST_F(TraceExport, GzipTakesMoreThanItsBufferAtOnce) {
  std::mt19937 random(1);
  std::string& name = plan_.blocks[plan::kForward0].ops[0].name;
  for (int i = 0; i < 1 << 20; ++i) name += static_cast<char>('#' + random() % 57);
  const std::string plain = written("t.json", trace_, plan_);
  written("t.json.gz", trace_, plan_);
  EXPECT_TRUE(unpacked("t.json.gz", plain.size()) == plain);
}

TEST_F(TraceExport, PerfettoDecodesByThePublishedSchema) {
  if (std::system("protoc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "protoc is not installed";
  trace_.samples = {{2, CounterKind::link_bytes_per_second, 3'000'000, 2.25e10}};
  written("t.pftrace", trace_, plan_);
  const std::string schema = std::string(WT_SOURCE_DIR) + "/tests/core/trace";
  const std::string command = "protoc --decode=perfetto.protos.Trace -I'" + schema + "' '" + schema +
                              "/perfetto_subset.proto' < '" + path("t.pftrace") + "' > '" + path("text") + "' 2> '" +
                              path("faults") + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(path("faults")).value();
  std::ifstream in(path("text"));
  std::map<std::string, size_t> lines;
  for (std::string line; std::getline(in, line);) {
    const size_t start = line.find_first_not_of(' ');
    if (start == std::string::npos) continue;
    // A field that the schema does not have, or has with another wire type, is shown by its number.
    EXPECT_FALSE(std::isdigit(static_cast<unsigned char>(line[start]))) << line;
    ++lines[line.substr(start)];
  }
  EXPECT_EQ(lines["type: TYPE_SLICE_BEGIN"], spans_of(trace_));
  EXPECT_EQ(lines["type: TYPE_SLICE_END"], spans_of(trace_));
  EXPECT_EQ(lines["process {"], 4u);
  EXPECT_EQ(lines["thread {"], 4u * 4);
  EXPECT_EQ(lines["unit: UNIT_SIZE_BYTES"], 4u);
  EXPECT_EQ(lines["double_counter_value: 22500000000"], 1u);
  EXPECT_EQ(lines["process_name: \"rank 3 (pp 1, dp 1)\""], 1u);
  size_t flows = 0, ends = 0;
  for (const auto& [line, n] : lines) {
    if (line.starts_with("flow_ids: ")) flows += n;
    if (line.starts_with("terminating_flow_ids: ")) ends += n;
  }
  EXPECT_EQ(flows, 20u);
  EXPECT_EQ(ends, 20u);
}

}  // namespace
}  // namespace wt::trace
