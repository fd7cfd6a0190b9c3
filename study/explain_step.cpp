#include "study/explain_step.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <variant>

#include "core/base/text.hpp"
#include "core/report/print.hpp"

namespace wt::study {

namespace {

std::string_view bound_text(sim::Bound b) {
  switch (b) {
    case sim::Bound::compute: return "compute";
    case sim::Bound::memory: return "memory";
    case sim::Bound::launch: return "launch";
  }
  return "";
}

std::string dims_text(const plan::Compute& c) {
  std::string out;
  for (const int64_t d : c.dims)
    if (d > 0) out += (out.empty() ? "" : " x ") + std::to_string(d);
  return out;
}

/// The first op of each name in the steady step of the critical rank, in order of appearance.
struct Kinds {
  std::vector<const plan::Op*> compute, collective, message;
};
Kinds kinds_of(const JobResult& r) {
  Kinds kinds;
  std::set<std::string> seen;
  std::set<uint32_t> blocks;
  const plan::Program& program = r.plan.programs[program_of(r.plan, RankId{r.report.critical_rank}).v];
  for (const plan::Invocation& i : program.steps[0].order) {
    if (!blocks.insert(i.block.v).second) continue;
    for (const plan::Op& op : r.plan.block(i.block).ops) {
      if (!seen.insert(op.name).second) continue;
      if (std::holds_alternative<plan::Compute>(op.body)) kinds.compute.push_back(&op);
      if (std::holds_alternative<plan::Collective>(op.body)) kinds.collective.push_back(&op);
      if (std::holds_alternative<plan::Send>(op.body) || std::holds_alternative<plan::Receive>(op.body))
        kinds.message.push_back(&op);
    }
  }
  return kinds;
}

void explain_compute(const JobResult& r, const sim::Models& models, const Kinds& kinds, std::string& out) {
  std::map<std::string_view, const report::OpClass*> classes;
  for (const report::OpClass& c : r.report.op_classes) classes[c.name] = &c;
  out +=
      "Kernels of the critical rank (work = FLOPs and bytes of core/lower/work.cpp; time = model of docs/kernels.md)\n";
  report::Table table(
      {"op", "kernel", "dtype", "dims", "GFLOP", "MB", "us each", "bound", "of peak", "count", "s a step", "source"});
  for (const plan::Op* op : kinds.compute) {
    const auto& c = std::get<plan::Compute>(op->body);
    const sim::CostEstimate e = models.compute.estimate(c);
    const auto cls = classes.find(op->name);
    table.add({op->name, std::string(to_text(c.kernel)), std::string(to_text(c.dtype)), dims_text(c),
               fmt::format("{:.3g}", c.work.flops * 1e-9),
               fmt::format("{:.3g}", static_cast<double>(c.work.bytes_read + c.work.bytes_written) * 1e-6),
               fmt::format("{:.1f}", e.time.seconds() * 1e6), std::string(bound_text(e.bound)),
               fmt::format("{:.0f} %", e.efficiency * 100), cls == classes.end() ? "" : with_commas(cls->second->count),
               cls == classes.end() ? "" : fmt::format("{:.4f}", cls->second->seconds), std::string(e.source)});
  }
  out += table.text();
}

void explain_collectives(const JobResult& r, const sim::Models& models, const Kinds& kinds, std::string& out) {
  if (kinds.collective.empty() && kinds.message.empty()) return;
  out += "\nCollectives (time = latency + bytes / bandwidth; NCCL's own choice, docs/collectives.md)\n";
  report::Table table({"op", "kind", "group", "ranks", "nodes", "MB", "us each", "algorithm", "protocol", "channels",
                       "latency us", "GB/s"});
  const RankId rank{r.report.critical_rank};
  for (const plan::Op* op : kinds.collective) {
    const auto& c = std::get<plan::Collective>(op->body);
    const plan::Group& group = r.plan.group(c.group);
    const auto members = group_members(r.plan.mesh, group, rank);
    if (members.size() < 2) continue;
    const sim::GroupShape shape = models.collective.shape_of(members);
    const auto e = models.collective.estimate(c.kind, c.reduction, c.dtype, c.bytes, shape);
    table.add({op->name, std::string(to_text(c.kind)), group.name, std::to_string(shape.ranks),
               std::to_string(shape.nodes), fmt::format("{:.3g}", static_cast<double>(c.bytes) * 1e-6),
               fmt::format("{:.1f}", e.time.seconds() * 1e6), std::string(to_text(e.algorithm)),
               std::string(to_text(e.protocol)), std::to_string(e.channels),
               fmt::format("{:.1f}", e.latency_seconds * 1e6), fmt::format("{:.1f}", e.bandwidth * 1e-9)});
  }
  for (const plan::Op* op : kinds.message) {
    const auto* send = std::get_if<plan::Send>(&op->body);
    const auto* receive = std::get_if<plan::Receive>(&op->body);
    const int64_t bytes = send ? send->bytes : receive->bytes;
    const auto direction = send ? send->to : receive->from;
    std::optional<plan::Peer> peer;
    for (int64_t chunk = 0; chunk < r.plan.placement.chunks && !peer; ++chunk)
      peer = peer_of(r.plan, rank, chunk, direction);
    if (!peer) continue;
    const auto e = send ? models.collective.estimate_message(bytes, rank, peer->rank)
                        : models.collective.estimate_message(bytes, peer->rank, rank);
    table.add({op->name, send ? "send" : "receive", fmt::format("rank {}", peer->rank.v), "2", "",
               fmt::format("{:.3g}", static_cast<double>(bytes) * 1e-6), fmt::format("{:.1f}", e.time.seconds() * 1e6),
               "", std::string(to_text(e.protocol)), std::to_string(e.channels),
               fmt::format("{:.1f}", e.latency_seconds * 1e6), fmt::format("{:.1f}", e.bandwidth * 1e-9)});
  }
  out += table.text();
}

void explain_flops(const JobResult& r, std::string& out) {
  out += "\nFLOPs of a step by the usual formulas, and the MFU that each gives over the dense peak\n";
  report::Table table({"formula", "PFLOP", "TFLOP/s a GPU", "MFU"});
  const auto peak = r.job.cluster.device.peak.find(r.job.training.compute_dtype);
  const double ranks = static_cast<double>(r.plan.mesh.ranks()), seconds = r.report.step_time.seconds();
  for (const report::FlopFormula f : report::kFlopFormulas) {
    const double flops = report::step_flops(r.job.model, r.job.training, f, r.job.strategy.tensor);
    const double rate = flops / seconds / ranks;
    table.add({std::string(report::id_of(f)), fmt::format("{:.4g}", flops * 1e-15), fmt::format("{:.1f}", rate * 1e-12),
               peak == r.job.cluster.device.peak.end() ? "" : fmt::format("{:.1f} %", 100 * rate / peak->second.n)});
  }
  out += table.text();
  if (peak != r.job.cluster.device.peak.end())
    out += fmt::format("  peak: {:.1f} TFLOP/s {} dense; {}\n", peak->second.n * 1e-12,
                       to_text(r.job.training.compute_dtype), r.job.cluster.device.source);
}

void explain_memory(const JobResult& r, std::string& out) {
  out += "\nMemory: reservations of the plan replayed in issue order; items at the peak of each stage, GiB (2^30)\n";
  report::Table table({"stage", "phase of the peak", "item", "GiB"});
  for (const report::StageMemory& s : r.report.memory.stages) {
    for (const report::MemoryItem& i : s.items)
      table.add({std::to_string(s.stage), s.peak_phase, i.name, fmt::format("{:.3f}", i.bytes.gib())});
    table.add({std::to_string(s.stage), s.peak_phase, "peak of the plan", fmt::format("{:.3f}", s.peak.gib())});
    table.add({std::to_string(s.stage), s.peak_phase, "reserved with context and communicators",
               fmt::format("{:.3f}", s.reserved.gib())});
  }
  out += table.text();
}

}  // namespace

std::string explain_step(const JobResult& r, const sim::Models& models) {
  std::string out;
  const Kinds kinds = kinds_of(r);
  explain_compute(r, models, kinds, out);
  explain_collectives(r, models, kinds, out);
  explain_flops(r, out);
  explain_memory(r, out);
  return out;
}

}  // namespace wt::study
