#include "core/report/print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/spec/names.hpp"

namespace wt::report {

namespace {

using Json = nlohmann::ordered_json;

std::string gib(Bytes b) { return fmt::format("{:.2f}", b.gib()); }
std::string percent(double share) {
  const double p = share * 100;
  if (p != 0 && std::fabs(p) < 0.05) return "< 0.1 %";
  return p != 0 && std::fabs(p) < 9.95 ? fmt::format("{:.1f} %", p) : fmt::format("{:.0f} %", p);
}
std::string seconds(double s) { return to_text(Time::from_seconds(s)); }

/// The unit that leaves digits before the point: a core of a CPU does GFLOP/s.
struct RateUnit {
  double per_tflops;
  std::string_view name;
};
RateUnit rate_unit(double tflops) {
  if (tflops >= 10) return {1, "TFLOP/s"};
  if (tflops >= 0.01) return {1e3, "GFLOP/s"};
  return {1e6, "MFLOP/s"};
}
std::string rate(double tflops, const RateUnit& unit) {
  const double n = tflops * unit.per_tflops;
  return n >= 10 || n == 0 ? fmt::format("{:.0f}", n) : fmt::format("{:.2g}", n);
}

/// "7.42 to 9.01 s"; both units where they differ.
std::string range(const StepBand& band) {
  std::string low = seconds(band.low_s);
  const std::string high = seconds(band.high_s);
  const size_t unit = low.find(' ');
  if (low.substr(unit) == high.substr(high.find(' '))) low.resize(unit);
  return low + " to " + high;
}

/// "1.60 M", "812 k", "70.6 B": how people count parameters and tokens.
std::string short_count(double n) {
  constexpr const char* kUnits[] = {"", " k", " M", " B", " T", " P"};
  size_t u = 0;
  while (u + 1 < std::size(kUnits) && std::fabs(n) >= 999.5) {
    n /= 1000;
    ++u;
  }
  return fmt::format("{:.{}f}{}", n, n < 9.995 ? 2 : n < 99.95 ? 1 : 0, kUnits[u]);
}

std::string rounded_with_commas(double n) { return with_commas(static_cast<int64_t>(std::llround(n))); }

std::string words_of_verdict(std::string_view fits) {
  if (fits == "fits") return "FITS";
  if (fits == "tight") return "FITS, TIGHT";
  if (fits == "borderline") return "BORDERLINE";
  return "OUT OF MEMORY";
}

std::string strategy_text(const Sheet& s) {
  const StrategySpec& t = s.job.strategy;
  std::string out;
  auto axis = [&](const char* name, int64_t n) {
    if (n > 1) out += fmt::format("{}{} {}", out.empty() ? "" : " x ", name, n);
  };
  axis("tensor", t.tensor);
  axis("context", t.context);
  axis("pipeline", t.pipeline);
  axis("data", s.plan.mesh.data_ranks());
  axis("expert", t.expert);
  if (out.empty()) out = "one device";
  if (t.pipeline > 1)
    out += t.virtual_stages > 1 ? fmt::format(", schedule {} with {} chunks", t.schedule, t.virtual_stages)
                                : fmt::format(", schedule {}", t.schedule);
  if (t.sequence_parallel && t.tensor > 1) out += ", sequence parallel";
  if (t.recompute.kind != RecomputeKind::none)
    out += t.recompute.kind == RecomputeKind::full ? ", full recompute" : ", selective recompute";
  return out;
}

/// Words for a term, for people: "tensor-parallel communication".
std::string term_words(std::string_view key) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"compute", "compute"},
      {"exposed_tensor", "tensor communication"},
      {"exposed_data", "data-parallel communication"},
      {"exposed_pipeline", "messages between stages"},
      {"exposed_context", "context communication"},
      {"exposed_expert", "expert communication"},
      {"bubble", "pipeline bubble"},
      {"offload", "offload copies"},
      {"optimizer", "optimizer"},
      {"host", "gaps between kernels"},
      {"other", "other"},
  };
  for (const auto& [k, words] : kWords)
    if (k == key) return std::string(words);
  return std::string(key);
}

