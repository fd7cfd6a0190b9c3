#include "study/explain_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/text.hpp"
#include "core/report/print.hpp"
#include "core/spec/names.hpp"

namespace wt::study {

namespace {

std::string_view to_text(sim::Bound b) {
  switch (b) {
    case sim::Bound::compute: return "compute";
    case sim::Bound::memory: return "memory";
    case sim::Bound::launch: return "launch";
  }
  return "";
}

std::string scaled(double v) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
  size_t u = 0;
  while (u + 1 < std::size(kUnits) && v >= 999.5) {
    v /= 1000;
    ++u;
  }
  return v == 0 ? "-" : fmt::format("{:.3g} {}", v, kUnits[u]);
}

std::string time_text(Time t) { return wt::to_text(t); }
std::string time_text(double s) { return wt::to_text(Time::from_seconds(s)); }

/// One decimal, or three digits of what a CPU does.
std::string tflops_text(double v) { return v >= 1 ? fmt::format("{:.1f}", v) : fmt::format("{:.3g}", v); }

/// One op of the critical rank's program, however often it runs.
struct Line {
  const plan::Op* op = nullptr;
  int64_t count = 0;
  double seconds = 0;
};

std::string shape_text(const plan::Compute& c) {
  if (c.kernel == plan::Kernel::gemm) return fmt::format("m {} n {} k {}", c.dims[0], c.dims[1], c.dims[2]);
  std::string out;
  for (int64_t d : c.dims)
    if (d > 0) out += fmt::format("{}{}", out.empty() ? "" : " x ", d);
  return out;
}

void formulas(std::string& out, const JobResult& r) {
  const report::StepReport& s = r.report;
  const double seconds = s.step_time.seconds(), ranks = static_cast<double>(r.plan.mesh.ranks());
  out += "FLOPs\n";
  report::Table table({"formula", "FLOPs of a step", "TFLOP/s per GPU", "share of peak"});
  for (const report::FlopFormula f : report::kFlopFormulas) {
    if (!report::applies(f, r.job.training)) continue;
    const double flops = report::step_flops(r.job.model, r.job.training, f, r.job.strategy.tensor);
    const double rate = flops / seconds / ranks / 1e12;
    table.add({fmt::format("{}{}", f == s.formula ? "* " : "  ", report::id_of(f)), fmt::format("{:.4g}", flops),
               tflops_text(rate), s.peak_tflops > 0 ? fmt::format("{:.1f} %", rate / s.peak_tflops * 100) : "-"});
  }
  table.add({"  executed (HFU)", fmt::format("{:.4g}", report::hardware_flops(r.plan)),
             tflops_text(s.hardware_tflops_per_gpu), fmt::format("{:.1f} %", s.hfu * 100)});
  out += table.text();
  for (const report::FlopFormula f : report::kFlopFormulas)
    if (report::applies(f, r.job.training)) out += fmt::format("    {}: {}\n", report::id_of(f), report::text_of(f));
  out +=
      "    executed: matrix products and attention of the plan, recomputed ones and FlashAttention's backward "
      "included\n";
  out += fmt::format("  MFU = FLOPs / (step time {} x {} GPUs x {} TFLOP/s, dense {} peak of {})\n",
                     time_text(s.step_time), r.plan.mesh.ranks(), tflops_text(s.peak_tflops),
                     spelled(r.job.training.compute_dtype), r.job.cluster.device.name);
  const auto n = count_parameters(r.job.model);
  out += fmt::format(
      "  parameters: {} = embedding {} + position {} + attention {} + MLP {} + experts {} + router {} + norms {} + "
      "head {} + "
      "MTP {}\n",
      with_commas(n.total()), with_commas(n.embedding), with_commas(n.position), with_commas(n.attention),
      with_commas(n.mlp), with_commas(n.experts), with_commas(n.router), with_commas(n.norms), with_commas(n.head),
      with_commas(n.mtp));
}

void terms(std::string& out, const JobResult& r) {
  out +=
      fmt::format("\nTime by cause and stage, s (each row adds up to the step, {})\n", time_text(r.report.step_time));
  std::vector<report::TimeTerm> used;
  for (const report::TimeTerm& t : report::time_terms())
    if (std::any_of(r.report.by_stage.begin(), r.report.by_stage.end(),
                    [&](const report::StageTime& s) { return s.time.*t.seconds > 0; }))
      used.push_back(t);
  std::vector<std::string> header = {"stage (rank)"};
  for (const auto& t : used) header.emplace_back(t.key);
  report::Table table(header);
  for (const report::StageTime& s : r.report.by_stage) {
    std::vector<std::string> row = {
        fmt::format("{}{} ({})", s.rank == r.report.critical_rank ? "*" : " ", s.stage, s.rank)};
    for (const auto& t : used) row.push_back(fmt::format("{:.4f}", s.time.*t.seconds));
    table.add(row);
  }
  out += table.text();
  for (const auto& t : used) out += fmt::format("    {}: {}\n", t.key, t.meaning);
}

/// "dp reduce-scatter 12" -> "dp reduce-scatter": lines of one name but for a number behind it come together.
std::string_view unnumbered(std::string_view name) {
  const size_t end = name.find_last_not_of("0123456789");
  return end != std::string_view::npos && name[end] == ' ' ? name.substr(0, end) : name;
}

/// "1.08 ms", or "1.08 ms - 1.41 ms" of several.
template <class Text>
std::string range_text(double least, double most, Text text) {
  const std::string low = text(least), high = text(most);
  return low == high ? low : low + " - " + high;
}

/// One line of a table or, in the short form, all lines of one name.
struct Row {
  std::string name;                // without its number
  std::string first;               // with it
  std::vector<std::string> cells;  // of the line that takes longest: what is not added up
  int64_t lines = 0, runs = 0;
  double seconds = 0, longest = 0;
  double least_each = 0, most_each = 0, least_bytes = 0, most_bytes = 0, least_flops = 0, most_flops = 0;

