// Perfetto and Chrome JSON from a trace and its plan, streamed: memory is that of one (rank, step) beside the trace.
// A hand encoder of the few Perfetto messages in use (protos/perfetto/trace/*.proto, field numbers at kField...), not a
// protobuf library; no reader. Invariant: the slices of a track come in order and never overlap, so that begin and end
// pair by nesting; where the clocks of a machine disagree, a slice is drawn from the end of the one before.
#include "core/trace/export.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/base/text.hpp"
#include "core/trace/file.hpp"

namespace wt::trace {

namespace {

using plan::Plan;
using plan::Stream;

/// Collects small writes; compresses them where asked.
class Out {
 public:
  Out(AtomicFile& file, bool gzip) : file_(file), gzip_(gzip) {
    if (!gzip_) return;
    constexpr int kGzipWindow =
        15 + 16;  // 16: a gzip header, without time or name, so that equal runs give equal bytes
    WT_CHECK(deflateInit2(&z_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  }
  ~Out() {
    if (gzip_) deflateEnd(&z_);
  }
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;

  void write(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= kBuffer) drain(Z_NO_FLUSH);
  }
  void finish() { drain(Z_FINISH); }

 private:
  static constexpr size_t kBuffer = 1 << 18;

  void drain(int flush) {
    if (!gzip_) {
      file_.write(buffer_);
    } else {
      z_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
      z_.avail_in = static_cast<uInt>(buffer_.size());
      packed_.resize(kBuffer);
      do {
        z_.next_out = reinterpret_cast<Bytef*>(packed_.data());
        z_.avail_out = static_cast<uInt>(packed_.size());
        WT_CHECK(deflate(&z_, flush) != Z_STREAM_ERROR);
        file_.write(std::string_view(packed_).substr(0, packed_.size() - z_.avail_out));
      } while (z_.avail_out == 0);
    }
    buffer_.clear();
  }

  AtomicFile& file_;
  bool gzip_;
  z_stream z_{};
  std::string buffer_, packed_;
};

// ------------------------------------------------------------------------------------------------ what is drawn

enum class FlowEnd : uint8_t { none, send, receive };

/// One span with what the plan says about it. -1: does not apply.
struct Slice {
  uint32_t rank = 0, step = 0;
  const plan::Op* op = nullptr;
  const plan::Block* block = nullptr;
  int64_t layer = -1, chunk = -1, micro_batch = -1, bytes = -1;  // layer of the model
  int64_t begin_ps = 0, end_ps = 0;
  FlowEnd flow_end = FlowEnd::none;
  uint64_t flow = 0;  // equal for a send and its receive
};

struct Process {
  uint32_t rank = 0;
  std::string name;
  std::array<bool, plan::kStreams> streams{};
  bool spans = false;  // else: only samples
};

class Writer {
 public:
  virtual ~Writer() = default;
  virtual void begin(const std::vector<Process>& processes) = 0;
  virtual void slice(const Slice&) = 0;
  virtual void planned_memory(uint32_t rank, int64_t at_ps, int64_t bytes) = 0;
  virtual void sample(const Sample&) = 0;
  virtual void end() = 0;
};

constexpr std::string_view kPlanned = "planned memory";
std::string_view name_of(CounterKind k) {
  return k == CounterKind::memory_bytes ? "memory of the device" : "link bytes per second";
}

// ----------------------------------------------------------------------------------------------- Chrome's JSON

class ChromeWriter final : public Writer {
 public:
  ChromeWriter(Out& out, const Trace& trace, const Plan& plan) : out_(out), trace_(trace), plan_(plan) {}

