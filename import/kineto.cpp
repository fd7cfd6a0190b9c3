#include "import/kineto.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>

#include "core/base/text.hpp"
#include "import/kernel_names.hpp"

namespace wt::import {

namespace {

using trace::Profile;
using trace::ProfilePhase;
using trace::ProfileSpan;
using trace::WorkClass;

constexpr int64_t kPsPerNs = 1000;

/// Intervals of the host on one thread, those of a kind merged: whether an instant lies in one is a binary search.
class Cover {
 public:
  void add(int64_t begin, int64_t end) { parts_.emplace_back(begin, end); }
  void merge() {
    std::sort(parts_.begin(), parts_.end());
    size_t n = 0;
    for (const auto& p : parts_)
      if (n > 0 && p.first <= parts_[n - 1].second)
        parts_[n - 1].second = std::max(parts_[n - 1].second, p.second);
      else
        parts_[n++] = p;
    parts_.resize(n);
  }
  bool holds(int64_t at) const {
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), std::pair(at, INT64_MAX));
    return after != parts_.begin() && std::prev(after)->second >= at;
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> parts_;
};

/// What the host was doing when it launched something.
class Host {
 public:
  explicit Host(KinetoEvents& e) : events_(e) {
    for (const KinetoEvents::Mark& m : e.marks)
      marks_[{m.thread, m.says}][static_cast<size_t>(m.phase)].add(m.begin, m.end);
    for (auto& [key, covers] : marks_)
      for (Cover& c : covers) c.merge();
    std::sort(e.launches.begin(), e.launches.end(), [](const auto& x, const auto& y) {
      return std::pair(x.correlation, x.at) < std::pair(y.correlation, y.at);
    });
    std::sort(e.collectives.begin(), e.collectives.end(),
              [](const auto& x, const auto& y) { return std::pair(x.thread, x.begin) < std::pair(y.thread, y.begin); });
    std::sort(e.steps.begin(), e.steps.end(), [](const auto& x, const auto& y) { return x.begin < y.begin; });
  }

  const KinetoEvents::Launch* launch(uint64_t correlation) const {
    if (correlation == 0) return nullptr;
    const auto at = std::lower_bound(events_.launches.begin(), events_.launches.end(), correlation,
                                     [](const auto& x, uint64_t c) { return x.correlation < c; });
    return at != events_.launches.end() && at->correlation == correlation ? &*at : nullptr;
  }

  /// The mark that weighs most decides, however marks nest: a forward that checkpointing runs again inside autograd is
  /// backward.
  ProfilePhase phase(const KinetoEvents::Launch& l) const {
    using Says = KinetoEvents::Says;
    for (const Says says : {Says::optimizer, Says::autograd, Says::annotated, Says::recorded_forward})
      if (const auto covers = marks_.find({l.thread, says}); covers != marks_.end())
        for (size_t p = 0; p < covers->second.size(); ++p)
          if (covers->second[p].holds(l.at)) return static_cast<ProfilePhase>(p);
    return ProfilePhase::outside;
  }

  /// The innermost collective that was being called; a few neighbours are looked at, no call nests deeper.
  const KinetoEvents::Collective* collective(const KinetoEvents::Launch& l) const {
    constexpr int kLooked = 8;
    const auto& all = events_.collectives;
    auto at = std::upper_bound(all.begin(), all.end(), std::pair(l.thread, l.at),
                               [](const auto& key, const auto& c) { return key < std::pair(c.thread, c.begin); });
    const KinetoEvents::Collective* found = nullptr;
    for (int i = 0; i < kLooked && at != all.begin(); ++i) {
      --at;
      if (at->thread != l.thread || at->end < l.at) continue;
      if (!found || (found->bytes < 0 && at->bytes >= 0)) found = &*at;
    }
    return found;
  }

  /// Index of the step whose mark holds the instant.
  std::optional<size_t> step(int64_t at) const {
    const auto& all = events_.steps;
    const auto after =
        std::upper_bound(all.begin(), all.end(), at, [](int64_t t, const auto& s) { return t < s.begin; });
    if (after == all.begin() || std::prev(after)->end < at) return std::nullopt;
    return static_cast<size_t>(std::prev(after) - all.begin());
  }

