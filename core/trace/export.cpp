#include "core/trace/export.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cstring>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/base/check.hpp"
#include "core/trace/file.hpp"

namespace wt::trace {

namespace {

/// What a span is called and where it belongs, looked up in the plan by (invocation, op instance).
struct Named {
  const plan::Op* op = nullptr;
  int64_t layer = -1, chunk = -1, micro_batch = -1;
};

/// Op instances of each block, unrolled once: a span is then named by two array look-ups.
class Names {
 public:
  explicit Names(const plan::Plan& plan) : plan_(plan), blocks_(plan.blocks.size()) {
    for (size_t b = 0; b < blocks_.size(); ++b)
      plan::for_each_op(plan.blocks[b], [&](const plan::Op& op, uint32_t, int64_t layer, uint32_t) {
        blocks_[b].push_back({&op, layer, -1, -1});
      });
  }
  Named of(const plan::Program& program, const Span& s) const {
    const plan::Invocation& i = program.steps[0].order[s.invocation];
    Named n = blocks_[i.block.v][s.op];
    if (i.bindings > 0) {
      n.chunk = i.binding[0].chunk;
      n.micro_batch = i.binding[0].micro_batch;
      const plan::Part* part = plan_.block(i.block).part.valid() ? &plan_.parts[plan_.block(i.block).part.v] : nullptr;
      const bool inside = n.layer >= 0 && part && n.layer < part->layers;
      n.layer = inside ? n.layer + program.first_layer[static_cast<size_t>(n.chunk)] : -1;  // of the model
    } else {
      n.layer = -1;
    }
    return n;
  }

 private:
  const plan::Plan& plan_;
  std::vector<std::vector<Named>> blocks_;
};

/// Reserved bytes of a rank over one step: what the plan reserves when an op begins and releases when it ends.
template <class F>
void for_each_memory_change(const plan::Plan& plan, const RankSpans& rank, const plan::Program& program, F&& f) {
  int64_t bytes = 0;
  auto size_of_refs = [&](const plan::Block& b, plan::Range r) {
    int64_t n = 0;
    for (uint32_t k = 0; k < r.count; ++k) n += plan.buffer(b.refs[r.begin + k].buffer).bytes().n;
    return n;
  };
  for (const plan::Invocation& i : program.setup) {
    const plan::Block& b = plan.block(i.block);
    plan::for_each_op(b, [&](const plan::Op& op, uint32_t, int64_t, uint32_t) {
      bytes += size_of_refs(b, op.reserves) - size_of_refs(b, op.releases);
    });
  }
  f(int64_t{0}, bytes);
  for (const Span& s : rank.spans) {
    const plan::Block& b = plan.block(program.steps[0].order[s.invocation].block);
    uint32_t at = s.op;  // segment arithmetic: instance -> op
    const plan::Op* op = nullptr;
    for (const plan::Segment& g : b.segments) {
      const uint32_t n = g.op_count * g.iterations;
      if (at < n) {
        op = &b.ops[g.first_op + at % g.op_count];
        break;
      }
      at -= n;
    }
    WT_CHECK(op, "span of op {} in a block of {} ops", s.op, b.op_instances());
    if (const int64_t n = size_of_refs(b, op->reserves)) f(s.begin_ps, bytes += n);
    if (const int64_t n = size_of_refs(b, op->releases)) f(s.end_ps, bytes -= n);
  }
}

/// Arrows: the k-th send of a rank to a peer meets the k-th receive there. The key names the message on both sides.
class Flows {
 public:
  explicit Flows(const plan::Plan& plan) : plan_(plan) {}
  /// 0: no message.
  uint64_t id(uint32_t rank, const Named& n) {
    const auto* send = std::get_if<plan::Send>(&n.op->body);
    const auto* receive = std::get_if<plan::Receive>(&n.op->body);
    if (!send && !receive) return 0;
    const auto direction = send ? send->to : receive->from;
    const auto peer = peer_of(plan_, RankId{rank}, n.chunk, direction);
    if (!peer) return 0;
    const uint32_t from = send ? rank : peer->rank.v, to = send ? peer->rank.v : rank;
    const bool forward = (direction == plan::Direction::next_stage) == (send != nullptr);
    const uint64_t pair = (uint64_t{from} << 32 | to) ^ (forward ? 0 : 0x8000000080000000ull);
    uint32_t& k = (send ? sent_ : received_)[pair];
    // splitmix64 of (pair, count): ids must be unique in the file, not dense.
    uint64_t x = pair * 0x9e3779b97f4a7c15ull + ++k;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) | 1;
  }
  bool sends(const Named& n) const { return std::holds_alternative<plan::Send>(n.op->body); }