  void begin(const std::vector<Process>& processes) override {
    const Meta& m = trace_.meta;
    out_.write(
        fmt::format("{{\"displayTimeUnit\":\"ns\",\n\"otherData\":{{\"producer\":\"{}\",\"plan\":{},"
                    "\"plan_digest\":\"{:016x}\",\"cluster\":{},\"code_version\":{},\"command\":{},\"seed\":\"{}\"}},\n"
                    "\"traceEvents\":[",
                    m.producer == Producer::simulated ? "simulated" : "executed", quoted(plan_.name), m.plan_digest,
                    quoted(m.cluster), quoted(m.code_version), quoted(m.command), m.seed));
    for (const Process& p : processes) {
      auto meta = [&](std::string_view name, int stream, const std::string& args) {
        const std::string thread = stream < 0 ? "" : fmt::format("\"tid\":{},", stream + 1);
        event(fmt::format(R"({{"ph":"M","name":"{}","pid":{},{}"args":{{{}}}}})", name, p.rank, thread, args));
      };
      meta("process_name", -1, "\"name\":" + quoted(p.name));
      meta("process_sort_index", -1, fmt::format("\"sort_index\":{}", p.rank));
      for (int s = 0; s < plan::kStreams; ++s) {
        if (!p.streams[static_cast<size_t>(s)]) continue;
        meta("thread_name", s, "\"name\":" + quoted(plan::to_text(static_cast<Stream>(s))));
        meta("thread_sort_index", s, fmt::format("\"sort_index\":{}", s));
      }
    }
  }

  void slice(const Slice& s) override {
    const int tid = static_cast<int>(s.op->stream) + 1;
    std::string text = fmt::format(
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"step":{},"block":{})",
        quoted(s.op->name), plan::to_text(s.op->phase), s.rank, tid, microseconds(s.begin_ps),
        microseconds(s.end_ps - s.begin_ps), s.step, quoted(s.block->name));
    auto arg = [&](std::string_view key, int64_t value) {
      if (value >= 0) fmt::format_to(std::back_inserter(text), ",\"{}\":{}", key, value);
    };
    arg("layer", s.layer);
    arg("chunk", s.chunk);
    arg("micro_batch", s.micro_batch);
    arg("bytes", s.bytes);
    text += "}}";
    event(text);
    if (s.flow_end == FlowEnd::none) return;
    // An arrow binds to the slice around its time: it leaves at the begin of the send and arrives just before the end
    // of the receive, which may have waited from long before.
    const bool send = s.flow_end == FlowEnd::send;
    const int64_t at = send ? s.begin_ps : std::max(s.begin_ps, s.end_ps - 1000);
    event(fmt::format(R"({{"ph":"{}","name":"message","cat":"message","id":"{:x}","pid":{},"tid":{},"ts":{}{}}})",
                      send ? 's' : 'f', s.flow, s.rank, tid, microseconds(at), send ? "" : R"(,"bp":"e")"));
  }

  void planned_memory(uint32_t rank, int64_t at_ps, int64_t bytes) override {
    event(fmt::format(R"({{"ph":"C","name":"{}","pid":{},"ts":{},"args":{{"bytes":{}}}}})", kPlanned, rank,
                      microseconds(at_ps), bytes));
  }

  void sample(const Sample& s) override {
    event(fmt::format(R"({{"ph":"C","name":"{}","pid":{},"ts":{},"args":{{"{}":{}}}}})", name_of(s.kind), s.rank,
                      microseconds(s.at_ps), s.kind == CounterKind::memory_bytes ? "bytes" : "bytes_per_second",
                      s.value));
  }

  void end() override { out_.write("\n]}\n"); }

 private:
  void event(std::string_view text) {
    out_.write(first_ ? "\n" : ",\n");
    out_.write(text);
    first_ = false;
  }

  /// Exact: the format counts microseconds, with decimals.
  static std::string microseconds(int64_t ps) {
    const uint64_t n = ps < 0 ? 0 - static_cast<uint64_t>(ps) : static_cast<uint64_t>(ps);
    std::string s = fmt::format("{}{}", ps < 0 ? "-" : "", n / 1'000'000);
    if (n % 1'000'000 == 0) return s;
    s += fmt::format(".{:06}", n % 1'000'000);
    s.erase(s.find_last_not_of('0') + 1);
    return s;
  }

  static std::string quoted(std::string_view text) {
    const bool utf8 = is_utf8(text);
    std::string s = "\"";
    for (const char c : text) {
      const auto u = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\')
        (s += '\\') += c;
      else if (u < 0x20)
        s += fmt::format("\\u{:04x}", u);
      else
        s += u >= 0x80 && !utf8 ? '?' : c;
    }
    return s + '"';
  }