  std::string title() const { return lines > 1 ? fmt::format("{} ({} alike)", name, lines) : first; }
  std::string each() const {
    return range_text(least_each, most_each, [](double s) { return time_text(s); });
  }
  std::string bytes() const { return range_text(least_bytes, most_bytes, scaled); }
  std::string flops() const { return range_text(least_flops, most_flops, scaled); }
};

class Rows {
 public:
  explicit Rows(Listing listing) : listing_(listing) {}
  /// `same`: what must agree beside the name.
  void add(const std::string& name, std::string_view same, int64_t runs, double each, double flops, double bytes,
           std::vector<std::string> cells) {
    const std::string key =
        listing_ == Listing::full ? fmt::format("{}", rows_.size()) : fmt::format("{}\n{}", unnumbered(name), same);
    const auto [at, fresh] = index_.try_emplace(key, rows_.size());
    if (fresh)
      rows_.push_back({std::string(unnumbered(name)), name, {}, 0, 0, 0, -1, each, each, bytes, bytes, flops, flops});
    Row& r = rows_[at->second];
    ++r.lines;
    r.runs += runs;
    r.seconds += each * static_cast<double>(runs);
    r.least_each = std::min(r.least_each, each), r.most_each = std::max(r.most_each, each);
    r.least_bytes = std::min(r.least_bytes, bytes), r.most_bytes = std::max(r.most_bytes, bytes);
    r.least_flops = std::min(r.least_flops, flops), r.most_flops = std::max(r.most_flops, flops);
    if (each * static_cast<double>(runs) > r.longest) {
      r.longest = each * static_cast<double>(runs);
      r.cells = std::move(cells);
    }
  }
  std::vector<Row>& rows() { return rows_; }
  bool grouped() const {
    return std::any_of(rows_.begin(), rows_.end(), [](const Row& r) { return r.lines > 1; });
  }