 private:
  const plan::Plan& plan_;
  std::unordered_map<uint64_t, uint32_t> sent_, received_;
};

/// Text or bytes to the file, through gzip where asked.
class Out {
 public:
  Out(AtomicFile& file, bool gzip) : file_(file), gzip_(gzip) {
    if (!gzip_) return;
    z_ = {};
    constexpr int kGzipWindow = 15 + 16;
    WT_CHECK(deflateInit2(&z_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  }
  ~Out() {
    if (gzip_) deflateEnd(&z_);
  }
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;

  std::string& text() {
    if (buffer_.size() >= kFlush) flush(Z_NO_FLUSH);
    return buffer_;
  }
  void finish() { flush(Z_FINISH); }

 private:
  static constexpr size_t kFlush = size_t{1} << 18;
  void flush(int mode) {
    if (!gzip_) {
      file_.write(buffer_);
      buffer_.clear();
      return;
    }
    std::array<char, 1 << 16> chunk{};
    z_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    z_.avail_in = static_cast<uInt>(buffer_.size());
    do {
      z_.next_out = reinterpret_cast<Bytef*>(chunk.data());
      z_.avail_out = static_cast<uInt>(chunk.size());
      deflate(&z_, mode);
      file_.write({chunk.data(), chunk.size() - z_.avail_out});
    } while (z_.avail_out == 0);
    buffer_.clear();
  }
  AtomicFile& file_;
  bool gzip_;
  z_stream z_{};
  std::string buffer_;
};

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

/// Microseconds with picosecond digits: Chrome's unit.
std::string micros(int64_t ps) {
  return fmt::format("{}{}.{:06d}", ps < 0 ? "-" : "", std::abs(ps) / 1000000, std::abs(ps) % 1000000);
}

void export_chrome(Out& out, const Trace& trace, const plan::Plan& plan) {
  const Names names(plan);
  Flows flows(plan);
  out.text() += "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  const char* comma = "";
  auto event = [&](const std::string& body) {
    std::string& t = out.text();
    t += comma;
    t += body;
    comma = ",\n";
  };
  for (const RankSpans& r : trace.ranks) {
    const plan::Program& program = plan.programs[program_of(plan, RankId{r.rank}).v];
    event(fmt::format(R"x({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {} ({})"}}}})x", r.rank,
                      r.rank, program.name));
    for (int s = 0; s < plan::kStreams; ++s)
      event(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", r.rank, s,
                        to_text(static_cast<plan::Stream>(s))));
    for (const Span& s : r.spans) {
      const Named n = names.of(program, s);
      std::string args = fmt::format(R"("step":{},"invocation":{},"op":{})", r.step, s.invocation, s.op);
      if (n.layer >= 0) args += fmt::format(R"(,"layer":{})", n.layer);
      if (n.chunk >= 0) args += fmt::format(R"(,"chunk":{},"micro_batch":{})", n.chunk, n.micro_batch);
      const int tid = static_cast<int>(n.op->stream);
      event(fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                        quoted(n.op->name), to_text(n.op->phase), r.rank, tid, micros(s.begin_ps),
                        micros(s.end_ps - s.begin_ps), args));
      if (const uint64_t id = flows.id(r.rank, n))
        event(flows.sends(n)
                  ? fmt::format(R"({{"ph":"s","name":"message","cat":"p2p","id":"{:x}","pid":{},"tid":{},"ts":{}}})",
                                id, r.rank, tid, micros(s.begin_ps))
                  : fmt::format(
                        R"({{"ph":"f","bp":"e","name":"message","cat":"p2p","id":"{:x}","pid":{},"tid":{},"ts":{}}})",
                        id, r.rank, tid, micros(s.end_ps)));
    }
    for_each_memory_change(plan, r, program, [&](int64_t at, int64_t bytes) {
      event(fmt::format(R"({{"ph":"C","name":"memory GiB","pid":{},"ts":{},"args":{{"reserved":{:.4f}}}}})", r.rank,
                        micros(at), static_cast<double>(bytes) / 1073741824.0));
    });
  }
  out.text() += "\n]}\n";
}