 private:
  KinetoEvents& events_;
  std::map<std::pair<uint64_t, KinetoEvents::Says>, std::array<Cover, trace::kProfilePhases>> marks_;
};

struct Lacks {
  int64_t launch = 0, step = 0, time = 0;
};

WorkClass class_of(const KinetoEvents::Device& d, const std::string& name, const KinetoEvents::Collective* called) {
  const WorkClass by_name = class_of_kernel(name);
  if (!trace::is_communication(by_name)) return by_name;
  // ncclKernel_SendRecv is also an all-to-all, and RCCL's kernels have one name for all.
  if (d.collective != WorkClass::other) return d.collective;
  return called && called->kind != WorkClass::communication ? called->kind : by_name;
}

/// The spans of one file. Times count from its first event, so that several files need no common clock.
std::vector<ProfileSpan> spans_of(const KinetoEvents& e, const Host& host, uint32_t rank, uint32_t first_step,
                                  const std::vector<uint32_t>& name_ids, Lacks& lacks) {
  int64_t zero = INT64_MAX;
  for (const KinetoEvents::Device& d : e.device) zero = std::min(zero, d.begin);
  std::vector<ProfileSpan> out;
  out.reserve(e.device.size());
  for (const KinetoEvents::Device& d : e.device) {
    if (d.end - zero > INT64_MAX / kPsPerNs) {
      ++lacks.time;
      continue;
    }
    ProfileSpan s;
    s.rank = rank;
    s.stream = d.stream;
    s.name = name_ids[d.name];
    s.begin_ps = (d.begin - zero) * kPsPerNs;
    s.end_ps = (d.end - zero) * kPsPerNs;
    s.bytes = d.bytes;
    s.group = d.group;
    const KinetoEvents::Launch* launch = host.launch(d.correlation);
    if (launch) s.phase = host.phase(*launch);
    if (!launch) ++lacks.launch;
    const std::string& name = e.names[d.name];
    const KinetoEvents::Collective* called = launch ? host.collective(*launch) : nullptr;
    s.work = class_of(d, name, called);
    if (trace::is_communication(s.work) && called && s.bytes < 0) s.bytes = called->bytes, s.group = called->group;
    // Optimizers without fused kernels are element-wise ones, launched from theirs.
    if (s.phase == ProfilePhase::optimizer && s.work == WorkClass::elementwise) s.work = WorkClass::optimizer;
    if (e.steps.empty())
      s.step = first_step;
    else if (const auto step = host.step(launch ? launch->at : d.begin))
      s.step = first_step + static_cast<uint32_t>(*step);
    else
      ++lacks.step;
    out.push_back(s);
  }
  std::sort(out.begin(), out.end(), [](const ProfileSpan& x, const ProfileSpan& y) { return x.begin_ps < y.begin_ps; });
  return out;
}

/// A step on the device lasts until the next one's first work; of the last, and where the host waits for the device at
/// each step's end, the host's mark says it.
std::vector<trace::ProfileStep> steps_of(const KinetoEvents& e, uint32_t rank, uint32_t first_step,
                                         const std::vector<ProfileSpan>& spans) {
  const size_t n = std::max<size_t>(e.steps.size(), 1);
  std::vector<int64_t> begin(n, INT64_MAX), end(n, INT64_MIN);
  for (const ProfileSpan& s : spans) {
    if (s.step == trace::kNoStep) continue;
    const size_t k = s.step - first_step;
    begin[k] = std::min(begin[k], s.begin_ps);
    end[k] = std::max(end[k], s.end_ps);
  }
  std::vector<trace::ProfileStep> out;
  for (size_t k = 0; k < n; ++k) {
    trace::ProfileStep step;
    step.rank = rank;
    const int64_t marked = e.steps.empty() ? 0 : (e.steps[k].end - e.steps[k].begin) * kPsPerNs;
    step.number = e.steps.empty() ? 0 : e.steps[k].number;
    const bool worked = begin[k] != INT64_MAX;
    if (worked && k + 1 < n && begin[k + 1] != INT64_MAX)
      step.length_ps = begin[k + 1] - begin[k];
    else
      step.length_ps = worked ? std::max(marked, end[k] - begin[k]) : marked;
    out.push_back(step);
  }
  return out;
}

struct File {
  std::string name;
  KinetoEvents events;
  uint32_t rank = 0;
};

/// "trace_rank-12.json.gz" -> 12.
std::optional<uint32_t> rank_in(std::string_view name) {
  name = name.substr(name.rfind('/') == name.npos ? 0 : name.rfind('/') + 1);
  size_t at = name.rfind("rank");
  if (at == name.npos) return std::nullopt;
  at += 4;
  while (at < name.size() && (name[at] == '-' || name[at] == '_')) ++at;
  size_t end = at;
  while (end < name.size() && end < at + 7 && name[end] >= '0' && name[end] <= '9') ++end;
  const auto n = parse_int(name.substr(at, end - at));
  return n ? std::optional(static_cast<uint32_t>(*n)) : std::nullopt;
}

Diagnostics name_ranks(std::vector<File>& files) {
  Diagnostics faults;
  std::map<uint32_t, std::string> taken;
  for (size_t i = 0; i < files.size(); ++i) {
    File& f = files[i];
    f.rank = static_cast<uint32_t>(i);
    if (f.events.rank >= 0 && f.events.rank < INT32_MAX)
      f.rank = static_cast<uint32_t>(f.events.rank);
    else if (const auto named = rank_in(f.name))
      f.rank = *named;
    const auto [at, fresh] = taken.try_emplace(f.rank, f.name);
    if (!fresh)
      faults.push_back(
          {f.name, fmt::format("is of rank {}, and so is {}", f.rank, at->second), "one file for each rank"});
    if (!files[0].events.world || !f.events.world || files[0].events.world == f.events.world) continue;
    faults.push_back({f.name,
                      fmt::format("is of {} ranks, {} of {}", f.events.world, files[0].name, files[0].events.world),
                      "files of one run"});
  }
  return faults;
}

Diagnostic no_device(const File& f) {
  return {f.name,
          f.events.host_ops > 0
              ? fmt::format("has {} operators of the host and no work of a device", with_commas(f.events.host_ops))
              : "has no work of a device",
          "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"};
}

void add_notes(Profile& p, const File& f, const Lacks& lacks) {
  auto note = [&](int64_t n, std::string_view what) {
    if (n > 0)
      p.notes.push_back(fmt::format("{}: {} of {} {}", f.name, with_commas(n),
                                    with_commas(static_cast<int64_t>(f.events.device.size())), what));
  };
  note(lacks.launch, "device spans have no launch on the host: their phase is not known");
  note(lacks.step, "device spans lie in no ProfilerStep: left out");
  if (const int64_t n = f.events.faulty + lacks.time; n > 0)
    p.notes.push_back(fmt::format("{}: {} events have no time or none that can be: left out", f.name, with_commas(n)));
}

Result<Profile> assemble(std::vector<File> files) {
  Diagnostics faults = name_ranks(files);
  for (const File& f : files)
    if (f.events.device.empty()) faults.push_back(no_device(f));
  if (!faults.empty()) return faults;
  std::sort(files.begin(), files.end(), [](const File& x, const File& y) { return x.rank < y.rank; });
  Profile p;
  p.measured = true;
  p.world = files[0].events.world;
  p.marked = std::ranges::all_of(files, [](const File& f) { return !f.events.steps.empty(); });
  std::map<std::string, uint32_t> names;
  for (File& f : files) {
    if (!p.marked) f.events.steps.clear();
    std::vector<uint32_t> ids;
    for (const std::string& n : f.events.names) {
      const auto [at, fresh] = names.try_emplace(n, static_cast<uint32_t>(p.names.size()));
      if (fresh) p.names.push_back(n);
      ids.push_back(at->second);
    }
    const Host host(f.events);
    const auto first_step = static_cast<uint32_t>(p.steps.size());
    Lacks lacks;
    std::vector<ProfileSpan> spans = spans_of(f.events, host, f.rank, first_step, ids, lacks);
    for (const trace::ProfileStep& s : steps_of(f.events, f.rank, first_step, spans)) p.steps.push_back(s);
    p.spans.insert(p.spans.end(), spans.begin(), spans.end());
    p.ranks.push_back(f.rank);
    add_notes(p, f, lacks);
    f.events = {};  // its memory before the next one's
  }
  if (!p.marked)
    p.notes.push_back(
        "nothing marks steps (\"ProfilerStep#\", written where the profiler's step() is called): the whole trace is "
        "taken as one");
  p.description =
      fmt::format("PyTorch profiler, {} of {} ranks", p.ranks.size(), p.world > 0 ? fmt::format("{}", p.world) : "?");
  return p;
}

/// A file, unpacked where it is packed.
class Unpacked {
 public:
  static Result<Unpacked> open(const std::string& path) {
    Unpacked u;
    u.path_ = path;
    u.file_.reset(gzopen(path.c_str(), "rb"));
    if (!u.file_) return Diagnostic{path, fmt::format("cannot open: {}", std::strerror(errno)), ""};
    gzbuffer(u.file_.get(), kPiece);
    u.piece_.resize(kPiece);
    return u;
  }
  std::string_view next() {
    const int n = gzread(file_.get(), piece_.data(), kPiece);
    int code = Z_OK;
    const char* said = gzerror(file_.get(), &code);
    if (n < 0 || (code != Z_OK && code != Z_STREAM_END))
      fault_ = Diagnostic{path_,
                          code == Z_BUF_ERROR
                              ? "is cut: its compressed data end early"
                              : fmt::format("cannot be read: {}", code == Z_ERRNO ? std::strerror(errno) : said),
                          "export the trace again"};
    return n > 0 ? std::string_view(piece_.data(), static_cast<size_t>(n)) : std::string_view();
  }
  const std::optional<Diagnostic>& fault() const { return fault_; }