 private:
  Listing listing_;
  std::vector<Row> rows_;
  std::map<std::string, size_t> index_;
};

constexpr std::string_view kGrouped =
    "    (n alike): lines of one name, least - most; shape and model of the longest; every line with --full\n";

void kernels(std::string& out, const std::vector<Line>& lines, const sim::Models& models, Listing listing) {
  out +=
      "\nKernels of the critical rank, alone on the device, largest first (work: core/lower/work.cpp; "
      "docs/kernels.md)\n";
  Rows rows(listing);
  for (const Line& l : lines) {
    const auto* c = std::get_if<plan::Compute>(&l.op->body);
    if (!c) continue;
    const sim::CostEstimate e = models.compute.estimate(*c);
    std::string name = l.op->name;
    const bool again = l.op->phase == plan::Phase::recompute;
    if (again) name += " again";
    rows.add(name, fmt::format("{} {}", static_cast<int>(c->kernel), spelled(c->dtype)), l.count, e.time.seconds(),
             c->work.flops, static_cast<double>(c->work.bytes_read + c->work.bytes_written),
             {std::string(spelled(c->dtype)), std::string(to_text(e.bound)),
              fmt::format("{:.0f} %", e.efficiency * 100), shape_text(*c), std::string(e.source)});
  }
  std::stable_sort(rows.rows().begin(), rows.rows().end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  report::Table table(
      {"op", "runs", "each", "in all", "FLOPs", "bytes", "dtype", "bound", "of peak", "shape", "source"});
  for (const Row& r : rows.rows())
    table.add({r.title(), with_commas(r.runs), r.each(), time_text(r.seconds), r.flops(), r.bytes(), r.cells[0],
               r.cells[1], r.cells[2], r.cells[3], r.cells[4]});
  out += table.text();
  if (rows.grouped()) out += kGrouped;
  out += fmt::format("  gap of the device between kernels {}\n", time_text(models.compute.device_gap()));
}

void transfers(std::string& out, const JobResult& r, const std::vector<Line>& lines, const sim::Models& models,
               Listing listing) {
  out += "\nTransfers of the critical rank\n";
  Rows rows(listing);
  const RankId rank{r.report.critical_rank};
  for (const Line& l : lines) {
    if (const auto* c = std::get_if<plan::Collective>(&l.op->body)) {
      const auto members = plan::group_members(r.plan.mesh, r.plan.group(c->group), rank);
      if (members.size() < 2) continue;
      const sim::GroupShape shape = models.collective.shape_of(members);
      const auto e = models.collective.estimate(c->kind, c->reduction, c->dtype, c->bytes, shape, c->copies);
      const std::string group = fmt::format("{} of {}", r.plan.group(c->group).name, members.size());
      rows.add(l.op->name, group, l.count, e.time.seconds(), 0, static_cast<double>(c->bytes),
               {group, std::to_string(shape.nodes), std::string(sim::to_text(e.algorithm)),
                std::string(sim::to_text(e.protocol)), std::to_string(e.channels), time_text(e.latency_seconds),
                scaled(e.bandwidth) + "B/s"});
    } else if (const auto* s = std::get_if<plan::Send>(&l.op->body)) {
      // The chunk decides the peer only in name: neighbours of one direction are alike.
      const plan::Direction d = s->to;
      for (int64_t chunk = 0; chunk < std::max<int64_t>(1, r.plan.placement.chunks); ++chunk)
        if (const auto peer = plan::peer_of(r.plan, rank, chunk, d)) {
          const auto e = models.collective.estimate_message(s->bytes, rank, peer->rank);
          const std::string to = fmt::format("to rank {}", peer->rank.v);
          rows.add(l.op->name, to, l.count, e.time.seconds(), 0, static_cast<double>(s->bytes),
                   {to, "", "message", std::string(sim::to_text(e.protocol)), "", time_text(e.latency_seconds),
                    scaled(e.bandwidth) + "B/s"});
          break;
        }
    }
  }
  if (rows.rows().empty()) {
    out += "  none\n";
    return;
  }
  report::Table table({"op", "runs", "each", "in all", "bytes", "group", "nodes", "algorithm", "protocol", "channels",
                       "latency", "bandwidth"});
  for (const Row& row : rows.rows()) {
    std::vector<std::string> cells = {
        row.title(), with_commas(row.runs), row.each(), time_text(row.seconds),
        range_text(row.least_bytes, row.most_bytes, [](double b) { return scaled(b) + "B"; })};
    cells.insert(cells.end(), row.cells.begin(), row.cells.end());
    table.add(std::move(cells));
  }
  out += table.text();
  if (rows.grouped()) out += kGrouped;
  out +=
      "    time = latency + bytes / bandwidth; bytes as nccl-tests counts them; NCCL's own choice "
      "(docs/collectives.md)\n";
}

void memory(std::string& out, const JobResult& r) {
  const report::MemoryReport& m = r.report.memory;
  if (m.stages.empty()) return;
  const report::StageMemory& s = m.stages[m.peak_stage];
  out += fmt::format("\nMemory of rank {} (stage {}), replayed from the plan's reservations\n", m.peak_rank, s.stage);
  for (const auto& i : s.items) out += fmt::format("  {:<24} {:>10}\n", i.name, wt::to_text(i.bytes));
  out += fmt::format("  {:<24} {:>10}   at the highest instant, in phase {}\n", "= peak", wt::to_text(s.peak),
                     s.peak_phase);
  out += fmt::format("  {:<24} {:>10}   blocks that PyTorch's caching allocator keeps (core/report/allocator.hpp)\n",
                     "+ cached", wt::to_text(s.cached));
  out += fmt::format("  {:<24} {:>10}   training.fragmentation = {:g} of the peak\n", "+ fragmentation",
                     wt::to_text(s.fragmentation), r.job.training.fragmentation);
  out += fmt::format("  {:<24} {:>10}   cluster.device.context_memory\n", "+ context", wt::to_text(s.context));
  out += fmt::format("  {:<24} {:>10}   {} communicator{}: channels x (LL 512 KiB + LL128 4.7 MiB + Simple 4 MiB)\n",
                     "+ communicators", wt::to_text(s.communicators), s.communicator_count,
                     s.communicator_count == 1 ? "" : "s");
  out += fmt::format("  {:<24} {:>10}   of {}\n", "= reserved", wt::to_text(s.reserved), wt::to_text(m.capacity));
  out += "  peak by phase:";
  for (const auto& p : s.phases) out += fmt::format(" {} {};", p.phase, wt::to_text(p.peak));
  out += "\n  largest buffers at the peak:\n";
  for (const auto& i : s.largest)
    out += fmt::format("    {:<32} {:>10}  in {} piece{}\n", i.name, wt::to_text(i.bytes), i.count,
                       i.count == 1 ? "" : "s");
}

}  // namespace

std::string explain_step(const JobResult& r, const sim::Models& models, Listing listing) {
  // Ops of the critical rank's step, by content: blocks of equal ops (with and without reduction) come together.
  const plan::Program& program = r.plan.programs[plan::program_of(r.plan, RankId{r.report.critical_rank}).v];
  std::map<uint32_t, int64_t> runs;
  for (const plan::Invocation& i : program.steps[0].order) ++runs[i.block.v];
  std::vector<Line> lines;
  for (const auto& [block, count] : runs)
    for (const plan::Segment& s : r.plan.blocks[block].segments)
      for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
        const plan::Op& op = r.plan.blocks[block].ops[k];
        auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& l) {
          return l.op->name == op.name && l.op->body == op.body &&
                 (l.op->phase == plan::Phase::recompute) == (op.phase == plan::Phase::recompute);
        });
        if (same == lines.end()) same = lines.insert(lines.end(), Line{&op, 0, 0});
        same->count += count * s.iterations;
      }
  std::string out;
  formulas(out, r);
  terms(out, r);
  kernels(out, lines, models, listing);
  transfers(out, r, lines, models, listing);
  memory(out, r);
  return out;
}

}  // namespace wt::study