// Protobuf wire format, by hand: a trace is a stream of packets of a dozen fields of the published schema
// (protos/perfetto/trace/*.proto; the numbers below are theirs).
class Message {
 public:
  void varint(uint32_t field, uint64_t v) {
    raw(uint64_t{field} << 3);
    raw(v);
  }
  void text(uint32_t field, std::string_view s) {
    raw(uint64_t{field} << 3 | 2);
    raw(s.size());
    bytes_ += s;
  }
  void fixed64(uint32_t field, uint64_t v) {
    raw(uint64_t{field} << 3 | 1);
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(v >> (8 * i));
  }
  void real(uint32_t field, double v) {
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof bits);
    fixed64(field, bits);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void raw(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes_ += static_cast<char>(v | 0x80);
    bytes_ += static_cast<char>(v);
  }
  std::string bytes_;
};

namespace field {
constexpr uint32_t kTracePacket = 1;
constexpr uint32_t kPacketTimestamp = 8, kPacketSequence = 10, kPacketTrackEvent = 11, kPacketTrackDescriptor = 60;
constexpr uint32_t kTrackUuid = 1, kTrackName = 2, kTrackProcess = 3, kTrackParent = 5, kTrackCounter = 8;
constexpr uint32_t kProcessPid = 1, kProcessName = 6, kCounterUnitName = 6;
constexpr uint32_t kEventAnnotation = 4, kEventType = 9, kEventTrack = 11, kEventCategory = 22, kEventName = 23,
                   kEventDouble = 44, kEventFlow = 47;
constexpr uint32_t kAnnotationInt = 4, kAnnotationName = 10;
}  // namespace field

enum EventType : uint64_t { kBegin = 1, kEnd = 2, kCounter = 4 };