  Out& out_;
  const Trace& trace_;
  const Plan& plan_;
  bool first_ = true;
};

// ---------------------------------------------------------------------------------------------------- Perfetto

/// Appends fields of one protobuf message.
class Message {
 public:
  Message& number(uint32_t field, uint64_t value) {
    varint(field << 3 | 0);
    varint(value);
    return *this;
  }
  Message& fixed64(uint32_t field, uint64_t value) {
    varint(field << 3 | 1);
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> (8 * i));
    return *this;
  }
  Message& text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(uint32_t field, const Message& m) { return text(field, m.bytes_); }
  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  void varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes_ += static_cast<char>(v | 0x80);
    bytes_ += static_cast<char>(v);
  }
  std::string bytes_;
};

// Field numbers as published in protos/perfetto/trace of google/perfetto.
namespace trace_proto {
constexpr uint32_t kPacket = 1;
}
namespace packet {
constexpr uint32_t kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11, kInternedData = 12, kSequenceFlags = 13,
                   kTrackDescriptor = 60, kFirstOnSequence = 87;
constexpr uint64_t kStateCleared = 1, kNeedsState = 2;  // SequenceFlags
}  // namespace packet
namespace track {
constexpr uint32_t kUuid = 1, kName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8;
}
namespace process {
constexpr uint32_t kPid = 1, kName = 6;
}
namespace thread {
constexpr uint32_t kPid = 1, kTid = 2, kSortIndex = 3, kName = 5;
}
namespace counter {
constexpr uint32_t kUnit = 3, kUnitName = 6;
constexpr uint64_t kSizeBytes = 3;  // Unit
}  // namespace counter
namespace track_event {
constexpr uint32_t kCategory = 3, kAnnotation = 4, kType = 9, kNameId = 10, kTrack = 11, kCounterValue = 30,
                   kDoubleValue = 44, kFlows = 47, kTerminatingFlows = 48;
constexpr uint64_t kBegin = 1, kEnd = 2, kCounterType = 4;  // Type
}  // namespace track_event
namespace annotation {
constexpr uint32_t kNameId = 1, kInt = 4, kStringId = 17;
}
namespace interned {
constexpr uint32_t kCategories = 1, kNames = 2, kAnnotationNames = 3, kAnnotationStrings = 29;
constexpr uint32_t kId = 1, kText = 2;  // of each entry
}  // namespace interned

class PerfettoWriter final : public Writer {
 public:
  /// `origin_ps`: drawn as 0; timestamps have no sign.
  PerfettoWriter(Out& out, int64_t origin_ps) : out_(out), origin_ps_(origin_ps) {}

  void begin(const std::vector<Process>& processes) override {
    Message first;
    first.number(packet::kSequenceId, kSequence)
        .number(packet::kSequenceFlags, packet::kStateCleared)
        .number(packet::kFirstOnSequence, 1);
    put(first);
    for (const Process& p : processes) {
      Message m, d;
      m.number(process::kPid, pid(p.rank)).text(process::kName, p.name);
      d.number(track::kUuid, uuid(p.rank, 0)).text(track::kName, p.name).message(track::kProcess, m);
      descriptor(d);
      for (uint32_t s = 0; s < plan::kStreams; ++s) {
        if (!p.streams[s]) continue;
        const std::string_view name = plan::to_text(static_cast<Stream>(s));
        Message t, e;
        t.number(thread::kPid, pid(p.rank)).number(thread::kTid, pid(p.rank) + 1 + s);
        t.number(thread::kSortIndex, s).text(thread::kName, name);
        e.number(track::kUuid, uuid(p.rank, kStreamTrack + s)).number(track::kParent, uuid(p.rank, 0));
        e.text(track::kName, name).message(track::kThread, t);
        descriptor(e);
      }
      if (p.spans) counter_track(p.rank, kPlannedTrack, kPlanned, true);
    }
  }