struct Named {
  std::string_view key;
  double seconds;
};
std::vector<Named> sorted_terms(const TimeBreakdown& t) {
  std::vector<Named> out;
  for (const TimeTerm& term : time_terms())
    if (t.*term.seconds > 0) out.push_back({term.key, t.*term.seconds});
  std::stable_sort(out.begin(), out.end(), [](const Named& a, const Named& b) { return a.seconds > b.seconds; });
  return out;
}

const StageMemory* fullest(const MemoryReport& m) { return m.stages.empty() ? nullptr : &m.stages[m.peak_stage]; }

struct Run {
  double days = 0, gpu_hours = 0;
};
std::optional<Run> whole_run(const Sheet& s) {
  if (s.job.training.total_tokens <= 0 || s.report.tokens_per_second <= 0) return std::nullopt;
  const double t = s.job.training.total_tokens / s.report.tokens_per_second;
  return Run{t / 86400, t / 3600 * static_cast<double>(s.plan.mesh.ranks())};
}

/// Stages of equal memory share a line.
struct StageRow {
  int64_t first = 0, last = 0;
  const StageMemory* memory = nullptr;
};
std::vector<StageRow> stage_rows(const MemoryReport& m) {
  std::vector<StageRow> rows;
  for (const StageMemory& s : m.stages) {
    if (!rows.empty() && rows.back().memory->peak == s.peak && rows.back().memory->reserved == s.reserved &&
        rows.back().memory->peak_phase == s.peak_phase)
      rows.back().last = s.stage;
    else
      rows.push_back({s.stage, s.stage, &s});
  }
  return rows;
}

int64_t item_bytes(const StageMemory& s, const std::string& name) {
  for (const MemoryItem& i : s.items)
    if (i.name == name) return i.bytes.n;
  return 0;
}

Table memory_table(const MemoryReport& m) {
  // Columns: the items that matter anywhere, largest sum first; the small ones together.
  std::vector<std::pair<std::string, int64_t>> totals;
  for (const StageMemory& s : m.stages)
    for (const MemoryItem& i : s.items) {
      auto it = std::find_if(totals.begin(), totals.end(), [&](const auto& t) { return t.first == i.name; });
      if (it == totals.end())
        totals.emplace_back(i.name, i.bytes.n);
      else
        it->second = std::max(it->second, i.bytes.n);
    }
  std::stable_sort(totals.begin(), totals.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr size_t kColumns = 6;
  std::vector<std::string> header = {"stage", "reserved", "peak", "phase of peak"};
  const size_t shown = std::min(kColumns, totals.size());
  for (size_t i = 0; i < shown; ++i) header.push_back(totals[i].first);
  const bool rest = totals.size() > shown;
  if (rest) header.push_back("rest");
  header.push_back("cached, context, NCCL");
  Table table(header);
  for (const StageRow& r : stage_rows(m)) {
    const StageMemory& s = *r.memory;
    std::vector<std::string> row = {
        r.first == r.last ? fmt::format("{}", r.first) : fmt::format("{}-{}", r.first, r.last), gib(s.reserved),
        gib(s.peak), s.peak_phase};
    int64_t others = s.peak.n;
    for (size_t i = 0; i < shown; ++i) {
      const int64_t n = item_bytes(s, totals[i].first);
      others -= n;
      row.push_back(gib({n}));
    }
    if (rest) row.push_back(gib({others}));
    row.push_back(gib(s.cached + s.fragmentation + s.context + s.communicators));
    table.add(row);
  }
  return table;
}

std::string wrapped(const std::string& text, size_t width, const std::string& indent) {
  std::string out, line;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find(' ', at);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += line + "\n" + indent;
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return out + line;
}

std::string verdict_text(const Sheet& s) {
  const MemoryReport& m = s.report.memory;
  const StageMemory* f = fullest(m);
  if (!f) return "";
  if (m.host_overflows())
    return fmt::format("the host: {:.0f} GiB of pinned and pageable buffers and processes on a node of {:.0f} GiB",
                       m.host_needed.gib(), m.host_capacity.gib());
  if (m.nvme_overflows())
    return fmt::format("the drives: {:.0f} GiB in files on a node of {:.0f} GiB", m.nvme_needed.gib(),
                       m.nvme_capacity.gib());
  const double free = m.capacity.gib() - f->reserved.gib();
  return fmt::format("{:.1f} of {:.1f} GiB reserved on the fullest rank (rank {}, stage {}, {}): {:.1f} GiB {}",
                     f->reserved.gib(), m.capacity.gib(), m.peak_rank, f->stage, f->peak_phase, std::fabs(free),
                     free >= 0 ? "free" : "too much");
}

}  // namespace