 private:
  static constexpr unsigned kPiece = 1 << 18;
  struct Close {
    void operator()(gzFile f) const { gzclose(f); }
  };
  std::string path_, piece_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::optional<Diagnostic> fault_;
};

}  // namespace

bool looks_like_profile(const std::string& path) {
  if (path.ends_with(".json.gz")) return true;
  if (!path.ends_with(".json")) return false;
  auto unpacked = Unpacked::open(path);
  if (!unpacked) return false;  // whoever reads it says why
  const std::string_view head = unpacked.value().next();
  if (const size_t first = head.find_first_not_of(" \t\r\n"); first != head.npos && head[first] == '[') return true;
  return std::ranges::any_of(std::array{"\"traceEvents\"", "\"schemaVersion\"", "\"deviceProperties\""},
                             [&](const char* key) { return head.find(key) != head.npos; });
}

Result<Profile> read_kineto(const std::vector<std::string>& paths, const KinetoLimits& limits) {
  std::vector<File> files;
  Diagnostics faults;
  for (const std::string& path : paths) {
    auto unpacked = Unpacked::open(path);
    if (!unpacked) {
      faults.push_back(unpacked.errors()[0]);
      continue;
    }
    auto events = read_kineto_events(
        path, [&] { return unpacked.value().next(); }, limits);
    if (unpacked.value().fault())
      faults.push_back(*unpacked.value().fault());
    else if (!events)
      faults.insert(faults.end(), events.errors().begin(), events.errors().end());
    else
      files.push_back({path, std::move(events.value()), 0});
  }
  if (!faults.empty()) return faults;
  return assemble(std::move(files));
}

Result<Profile> parse_kineto(const std::vector<KinetoText>& texts, const KinetoLimits& limits) {
  std::vector<File> files;
  Diagnostics faults;
  for (const KinetoText& t : texts) {
    bool given = false;
    auto events = read_kineto_events(
        t.name, [&] { return std::exchange(given, true) ? std::string_view() : t.json; }, limits);
    if (events)
      files.push_back({t.name, std::move(events.value()), 0});
    else
      faults.insert(faults.end(), events.errors().begin(), events.errors().end());
  }
  if (!faults.empty()) return faults;
  return assemble(std::move(files));
}

}  // namespace wt::import