  void slice(const Slice& s) override {
    Message e, ids;
    e.number(track_event::kType, track_event::kBegin)
        .number(track_event::kTrack, uuid(s.rank, kStreamTrack + static_cast<uint32_t>(s.op->stream)))
        .number(track_event::kCategory, intern(categories_, interned::kCategories, plan::to_text(s.op->phase), ids))
        .number(track_event::kNameId, intern(names_, interned::kNames, s.op->name, ids));
    auto key = [&](std::string_view k) { return intern(annotation_names_, interned::kAnnotationNames, k, ids); };
    auto arg = [&](std::string_view k, int64_t value) {
      if (value < 0) return;
      Message a;
      a.number(annotation::kNameId, key(k)).number(annotation::kInt, static_cast<uint64_t>(value));
      e.message(track_event::kAnnotation, a);
    };
    arg("step", s.step);
    Message block;
    block.number(annotation::kNameId, key("block"))
        .number(annotation::kStringId, intern(strings_, interned::kAnnotationStrings, s.block->name, ids));
    e.message(track_event::kAnnotation, block);
    arg("layer", s.layer);
    arg("chunk", s.chunk);
    arg("micro_batch", s.micro_batch);
    arg("bytes", s.bytes);
    // An arrow goes from the earlier event to the later: it leaves with the begin of the send and arrives with the end
    // of the receive, which may have waited from long before.
    if (s.flow_end == FlowEnd::send) e.fixed64(track_event::kFlows, s.flow);
    event(s.begin_ps, e, ids);

    Message close;
    close.number(track_event::kType, track_event::kEnd)
        .number(track_event::kTrack, uuid(s.rank, kStreamTrack + static_cast<uint32_t>(s.op->stream)));
    if (s.flow_end == FlowEnd::receive) close.fixed64(track_event::kTerminatingFlows, s.flow);
    event(s.end_ps, close, {});
  }

  void planned_memory(uint32_t rank, int64_t at_ps, int64_t bytes) override {
    Message e;
    e.number(track_event::kType, track_event::kCounterType)
        .number(track_event::kTrack, uuid(rank, kPlannedTrack))
        .number(track_event::kCounterValue, static_cast<uint64_t>(bytes));
    event(at_ps, e, {});
  }

  void sample(const Sample& s) override {
    const bool memory = s.kind == CounterKind::memory_bytes;
    const uint32_t which = memory ? kMemoryTrack : kLinkTrack;
    if (sampled_.insert({s.rank, which}).second) counter_track(s.rank, which, name_of(s.kind), memory);
    Message e;
    e.number(track_event::kType, track_event::kCounterType)
        .number(track_event::kTrack, uuid(s.rank, which))
        .fixed64(track_event::kDoubleValue, std::bit_cast<uint64_t>(s.value));
    event(s.at_ps, e, {});
  }

  void end() override {}

 private:
  using Ids = std::unordered_map<std::string_view, uint64_t>;  // keys lie in the plan or are literals

  static constexpr uint32_t kSequence = 1;
  static constexpr uint32_t kStreamTrack = 1, kPlannedTrack = 32, kMemoryTrack = 33, kLinkTrack = 34;
  static_assert(kStreamTrack + plan::kStreams <= kPlannedTrack);

  static uint64_t uuid(uint32_t rank, uint32_t track) { return (uint64_t{rank} + 1) << 8 | track; }
  /// Perfetto knows threads by tid alone and takes 0 for the idle process: every rank has its own 16 numbers.
  static uint64_t pid(uint32_t rank) { return (uint64_t{rank} + 1) * 16; }

  void put(const Message& p) {
    Message framed;
    framed.message(trace_proto::kPacket, p);
    out_.write(framed.bytes());
  }

  void descriptor(const Message& d) {
    Message p;
    p.number(packet::kSequenceId, kSequence).message(packet::kTrackDescriptor, d);
    put(p);
  }

  void counter_track(uint32_t rank, uint32_t which, std::string_view name, bool bytes) {
    Message c, d;
    if (bytes)
      c.number(counter::kUnit, counter::kSizeBytes);
    else
      c.text(counter::kUnitName, "B/s");
    d.number(track::kUuid, uuid(rank, which)).number(track::kParent, uuid(rank, 0));
    d.text(track::kName, name).message(track::kCounter, c);
    descriptor(d);
  }