std::string Table::text(const std::string& indent) const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? fmt::format("{:<{}}", row[i], width[i]) : fmt::format("  {:>{}}", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string Table::markdown() const {
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    out += "|";
    for (const std::string& cell : rows_[r]) out += " " + cell + " |";
    out += "\n";
    if (r == 0) {
      out += "|";
      for (size_t i = 0; i < rows_[0].size(); ++i) out += i == 0 ? " --- |" : " ---: |";
      out += "\n";
    }
  }
  return out;
}

std::string limit_text(const StepReport& r) {
  const auto terms = sorted_terms(r.time);
  if (terms.empty()) return "unknown";
  const double total = r.step_time.seconds();
  std::string out = fmt::format("{} ({} of the step)", term_words(terms[0].key), percent(terms[0].seconds / total));
  if (terms.size() > 1)
    out += fmt::format(", then {} ({})", term_words(terms[1].key), percent(terms[1].seconds / total));
  return out;
}

std::string print_screen(const Sheet& s) {
  const StepReport& r = s.report;
  const ClusterSpec& c = s.job.cluster;
  const TrainingSpec& t = s.job.training;
  const int64_t ranks = s.plan.mesh.ranks();
  std::string out;
  auto line = [&](std::string_view text) { out.append(text) += '\n'; };
  line(fmt::format("{}  on  {}: {} x {}", s.job.model.name.empty() ? s.job.name : s.job.model.name, c.name,
                   with_commas(ranks), c.device.name));
  line(fmt::format("  {} parameters; {}", short_count(static_cast<double>(count_parameters(s.job.model).total())),
                   strategy_text(s)));
  line(fmt::format("  batch of {} x {} tokens in {} micro-batch{} of {} on each replica, {}",
                   with_commas(t.global_batch), with_commas(t.seq_len), with_commas(s.plan.micro_batches),
                   s.plan.micro_batches == 1 ? "" : "es", s.plan.micro_batch_size, spelled(t.compute_dtype)));
  line("");
  line(fmt::format("  memory   {:<14} {}", words_of_verdict(r.memory.fits), verdict_text(s)));
  line(fmt::format("  step     {:<14} {} tokens/s, {} tokens/s per GPU", to_text(r.step_time),
                   short_count(r.tokens_per_second), rounded_with_commas(r.tokens_per_second_per_gpu)));
  if (s.band) line(fmt::format("  band     {:<14} {}", range(*s.band), s.band->basis));
  const RateUnit unit = rate_unit(r.peak_tflops > 0 ? r.peak_tflops : r.model_tflops_per_gpu);
  if (r.peak_tflops > 0)
    line(fmt::format("  MFU      {:<14} {} of {} {} per GPU (dense {} peak, formula {}); HFU {:.1f} %",
                     fmt::format("{:.1f} %", r.mfu * 100), rate(r.model_tflops_per_gpu, unit),
                     rate(r.peak_tflops, unit), unit.name, spelled(t.compute_dtype), id_of(r.formula), r.hfu * 100));
  else
    line(fmt::format("  speed    {:<14} {} per GPU (formula {}); the device has no {} peak, so no MFU",
                     rate(r.model_tflops_per_gpu, unit), unit.name, id_of(r.formula), spelled(t.compute_dtype)));
  line(fmt::format("  limit    {}", limit_text(r)));
  if (const auto run = whole_run(s))
    line(fmt::format("  run      {:<14} {} GPU-hours for {} tokens, without failures and restarts",
                     fmt::format("{:.1f} days", run->days), rounded_with_commas(run->gpu_hours),
                     short_count(t.total_tokens)));
  line("");
  line(fmt::format("Time of the step on rank {} (where it ends)", r.critical_rank));
  {
    const double total = r.step_time.seconds();
    size_t widest = 0;
    const auto terms = sorted_terms(r.time);
    for (const Named& n : terms) widest = std::max(widest, term_words(n.key).size());
    for (const Named& n : terms) {
      const auto bars = static_cast<size_t>(std::lround(n.seconds / total * 50));
      std::string row = fmt::format("  {:<{}}  {:>9}  {:>6}  {}", term_words(n.key), widest, seconds(n.seconds),
                                    percent(n.seconds / total), std::string(bars, '#'));
      row.erase(row.find_last_not_of(' ') + 1);
      line(row);
    }
  }
  line("");
  line(fmt::format("Memory of a device by pipeline stage, GiB at the peak (capacity {:.1f} GiB)",
                   r.memory.capacity.gib()));
  out += memory_table(r.memory).text();
  line(fmt::format("  host memory {:.0f} GiB a node; a checkpoint is {:.1f} GiB", r.memory.host_gib_per_node,
                   r.memory.checkpoint_gib));
  if (r.memory.nvme_needed.n > 0) line(fmt::format("  files {:.0f} GiB a node", r.memory.nvme_needed.gib()));
  auto list = [&](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    line("");
    line(title);
    for (const std::string& text : lines) line("  - " + wrapped(text, 112, "    "));
  };
  list("Warnings", s.warnings);
  list("Assumptions", s.assumptions);
  line("");
  line(fmt::format(
      "{} ranks, {} simulated, {} ops in {}; plan {:016x}", with_commas(static_cast<int64_t>(s.simulated.ranks)),
      with_commas(static_cast<int64_t>(s.simulated.distinct_ranks)), with_commas(static_cast<int64_t>(s.simulated.ops)),
      seconds(s.simulated.wall_seconds), s.plan_digest));
  return out;
}

