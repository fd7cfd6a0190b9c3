// The walk over a trace and its plan that every exported format is drawn from, streamed: memory is that of one (rank, step)
// beside the trace. Instants of a step count from the end of the step before: each is drawn behind the longest end of the one
// before. Where the clocks of a machine disagree, a slice is drawn from the end of the one before.
#include "core/trace/export.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "core/base/text.hpp"
#include "core/trace/export_writer.hpp"
#include "core/trace/file.hpp"

namespace wt::trace {

namespace {

using plan::Plan;

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
      origin_ps_ += longest_ps_;
      longest_ps_ = 0;
    }
    const auto [at, fresh] = ranks_.try_emplace(r.rank);
    Rank& rank = at->second;
    changes_.clear();
    size_t k = 0;
    for (const plan::Invocation& v : variant_of(r).order) {
      const plan::Block& b = plan_.block(v.block);
      plan::for_each_op(b, [&](const plan::Op& op, uint32_t index, int64_t layer, uint32_t) {
        Span span = r.spans[k++];
        longest_ps_ = std::max(longest_ps_, span.end_ps);
        span.begin_ps += origin_ps_;
        span.end_ps += origin_ps_;
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
      if (!r.spans.empty()) changes_.push_back({origin_ps_ + first, 0});
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
  int64_t origin_ps_ = 0, longest_ps_ = 0;            // where the step is drawn from; the largest end in it so far
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
    Walk(*perfetto_writer(out, origin), trace, plan).run();
  } else {
    Walk(*chrome_writer(out, trace, plan), trace, plan).run();
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