  void event(int64_t at_ps, const Message& e, const Message& ids) {
    Message p;
    p.number(packet::kTimestamp, static_cast<uint64_t>(at_ps - origin_ps_) / 1000)
        .number(packet::kSequenceId, kSequence)
        .number(packet::kSequenceFlags, packet::kNeedsState);
    if (!ids.empty()) p.message(packet::kInternedData, ids);
    p.message(packet::kTrackEvent, e);
    put(p);
  }

  static uint64_t intern(Ids& known, uint32_t field, std::string_view text, Message& ids) {
    const auto [it, fresh] = known.try_emplace(text, known.size() + 1);
    if (fresh) {
      Message entry;
      entry.number(interned::kId, it->second).text(interned::kText, text);
      ids.message(field, entry);
    }
    return it->second;
  }

  Out& out_;
  int64_t origin_ps_;
  Ids categories_, names_, annotation_names_, strings_;
  std::set<std::pair<uint32_t, uint32_t>> sampled_;
};

// ------------------------------------------------------------------------------------------------------ the walk

class Walk {
 public:
  Walk(Writer& writer, const Trace& trace, const Plan& plan) : writer_(writer), trace_(trace), plan_(plan) {
    for (const plan::Block& b : plan.blocks) {
      const bool steps = std::ranges::any_of(b.segments, [](const plan::Segment& s) { return s.layer_step != 0; });
      std::vector<bool>& in = in_layers_.emplace_back(b.ops.size(), false);
      for (const plan::Segment& s : b.segments)
        for (uint32_t k = 0; k < s.op_count; ++k) in[s.first_op + k] = !steps || s.layer_step != 0;
    }
    for (const plan::Buffer& b : plan.buffers)
      device_bytes_.push_back(!b.view && b.space == plan::Space::device ? b.bytes().n : 0);
  }

  void run() {
    writer_.begin(processes());
    for (const RankSpans& r : trace_.ranks) one(r);
    for (const Sample& s : trace_.samples)
      if (std::isfinite(s.value)) writer_.sample(s);  // JSON has no other numbers
    writer_.end();
  }

 private:
  struct Rank {
    std::array<int64_t, plan::kStreams> drawn_to;  // end of the last slice of each stream
    int64_t held = 0;
    Rank() { drawn_to.fill(INT64_MIN); }
  };
  struct Channel {
    uint64_t index = 0;
    std::array<uint32_t, 2> taken{};  // sends, receives
  };

  std::vector<Process> processes() const {
    std::map<uint32_t, Process> found;
    for (const RankSpans& r : trace_.ranks) {
      Process& p = found[r.rank];
      p.spans = true;
      for (const plan::Invocation& v : variant_of(r).order)
        for (const plan::Op& op : plan_.block(v.block).ops) p.streams[static_cast<size_t>(op.stream)] = true;
    }
    for (const Sample& s : trace_.samples) found[s.rank];
    std::map<uint32_t, uint32_t> alike;
    for (const FoldedRank& f : trace_.meta.ranks) alike[f.rank] = f.count;
    std::vector<Process> out;
    for (auto& [rank, p] : found) {
      p.rank = rank;
      p.name = fmt::format("rank {}", rank);
      std::vector<std::string> where;
      for (uint32_t a = 0; a < plan_.mesh.axes.size() && int64_t{rank} < plan_.mesh.ranks(); ++a)
        if (const plan::Axis& axis = plan_.mesh.axes[a]; axis.size > 1)
          where.push_back(fmt::format("{} {}", axis.name, plan_.mesh.coordinate(RankId{rank}, AxisId{a})));
      if (!where.empty()) p.name += " (" + join(where, ", ") + ")";
      if (const auto it = alike.find(rank); it != alike.end() && it->second > 1)
        p.name += fmt::format(", stands for {} ranks", it->second);
      out.push_back(std::move(p));
    }
    return out;
  }

