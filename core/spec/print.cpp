// The visitor of describe.hpp that prints: YAML that the readers read back equal.
#include <fmt/format.h>

#include "core/spec/describe.hpp"
#include "core/spec/read.hpp"

namespace wt {
namespace {

/// A plain word where YAML would read it back as the same text, else double quotes.
std::string yaml_text(std::string_view s) {
  constexpr std::string_view kFirst = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
  constexpr std::string_view kRest = "0123456789 .,_/+-()=*;";
  bool plain = !s.empty() && kFirst.find(s[0]) != s.npos && s.back() != ' ';
  for (char c : s) plain = plain && (kFirst.find(c) != s.npos || kRest.find(c) != s.npos);
  for (std::string_view word : {"null", "Null", "NULL", "true", "false"}) plain = plain && s != word;
  if (plain) return std::string(s);
  std::string out = "\"";
  for (char c : s) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20 || u == 0x7f) {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class T>
constexpr bool kRow =
    std::is_same_v<T, KernelPoint> || std::is_same_v<T, TransferPoint> || std::is_same_v<T, TransferLine>;

class MapPrinter {
 public:
  explicit MapPrinter(std::string& out, int indent = 0) : out_(out), indent_(static_cast<size_t>(indent), ' ') {}
  /// One map in braces, on one line: rows of a table.
  struct Row {};
  MapPrinter(std::string& out, Row) : out_(out), row_(true) {}

  bool has(std::string_view) const { return false; }
  void text(std::string_view key, const std::string& v, Need) {
    if (!v.empty()) line(key, yaml_text(v));
  }
  void texts(std::string_view key, const std::vector<std::string>& v) {
    if (v.empty()) return;
    line(key, "");
    for (const std::string& t : v) out_ += fmt::format("{}  - {}\n", indent_, yaml_text(t));
  }
  void integer(std::string_view key, int64_t v, Range range, Need) {
    if (v >= range.low) line(key, fmt::format("{}", v));  // below: never set, such as the nodes of a partial spec
  }
  void integers(std::string_view key, const std::vector<int64_t>& v, Range, Need) {
    line(key, fmt::format("[{}]", fmt::join(v, ", ")));
  }
  /// Curves as sections, the rows of a table in braces.
  template <class T>
  void list(std::string_view key, std::vector<T>& v) {
    if (v.empty()) return;
    line(key, "");
    for (T& item : v) {
      std::string text;
      if constexpr (kRow<T>) {
        MapPrinter printer(text, Row{});
        describe(printer, item);
        out_ += fmt::format("{}  - {{{}}}\n", indent_, text);
      } else {
        MapPrinter printer(text, static_cast<int>(indent_.size()) + 4);
        describe(printer, item);
        text[indent_.size() + 2] = '-';
        out_ += text;
      }
    }
  }
  void natural(std::string_view key, uint64_t v, Need) { line(key, fmt::format("{}", v)); }
  void number(std::string_view key, double v, double, double, Need) { line(key, fmt::format("{}", v)); }
  void flag(std::string_view key, bool v, Need) { line(key, v ? "true" : "false"); }
  void dtype(std::string_view key, DType v, Need) { line(key, spelled(v)); }
  void bytes(std::string_view key, Bytes v, Need need) {
    if (v.n != 0 || need == kRequired) line(key, print(v));
  }
  void rate(std::string_view key, BytesPerSecond v, Need need) {
    if (v.n != 0 || need == kRequired) line(key, print(v));
  }
  void time(std::string_view key, Time v, Need need) {
    if (v.count_ps() != 0 || need == kRequired) line(key, print(v));
  }
  void quantity(Quantity kind, std::string_view key, double v, Need need) {
    if (v != 0 || need == kRequired) line(key, print_quantity(kind, v));
  }
  void peaks(std::string_view key, const std::map<DType, FlopsPerSecond>& v, Need) {
    line(key, "");
    for (const auto& [type, peak] : v) out_ += fmt::format("{}  {}: {}\n", indent_, spelled(type), print(peak));
  }
  void precision(std::string_view, const TrainingSpec&) {}  // the three keys it stands for are printed
  template <class E>
  void choice(std::string_view key, E v, Need) {
    line(key, to_text(v));
  }
  template <class T>
  void section(std::string_view key, T& v, Need) {
    line(key, "");
    MapPrinter inner(out_, static_cast<int>(indent_.size()) + 2);
    describe(inner, v);
  }
  template <class T>
  void section(std::string_view key, std::optional<T>& v) {
    if (v) section(key, *v, kOptional);
  }
  void flag_or_count(std::string_view key, int64_t v) {
    line(key, v == 0 ? "false" : v == 1 ? "true" : fmt::format("{}", v));
  }
  void recompute(std::string_view key, RecomputeSpec& v) { section(key, v, kOptional); }

 private:
  void line(std::string_view key, std::string_view value) {
    if (row_) {
      out_ += fmt::format("{}{}: {}", out_.empty() ? "" : ", ", key, value);
      return;
    }
    out_ += fmt::format("{}{}:{}{}\n", indent_, key, value.empty() ? "" : " ", value);
  }
  std::string& out_;
  std::string indent_;
  bool row_ = false;
};

template <class T>
std::string print_spec(T spec, int indent = 0) {
  std::string out;
  MapPrinter printer(out, indent);
  describe(printer, spec);
  return out;
}

}  // namespace

std::string print_model(const ModelSpec& m) { return print_spec(m); }
std::string print_device(const DeviceSpec& d) { return print_spec(d); }
std::string print_cluster(const ClusterSpec& c) { return print_spec(c); }
std::string print_strategy(const StrategySpec& s) { return print_spec(s); }
std::string print_training(const TrainingSpec& t) { return print_spec(t); }

std::string print_job(const JobSpec& j) {
  std::string out;
  if (!j.name.empty()) out += fmt::format("name: {}\n", yaml_text(j.name));
  out += "model:\n" + print_spec(j.model, 2);
  out += "cluster:\n" + print_spec(j.cluster, 2);
  out += "strategy:\n" + print_spec(j.strategy, 2);
  out += "training:\n" + print_spec(j.training, 2);
  return out;
}

}  // namespace wt