void export_perfetto(Out& out, const Trace& trace, const plan::Plan& plan) {
  const Names names(plan);
  Flows flows(plan);
  auto packet = [&](const Message& m) {
    Message top;
    top.text(field::kTracePacket, m.bytes());
    out.text() += top.bytes();
  };
  constexpr uint64_t kTracks = plan::kStreams + 2;
  auto track_of = [&](uint32_t rank, uint64_t k) {
    return (uint64_t{rank} + 1) * kTracks + k;
  };  // 0: the process, then streams, memory
  auto describe = [&](const Message& track) {
    Message p;
    p.text(field::kPacketTrackDescriptor, track.bytes());
    p.varint(field::kPacketSequence, 1);
    packet(p);
  };
  auto event = [&](int64_t ps, const Message& e) {
    Message p;
    p.varint(field::kPacketTimestamp, static_cast<uint64_t>(std::max<int64_t>(0, ps) / 1000));
    p.varint(field::kPacketSequence, 1);
    p.text(field::kPacketTrackEvent, e.bytes());
    packet(p);
  };
  for (const RankSpans& r : trace.ranks) {
    const plan::Program& program = plan.programs[program_of(plan, RankId{r.rank}).v];
    Message process, track;
    process.varint(field::kProcessPid, r.rank + 1);
    process.text(field::kProcessName, fmt::format("rank {} ({})", r.rank, program.name));
    track.varint(field::kTrackUuid, track_of(r.rank, 0));
    track.text(field::kTrackProcess, process.bytes());
    describe(track);
    for (int s = 0; s < plan::kStreams; ++s) {
      Message t;
      t.varint(field::kTrackUuid, track_of(r.rank, 1 + static_cast<uint64_t>(s)));
      t.text(field::kTrackName, to_text(static_cast<plan::Stream>(s)));
      t.varint(field::kTrackParent, track_of(r.rank, 0));
      describe(t);
    }
    Message counter, unit;
    unit.text(field::kCounterUnitName, "GiB");
    counter.varint(field::kTrackUuid, track_of(r.rank, kTracks - 1));
    counter.text(field::kTrackName, "memory reserved");
    counter.varint(field::kTrackParent, track_of(r.rank, 0));
    counter.text(field::kTrackCounter, unit.bytes());
    describe(counter);

    for (const Span& s : r.spans) {
      const Named n = names.of(program, s);
      const uint64_t track_id = track_of(r.rank, 1 + static_cast<uint64_t>(n.op->stream));
      Message begin, end;
      begin.varint(field::kEventType, kBegin);
      begin.varint(field::kEventTrack, track_id);
      begin.text(field::kEventCategory, to_text(n.op->phase));
      begin.text(field::kEventName, n.op->name);
      auto annotate = [&](std::string_view key, int64_t value) {
        if (value < 0) return;
        Message a;
        a.text(field::kAnnotationName, key);
        a.varint(field::kAnnotationInt, static_cast<uint64_t>(value));
        begin.text(field::kEventAnnotation, a.bytes());
      };
      annotate("layer", n.layer);
      annotate("chunk", n.chunk);
      annotate("micro_batch", n.micro_batch);
      annotate("invocation", s.invocation);
      if (const uint64_t id = flows.id(r.rank, n)) begin.fixed64(field::kEventFlow, id);
      event(s.begin_ps, begin);
      end.varint(field::kEventType, kEnd);
      end.varint(field::kEventTrack, track_id);
      event(s.end_ps, end);
    }
    for_each_memory_change(plan, r, program, [&](int64_t at, int64_t bytes) {
      Message e;
      e.varint(field::kEventType, kCounter);
      e.varint(field::kEventTrack, track_of(r.rank, kTracks - 1));
      e.real(field::kEventDouble, static_cast<double>(bytes) / 1073741824.0);
      event(at, e);
    });
  }
}

}  // namespace

Result<Format> format_of(std::string_view path) {
  if (path.ends_with(".wttrace")) return Format::native;
  if (path.ends_with(".pftrace") || path.ends_with(".perfetto-trace")) return Format::perfetto;
  if (path.ends_with(".json.gz")) return Format::chrome_gz;
  if (path.ends_with(".json")) return Format::chrome;
  return Diagnostic{std::string(path), "the ending names no trace format",
                    "legal: .wttrace, .pftrace, .json, .json.gz"};
}

void export_trace(AtomicFile& file, Format format, const Trace& trace, const plan::Plan& plan) {
  WT_CHECK(format != Format::native);
  Out out(file, format == Format::chrome_gz);
  if (format == Format::perfetto)
    export_perfetto(out, trace, plan);
  else
    export_chrome(out, trace, plan);
  out.finish();
}

Status write_as(const std::string& path, const Trace& trace, const plan::Plan& plan) {
  auto format = format_of(path);
  if (!format) return format.errors();
  if (auto checked = check_against_plan(trace, plan); !checked) return checked;
  if (format.value() == Format::native) return write_trace(path, trace);
  auto file = AtomicFile::create(path);
  if (!file) return file.errors();
  export_trace(file.value(), format.value(), trace, plan);
  return file.value().commit();
}

}  // namespace wt::trace