  /// Which variant of the step ran is not stored: the first that fits, as in check_against_plan.
  const plan::StepOrder& variant_of(const RankSpans& r) const {
    const plan::Program& program = plan_.programs[program_of(plan_, RankId{r.rank}).v];
    for (const plan::StepOrder& variant : program.steps) {
      size_t k = 0;
      bool fits = true;
      for (uint32_t i = 0; i < variant.order.size() && fits; ++i) {
        const auto ops = static_cast<size_t>(plan_.block(variant.order[i].block).op_instances());
        fits = k + ops <= r.spans.size() &&
               (ops == 0 || (r.spans[k].invocation == i && r.spans[k + ops - 1].invocation == i));
        k += ops;
      }
      if (fits && k == r.spans.size()) return variant;
    }
    WT_CHECK(false, "rank {}, step {}: no variant fits; check_against_plan comes first", r.rank, r.step);
    return program.steps.front();
  }

  int64_t bytes_of(const plan::Block& b, plan::Range refs) const {
    int64_t n = 0;
    for (uint32_t i = 0; i < refs.count; ++i) n += device_bytes_[b.refs[refs.begin + i].buffer.v];
    return n;
  }

  int64_t held_after_setup(const plan::Program& program) const {
    int64_t n = 0;
    for (const plan::Invocation& v : program.setup) {
      const plan::Block& b = plan_.block(v.block);
      plan::for_each_op(b, [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
        n += bytes_of(b, op.reserves) - bytes_of(b, op.releases);
      });
    }
    return n;
  }

  void one(const RankSpans& r) {
    const plan::Program& program = plan_.programs[program_of(plan_, RankId{r.rank}).v];
    if (r.step != step_) {  // a rank missing in a step must not shift the pairs of the next
      for (auto& [key, c] : channels_) c.taken.fill(std::max(c.taken[0], c.taken[1]));
      step_ = r.step;
    }
    const auto [at, fresh] = ranks_.try_emplace(r.rank);
    Rank& rank = at->second;
    changes_.clear();
    size_t k = 0;
    for (const plan::Invocation& v : variant_of(r).order) {
      const plan::Block& b = plan_.block(v.block);
      plan::for_each_op(b, [&](const plan::Op& op, uint32_t index, int64_t layer, uint32_t) {
        const Span& span = r.spans[k++];
        if (const int64_t n = bytes_of(b, op.reserves)) changes_.push_back({span.begin_ps, n});
        if (const int64_t n = bytes_of(b, op.releases)) changes_.push_back({span.end_ps, -n});
        Slice s = described(r, program, v, b, op, in_layers_[v.block.v][index] ? layer : -1);
        int64_t& drawn_to = rank.drawn_to[static_cast<size_t>(op.stream)];
        s.begin_ps = std::max(span.begin_ps, drawn_to);
        s.end_ps = drawn_to = std::max(span.end_ps, s.begin_ps);
        writer_.slice(s);
      });
    }
    if (fresh) {
      rank.held = held_after_setup(program);
      int64_t first = INT64_MAX;
      for (const Span& s : r.spans) first = std::min(first, s.begin_ps);
      if (!r.spans.empty()) changes_.push_back({first, 0});
    }
    std::ranges::sort(changes_);
    for (size_t i = 0; i < changes_.size(); ++i) {
      rank.held += changes_[i].second;
      if (i + 1 == changes_.size() || changes_[i + 1].first != changes_[i].first)
        writer_.planned_memory(r.rank, changes_[i].first, rank.held);
    }
  }

  Slice described(const RankSpans& r, const plan::Program& program, const plan::Invocation& v, const plan::Block& b,
                  const plan::Op& op, int64_t layer) {
    Slice s;
    s.rank = r.rank;
    s.step = r.step;
    s.op = &op;
    s.block = &b;
    std::visit(
        [&](const auto& body) {
          if constexpr (requires { body.bytes; }) s.bytes = body.bytes;
        },
        op.body);
    const std::optional<plan::Binding> bound = binding_of(v, b, op);
    if (!bound) return s;
    s.chunk = bound->chunk;
    if (layer >= 0 && layer < plan_.parts[program.chunks[bound->chunk].v].layers)
      s.layer = program.first_layer[bound->chunk] + layer;
    switch (op.phase) {
      case plan::Phase::forward:
      case plan::Phase::recompute:
      case plan::Phase::backward_input:
      case plan::Phase::backward_weight: s.micro_batch = bound->micro_batch; break;
      default: break;  // of the whole step
    }
    if (const auto* send = std::get_if<plan::Send>(&op.body)) flow(s, FlowEnd::send, send->to);
    if (const auto* receive = std::get_if<plan::Receive>(&op.body)) flow(s, FlowEnd::receive, receive->from);
    return s;
  }

