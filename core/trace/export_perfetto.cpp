// Perfetto's protobuf trace: a hand encoder of the few messages in use (protos/perfetto/trace/*.proto, field numbers
// below), not a protobuf library; no reader. Names are interned once for the whole file.
#include <bit>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/trace/export_writer.hpp"
#include "core/trace/protobuf.hpp"

namespace wt::trace {

namespace {

using plan::Stream;

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
  /// Perfetto knows threads by tid alone and takes 0 for the idle process: every rank has its own 32 numbers.
  static uint64_t pid(uint32_t rank) { return (uint64_t{rank} + 1) * 32; }

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

}  // namespace

std::unique_ptr<Writer> perfetto_writer(Out& out, int64_t origin_ps) {
  return std::make_unique<PerfettoWriter>(out, origin_ps);
}

}  // namespace wt::trace