std::string print_json(const Sheet& s) {
  const StepReport& r = s.report;
  Json j;
  j["schema_version"] = kSchemaVersion;
  j["plan_digest"] = fmt::format("{:016x}", s.plan_digest);
  j["job"] = s.job.name;
  j["model"] = s.job.model.name;
  j["parameters"] = count_parameters(s.job.model).total();
  j["cluster"] = s.job.cluster.name;
  j["gpus"] = s.plan.mesh.ranks();
  j["strategy"] = {{"tensor", s.job.strategy.tensor},       {"pipeline", s.job.strategy.pipeline},
                   {"context", s.job.strategy.context},     {"expert", s.job.strategy.expert},
                   {"data", s.plan.mesh.data_ranks()},      {"virtual_stages", s.job.strategy.virtual_stages},
                   {"schedule", s.job.strategy.schedule},   {"micro_batches", s.plan.micro_batches},
                   {"micro_batch", s.plan.micro_batch_size}};
  j["fits"] = r.memory.fits;
  j["step_time_s"] = r.step_time.seconds();
  if (s.band) {
    j["step_time_band_s"] = {s.band->low_s, s.band->high_s};
    j["step_time_band_basis"] = s.band->basis;
  }
  j["tokens_per_s"] = r.tokens_per_second;
  j["tokens_per_s_per_gpu"] = r.tokens_per_second_per_gpu;
  j["model_tflops_per_gpu"] = r.model_tflops_per_gpu;
  j["hardware_tflops_per_gpu"] = r.hardware_tflops_per_gpu;
  j["mfu"] = r.mfu;
  j["hfu"] = r.hfu;
  j["flop_formula"] = id_of(r.formula);
  j["peak_tflops_dense"] = r.peak_tflops;
  j["bubble_fraction"] = r.bubble_fraction;
  j["limit"] = limit_text(r);
  j["critical_rank"] = r.critical_rank;
  // Terms of the contract always; `host` is an addition that is there when it is not zero.
  auto terms = [](const TimeBreakdown& t) {
    Json out;
    for (const TimeTerm& term : time_terms())
      if (term.key != "host" || t.*term.seconds > 0) out[std::string(term.key)] = t.*term.seconds;
    return out;
  };
  j["time_s"] = terms(r.time);
  j["time_by_stage_s"] = Json::array();
  for (const StageTime& t : r.by_stage)
    j["time_by_stage_s"].push_back({{"stage", t.stage}, {"rank", t.rank}, {"time_s", terms(t.time)}});
  if (const auto run = whole_run(s)) j["whole_run"] = {{"days", run->days}, {"gpu_hours", run->gpu_hours}};

  const MemoryReport& m = r.memory;
  Json memory;
  memory["capacity_gib"] = m.capacity.gib();
  const StageMemory* f = fullest(m);
  memory["peak_gib"] = f ? f->peak.gib() : 0;
  memory["reserved_gib"] = f ? f->reserved.gib() : 0;
  memory["peak_rank"] = m.peak_rank;
  memory["peak_phase"] = f ? f->peak_phase : "";
  auto phases = [](const StageMemory& st) {
    Json out = Json::array();
    for (const PhasePeak& p : st.phases) out.push_back({{"phase", p.phase}, {"peak_gib", p.peak.gib()}});
    return out;
  };
  memory["by_phase"] = f ? phases(*f) : Json::array();
  memory["by_stage"] = Json::array();
  for (const StageMemory& st : m.stages) {
    Json stage = {{"stage", st.stage},
                  {"peak_gib", st.peak.gib()},
                  {"reserved_gib", st.reserved.gib()},
                  {"peak_phase", st.peak_phase}};
    stage["items_gib"] = Json::object();
    for (const MemoryItem& i : st.items) stage["items_gib"][i.name] = i.bytes.gib();
    stage["outside_the_plan_gib"] = {{"allocator_cache", st.cached.gib()},
                                     {"context", st.context.gib()},
                                     {"communicators", st.communicators.gib()},
                                     {"fragmentation", st.fragmentation.gib()}};
    stage["largest"] = Json::array();
    for (const MemoryItem& i : st.largest)
      stage["largest"].push_back({{"buffer", i.name}, {"gib", i.bytes.gib()}, {"count", i.count}});
    stage["by_phase"] = phases(st);
    memory["by_stage"].push_back(std::move(stage));
  }
  memory["host_gib_per_node"] = m.host_gib_per_node;
  memory["host_needed_gib"] = m.host_needed.gib();
  memory["host_capacity_gib"] = m.host_capacity.gib();
  if (m.nvme_needed.n > 0) memory["nvme_needed_gib"] = m.nvme_needed.gib();
  memory["host_items_gib"] = Json::object();
  for (const MemoryItem& i : m.host_items) memory["host_items_gib"][i.name] = i.bytes.gib();
  memory["checkpoint_gib"] = m.checkpoint_gib;
  j["memory"] = std::move(memory);
  j["assumptions"] = s.assumptions;
  j["warnings"] = s.warnings;
  j["simulated"] = {{"ranks", s.simulated.ranks},
                    {"distinct_ranks", s.simulated.distinct_ranks},
                    {"ops", s.simulated.ops},
                    {"events", s.simulated.events},
                    {"wall_s", s.simulated.wall_seconds}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string print_csv(const Sheet& s) {
  const StepReport& r = s.report;
  const StageMemory* f = fullest(r.memory);
  std::vector<std::pair<std::string, std::string>> cells;
  auto quoted = [](const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string out = "\"";
    for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  };
  auto text = [&](const char* key, const std::string& v) { cells.emplace_back(key, quoted(v)); };
  auto integer = [&](const char* key, int64_t v) { cells.emplace_back(key, std::to_string(v)); };
  auto number = [&](const std::string& key, double v) { cells.emplace_back(key, fmt::format("{:.9g}", v)); };
  text("job", s.job.name);
  text("model", s.job.model.name);
  integer("parameters", count_parameters(s.job.model).total());
  text("cluster", s.job.cluster.name);
  integer("gpus", s.plan.mesh.ranks());
  integer("tensor", s.job.strategy.tensor);
  integer("pipeline", s.job.strategy.pipeline);
  integer("context", s.job.strategy.context);
  integer("expert", s.job.strategy.expert);
  integer("data", s.plan.mesh.data_ranks());
  integer("virtual_stages", s.job.strategy.virtual_stages);
  text("schedule", s.job.strategy.schedule);
  integer("micro_batch", s.plan.micro_batch_size);
  integer("micro_batches", s.plan.micro_batches);
  integer("global_batch", s.job.training.global_batch);
  integer("seq_len", s.job.training.seq_len);
  text("plan_digest", fmt::format("{:016x}", s.plan_digest));
  text("fits", r.memory.fits);
  number("step_time_s", r.step_time.seconds());
  number("step_time_low_s", s.band ? s.band->low_s : r.step_time.seconds());
  number("step_time_high_s", s.band ? s.band->high_s : r.step_time.seconds());
  number("tokens_per_s", r.tokens_per_second);
  number("tokens_per_s_per_gpu", r.tokens_per_second_per_gpu);
  number("model_tflops_per_gpu", r.model_tflops_per_gpu);
  number("hardware_tflops_per_gpu", r.hardware_tflops_per_gpu);
  number("mfu", r.mfu);
  number("hfu", r.hfu);
  text("flop_formula", std::string(id_of(r.formula)));
  number("bubble_fraction", r.bubble_fraction);
  for (const TimeTerm& term : time_terms()) number("time_" + std::string(term.key) + "_s", r.time.*term.seconds);
  number("capacity_gib", r.memory.capacity.gib());
  number("peak_gib", f ? f->peak.gib() : 0);
  number("reserved_gib", f ? f->reserved.gib() : 0);
  integer("peak_rank", r.memory.peak_rank);
  text("peak_phase", f ? f->peak_phase : "");
  number("host_gib_per_node", r.memory.host_gib_per_node);
  number("checkpoint_gib", r.memory.checkpoint_gib);
  std::string head, row;
  for (const auto& [key, value] : cells) {
    const char* comma = head.empty() ? "" : ",";
    head += comma + key;
    row += comma + value;
  }
  return head + "\n" + row + "\n";
}

std::string print_markdown(const Sheet& s) {
  const StepReport& r = s.report;
  const double total = r.step_time.seconds();
  std::string out = fmt::format("## {} on {} x {} ({})\n\n", s.job.model.name.empty() ? s.job.name : s.job.model.name,
                                with_commas(s.plan.mesh.ranks()), s.job.cluster.device.name, s.job.cluster.name);
  Table answer({"", "predicted"});
  answer.add({"memory", fmt::format("{}: {}", words_of_verdict(r.memory.fits), verdict_text(s))});
  answer.add({"step time", to_text(r.step_time)});
  if (s.band) answer.add({"band", fmt::format("{}: {}", range(*s.band), s.band->basis)});
  answer.add({"tokens/s", fmt::format("{} ({} per GPU)", rounded_with_commas(r.tokens_per_second),
                                      rounded_with_commas(r.tokens_per_second_per_gpu))});
  if (r.peak_tflops > 0)
    answer.add({"MFU", fmt::format("{:.1f} % of {} {} (dense, {}); HFU {:.1f} %", r.mfu * 100,
                                   rate(r.peak_tflops, rate_unit(r.peak_tflops)), rate_unit(r.peak_tflops).name,
                                   id_of(r.formula), r.hfu * 100)});
  answer.add({"limit", limit_text(r)});
  answer.add({"strategy", strategy_text(s)});
  if (const auto run = whole_run(s))
    answer.add({"whole run", fmt::format("{:.1f} days, {} GPU-hours, without failures", run->days,
                                         rounded_with_commas(run->gpu_hours))});
  out += answer.markdown() + "\n";
  Table time({"time of the step", "seconds", "share"});
  for (const Named& n : sorted_terms(r.time))
    time.add({term_words(n.key), fmt::format("{:.4g}", n.seconds), percent(n.seconds / total)});
  out += time.markdown() + "\nMemory by pipeline stage, GiB:\n\n" + memory_table(r.memory).markdown();
  auto list = [&](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    out += fmt::format("\n{}:\n\n", title);
    for (const std::string& text : lines) out += "- " + text + "\n";
  };
  list("Warnings", s.warnings);
  list("Assumptions", s.assumptions);
  return out + fmt::format("\nPlan `{:016x}`.\n", s.plan_digest);
}

}  // namespace wt::report