  /// Of an invocation that binds two, the one whose buffers the op touches first.
  static std::optional<plan::Binding> binding_of(const plan::Invocation& v, const plan::Block& b, const plan::Op& op) {
    if (v.bindings == 0) return std::nullopt;
    if (v.bindings == 1) return v.binding[0];
    for (const plan::Range& refs : {op.reads, op.writes, op.reserves, op.releases})
      if (refs.count) return v.binding[b.refs[refs.begin].binding];
    return std::nullopt;
  }

  /// Sends and receives of a channel (from, to, forward or backward) pair in order, as in plan::validate.
  /// No arrow where the other rank is not in the trace.
  void flow(Slice& s, FlowEnd end, plan::Direction towards) {
    const auto peer = peer_of(plan_, RankId{s.rank}, s.chunk, towards);
    if (!peer) return;
    const std::pair key{s.step, peer->rank.v};
    const auto it = std::ranges::lower_bound(trace_.ranks, key, {}, [](const RankSpans& r) {
      return std::pair{r.step, r.rank};
    });
    if (it == trace_.ranks.end() || std::pair{it->step, it->rank} != key) return;
    const bool send = end == FlowEnd::send;
    const bool forward = (towards == plan::Direction::next_stage) == send;
    const uint32_t from = send ? s.rank : peer->rank.v, to = send ? peer->rank.v : s.rank;
    Channel& c = channels_.try_emplace({from, to, forward}, Channel{channels_.size() + 1, {}}).first->second;
    s.flow_end = end;
    s.flow = c.index << 32 | c.taken[send ? 0 : 1]++;
  }

  Writer& writer_;
  const Trace& trace_;
  const Plan& plan_;
  std::vector<std::vector<bool>> in_layers_;  // by block, by op: repeated for layers, not before or after them
  std::vector<int64_t> device_bytes_;         // by buffer
  std::unordered_map<uint32_t, Rank> ranks_;
  std::map<std::tuple<uint32_t, uint32_t, bool>, Channel> channels_;
  uint32_t step_ = 0;
  std::vector<std::pair<int64_t, int64_t>> changes_;  // of what the plan holds in this step: when, bytes
};

}  // namespace

Result<Format> format_of(std::string_view path) {
  static constexpr std::pair<std::string_view, Format> kEndings[] = {{".wttrace", Format::native},
                                                                     {".pftrace", Format::perfetto},
                                                                     {".perfetto-trace", Format::perfetto},
                                                                     {".json", Format::chrome},
                                                                     {".json.gz", Format::chrome_gz}};
  for (const auto& [ending, format] : kEndings)
    if (path.ends_with(ending)) return format;
  return Diagnostic{std::string(path), "no trace format has this ending",
                    "legal: .wttrace, .pftrace, .perfetto-trace, .json, .json.gz"};
}

void export_trace(AtomicFile& file, Format format, const Trace& trace, const Plan& plan) {
  WT_CHECK(format != Format::native, "the native format is written by write_trace");
  Out out(file, format == Format::chrome_gz);
  if (format == Format::perfetto) {
    int64_t origin = 0;
    for (const RankSpans& r : trace.ranks)
      for (const Span& s : r.spans) origin = std::min(origin, s.begin_ps);
    for (const Sample& s : trace.samples) origin = std::min(origin, s.at_ps);
    PerfettoWriter writer(out, origin);
    Walk(writer, trace, plan).run();
  } else {
    ChromeWriter writer(out, trace, plan);
    Walk(writer, trace, plan).run();
  }
  out.finish();
}

Status write_as(const std::string& path, const Trace& trace, const Plan& plan) {
  const Result<Format> format = format_of(path);
  if (!format) return format.errors();
  if (Status s = check_against_plan(trace, plan); !s) return s;
  if (format.value() == Format::native) return write_trace(path, trace);
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) return file.errors();
  export_trace(file.value(), format.value(), trace, plan);
  return file.value().commit();
}

}  // namespace wt::trace
