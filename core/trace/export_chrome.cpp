// Chrome's JSON (chrome://tracing, ui.perfetto.dev): one event a line.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/base/text.hpp"
#include "core/trace/export_writer.hpp"

namespace wt::trace {

namespace {

using plan::Plan;
using plan::Stream;

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

}  // namespace

std::unique_ptr<Writer> chrome_writer(Out& out, const Trace& trace, const Plan& plan) {
  return std::make_unique<ChromeWriter>(out, trace, plan);
}

}  // namespace wt::trace
