#include "exec/calibrate/calibrate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/spec/names.hpp"
#include "core/spec/quantity.hpp"

namespace wt::exec {
namespace {

/// The value of a "key: value" line of a file of /proc; nothing if there is none.
std::string proc_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key))
      if (const size_t colon = line.find(':'); colon != std::string::npos) {
        const size_t at = line.find_first_not_of(" \t", colon + 1);
        return at == std::string::npos ? "" : line.substr(at);
      }
  return "";
}

double rounded(double x) {
  const double unit = x > 0 ? std::pow(10.0, std::floor(std::log10(x)) - 2) : 1;
  return std::round(x / unit) * unit;
}

int64_t total_memory() {
  int64_t kib = 0;
  std::istringstream(proc_value("/proc/meminfo", "MemTotal")) >> kib;
  return kib * 1024;
}

/// What this process holds, before any job: the program and its libraries.
Bytes resident_memory() {
  int64_t kib = 0;
  std::istringstream(proc_value("/proc/self/status", "VmRSS")) >> kib;
  return {std::max<int64_t>(1, kib) * 1024};
}

double clock_hz() {
  double mhz = 0;
  std::istringstream(proc_value("/proc/cpuinfo", "cpu MHz")) >> mhz;
  return mhz > 0 ? rounded(mhz * 1e6) : 1e9;
}

Bytes cache_bytes() {
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return {bytes > 0 ? bytes : 0};
}

/// The best that any point of any kernel reached.
double best_rate(const std::vector<KernelCurve>& kernels, bool flops) {
  double best = 0;
  for (const KernelCurve& k : kernels)
    for (const KernelPoint& p : k.points)
      best = std::max(best, (flops ? p.flops : static_cast<double>(p.bytes.n)) / p.time.seconds());
  return rounded(best);
}

/// Of the largest message or, without one, collective.
double link_rate(const std::vector<TransferCurve>& transfers) {
  double rate = 0;
  for (const TransferCurve& t : transfers)
    if (t.kind == TransferKind::message || rate == 0)
      rate = static_cast<double>(t.points.back().bytes.n) / t.points.back().time.seconds();
  return rounded(rate);
}

ClusterSpec describe_machine(const Ranks& ranks, const CalibrateOptions& o) {
  ClusterSpec c;
  c.name = o.name;
  c.source = o.source;
  c.nodes = ranks.hosts();
  c.node.devices = std::min(ranks.size, ranks.per_host);
  c.node.host_memory = {total_memory()};
  DeviceSpec& d = c.device;
  d.name = o.name + " device";
  d.vendor = "";
  d.source = o.source;
  d.memory = {c.node.host_memory.n / c.node.devices};
  d.context_memory = resident_memory();
  d.l2_cache = cache_bytes();
  d.multiprocessors = 1;
  d.clock_hz = clock_hz();
  return c;
}

}  // namespace

Result<Calibration> calibrate(const Ranks& ranks, const CalibrateOptions& o) {
  Calibration out;
  ClusterSpec& c = out.cluster = describe_machine(ranks, o);
  auto kernels = measure_kernels(ranks, o.precision, o.extent);
  if (!kernels) return kernels.errors();
  auto transfers = measure_transfers(ranks, o.precision, o.extent);
  if (!transfers) return transfers.errors();
  auto storage = measure_storage(ranks, o.scratch, o.extent);
  if (!storage) return storage.errors();

  MeasuredDevice& m = c.device.measured.emplace();
  m.source = o.source;
  m.op_overhead = Time::ns(kernels.value().op_overhead.count_ps() / 1000);
  m.kernels = std::move(kernels.value().curves);
  c.transfers = std::move(transfers.value());
  for (KernelCurve& k : m.kernels) out.kernels.push_back(fit(k));
  for (TransferCurve& t : c.transfers) out.transfers.push_back(fit(t));

  c.device.peak[o.precision] = {best_rate(m.kernels, true)};
  c.device.memory_bandwidth = {best_rate(m.kernels, false)};
  c.node.pcie_bandwidth = c.node.host_copy_bandwidth = {rounded(storage.value().host_copy.n)};
  c.node.host_memory_bandwidth = {};
  c.node.nvme = storage.value().free;
  c.node.nvme_read = {rounded(storage.value().read.n)};
  c.node.nvme_write = {rounded(storage.value().write.n)};
  c.node.scale_up.kind = c.node.devices > 1 ? ScaleUpKind::pcie : ScaleUpKind::none;
  const double link = c.transfers.empty() ? 0 : link_rate(c.transfers);
  if (c.node.devices > 1) c.node.scale_up.bandwidth = {link};
  if (c.nodes > 1) {
    c.fabric.kind = FabricKind::ethernet;
    c.fabric.nics_per_node = 1;
    c.fabric.nic_bandwidth = {link};
  }
  return out;
}

std::string print_residuals(const Calibration& c) {
  std::string out = fmt::format("{:<42} {:>6} {:>10} {:>14} {:>12} {:>7} {:>7}\n", "kernel", "points", "latency",
                                "rate", "bandwidth", "off", "worst");
  const auto percent = [](double x) { return fmt::format("{:.1f} %", x * 100); };
  const auto or_dash = [](bool yes, std::string text) { return yes ? text : "-"; };
  const auto& kernels = c.cluster.device.measured->kernels;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const KernelCurve& k = kernels[i];
    out += fmt::format(
        "{:<42} {:>6} {:>10} {:>14} {:>12} {:>7} {:>7}\n",
        fmt::format("{}{}{} {}", k.kernel, k.variant.empty() ? "" : " ", k.variant, spelled(k.dtype)), k.points.size(),
        or_dash(k.latency > Time(), to_text(k.latency)), or_dash(k.rate > 0, print(FlopsPerSecond{k.rate})),
        or_dash(k.bandwidth.n > 0, print(k.bandwidth)), percent(c.kernels[i].mean), percent(c.kernels[i].worst));
  }
  out += fmt::format("\n{:<42} {:>6} {:>10} {:>14} {:>12} {:>7} {:>7}\n", "transfer", "points", "latency", "from",
                     "bandwidth", "off", "worst");
  for (size_t i = 0; i < c.cluster.transfers.size(); ++i) {
    const TransferCurve& t = c.cluster.transfers[i];
    for (size_t l = 0; l < t.lines.size(); ++l) {
      const TransferLine& line = t.lines[l];
      out += fmt::format("{:<42} {:>6} {:>10} {:>14} {:>12} {:>7} {:>7}\n",
                         l > 0 ? ""
                               : fmt::format("{} {} of {} rank{} on {} node{}", to_text(t.kind), spelled(t.dtype),
                                             t.ranks, t.ranks > 1 ? "s" : "", t.nodes, t.nodes > 1 ? "s" : ""),
                         l > 0 ? "" : fmt::format("{}", t.points.size()), to_text(line.latency), to_text(line.from),
                         or_dash(line.bandwidth.n > 0, print(line.bandwidth)),
                         l > 0 ? "" : percent(c.transfers[i].mean), l > 0 ? "" : percent(c.transfers[i].worst));
    }
  }
  return out;
}

}  // namespace wt::exec
