#include "core/spec/map_reader.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

namespace wt {

using tree::Entry;
using tree::Node;

Diagnostics to_diagnostics(Faults faults) {
  std::map<const tree::Source*, size_t> order;
  for (const Fault& f : faults) order.emplace(f.place.source.get(), order.size());
  std::stable_sort(faults.begin(), faults.end(), [&](const Fault& a, const Fault& b) {
    return std::make_tuple(order[a.place.source.get()], a.place.line, a.place.column) <
           std::make_tuple(order[b.place.source.get()], b.place.line, b.place.column);
  });
  Diagnostics out;
  for (Fault& f : faults) out.push_back({tree::to_text(f.place, f.path), std::move(f.what), std::move(f.hint)});
  return out;
}

std::string MapReader::shown(std::string_view text) {
  constexpr size_t kShown = 60;
  if (text.size() <= kShown) return std::string(text);
  size_t cut = kShown;  // not inside a UTF-8 sequence
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) >> 6) == 2) --cut;
  return std::string(text.substr(0, cut)) + "...";
}

void MapReader::fault(const Entry& e, std::string what, std::string hint, std::vector<std::string> legal) {
  faults_.push_back({e.value.place, path_of(e.key), std::move(what), std::move(hint), std::move(legal)});
  spoilt(e.key);
}

void MapReader::fault_at(std::string_view key, std::string what, std::string hint) {
  if (const Entry* e = map_.find(key)) return fault(*e, std::move(what), std::move(hint));
  faults_.push_back({map_.place, path_, std::move(what), std::move(hint)});
}

void MapReader::fault_across(std::initializer_list<std::string_view> keys, std::string what, std::string hint) {
  for (std::string_view key : keys)
    if (std::find(unsound_.begin(), unsound_.end(), key) != unsound_.end()) return;
  const auto rank = [&](std::string_view key) {  // of what was said about the key: the later, the higher
    const Entry* e = map_.find(key);
    if (!e) return 0;
    const auto& source = e->value.place.source;
    return source && source->is_override ? 3 : source == map_.place.source ? 2 : 1;
  };
  std::string_view at = *keys.begin();
  for (std::string_view key : keys)
    if (rank(key) > rank(at)) at = key;
  // Not fault_at's mark: the key itself was read, and other faults about it are no consequence of this one.
  const Entry* e = map_.find(at);
  faults_.push_back({e ? e->value.place : map_.place, e ? path_of(at) : path_, std::move(what), std::move(hint)});
}

void MapReader::wrong_type(const Entry& e, std::string_view expected, std::string hint) {
  const char* is = "";
  switch (e.value.kind) {
    case Node::Kind::null: is = "is empty"; break;
    case Node::Kind::scalar: is = "is a single value"; break;
    case Node::Kind::list: is = "is a list"; break;
    case Node::Kind::map: is = "is a section"; break;
  }
  fault(e, fmt::format("{}, expected {}", is, expected), std::move(hint));
}

const Entry* MapReader::take_scalar(std::string_view key, Need need, std::string_view expected,
                                    std::string_view example) {
  const auto hint = [&] { return example.empty() ? std::string(expected) : fmt::format("{} {}", expected, example); };
  const Entry* e = take(key, need, hint);
  if (e && !e->value.is_scalar()) {
    wrong_type(*e, expected, std::string(example));
    return nullptr;
  }
  return e;
}

void MapReader::text(std::string_view key, std::string& out, Need need) {
  const Entry* e = take_scalar(key, need, "a text", "");
  if (!e) return;
  constexpr size_t kLongest = 4096;
  if (e->value.text.size() > kLongest) return fault(*e, fmt::format("is longer than {} bytes", kLongest), "");
  out = e->value.text;
}

void MapReader::texts(std::string_view key, std::vector<std::string>& out) {
  const Entry* e = take(key, kOptional, [] { return std::string(); });
  if (!e) return;
  if (e->value.kind != Node::Kind::list) return wrong_type(*e, "a list of texts", "");
  out.clear();
  for (const Node& item : e->value.items) {
    if (!item.is_scalar()) {
      faults_.push_back({item.place, path_of(key), "is not a text", "a list of texts"}), spoilt(key);
    } else {
      out.push_back(item.text);
    }
  }
}

void MapReader::integer(std::string_view key, int64_t& out, Range range, Need need) {
  const Entry* e = take_scalar(key, need, "a whole number", "");
  if (!e) return;
  const std::string& t = e->value.text;
  std::vector<std::string> some;
  for (const int64_t n : {1, 2, 3, 8, 64, 4096})
    if (n >= range.low && n <= range.high) some.push_back(fmt::format("{}", n));
  if (e->value.quoted)
    return fault(*e, fmt::format("\"{}\" in quotes is a text", shown(t)), "write the number bare", some);
  const std::string legal = fmt::format("legal: {} to {}", range.low, range.high);
  if (const auto n = parse_int(t)) {
    if (*n < range.low || *n > range.high) return fault(*e, fmt::format("{} is out of range", *n), legal, some);
    out = *n;
    return;
  }
  const bool all_digits = !t.empty() && t.find_first_not_of("0123456789", t[0] == '-' || t[0] == '+') == t.npos;
  if (all_digits && t.size() > 1) return fault(*e, fmt::format("{} is out of range", shown(t)), legal, some);
  // "1e9" is a whole number to its writer: it is told how to write it, and whether it would be legal.
  if (const auto x = parse_double(t); x && std::floor(*x) == *x && std::fabs(*x) < 0x1p53) {
    const auto n = static_cast<int64_t>(*x);
    const bool in_range = n >= range.low && n <= range.high;
    return fault(*e, fmt::format("'{}' is {}", shown(t), in_range ? "not written in digits" : "out of range"),
                 in_range ? fmt::format("write {}", n) : legal, some);
  }
  fault(*e, fmt::format("'{}' is not a whole number", shown(t)), "", some);
}

void MapReader::integers(std::string_view key, std::vector<int64_t>& out, Range range, Need need) {
  const Entry* e = take(key, need, [] { return std::string("a list of whole numbers"); });
  if (!e) return;
  if (e->value.kind != Node::Kind::list) return wrong_type(*e, "a list of whole numbers", "such as [128, 64]");
  for (const Node& item : e->value.items) {
    std::optional<int64_t> n;
    if (item.is_scalar() && !item.quoted) n = parse_int(item.text);
    if (!n || *n < range.low || *n > range.high) {
      faults_.push_back({item.place, path_of(key), fmt::format("'{}' is not a whole number in range", shown(item.text)),
                         fmt::format("legal: {} to {}", range.low, range.high)});
      spoilt(key);
    } else {
      out.push_back(*n);
    }
  }
}

void MapReader::natural(std::string_view key, uint64_t& out, Need need) {
  int64_t n = static_cast<int64_t>(out);
  integer(key, n, Range{0, std::numeric_limits<int64_t>::max()}, need);
  out = static_cast<uint64_t>(n);
}

void MapReader::number(std::string_view key, double& out, double low, double high, Need need) {
  const Entry* e = take_scalar(key, need, "a number", "");
  if (!e) return;
  if (e->value.quoted)
    return fault(*e, fmt::format("\"{}\" in quotes is a text", shown(e->value.text)), "write the number bare");
  const auto v = parse_double(e->value.text);
  if (!v) return fault(*e, fmt::format("'{}' is not a finite number", shown(e->value.text)), "");
  if (*v < low || *v > high)
    return fault(*e, fmt::format("{} is out of range", *v), fmt::format("legal: {} to {}", low, high));
  out = *v;
}

void MapReader::flag(std::string_view key, bool& out, Need need) {
  const Entry* e = take_scalar(key, need, "true or false", "");
  if (!e) return;
  if (!e->value.quoted && e->value.text == "true") {
    out = true;
  } else if (!e->value.quoted && e->value.text == "false") {
    out = false;
  } else {
    fault(*e, fmt::format("'{}' is neither true nor false", shown(e->value.text)), "", {"true", "false"});
  }
}

void MapReader::dtype(std::string_view key, DType& out, Need need) {
  constexpr std::string_view kLegal = "legal: fp32, bf16, fp16, fp8";
  const Entry* e = take_scalar(key, need, "a number format", "such as bf16");
  if (!e) return;
  const auto t = parse_dtype(e->value.text);
  if (!t || *t == DType::f64 || *t == DType::i32 || *t == DType::u8)
    return fault(*e, fmt::format("unknown number format '{}'", shown(e->value.text)), std::string(kLegal),
                 {"fp32", "bf16", "fp16", "fp8"});
  out = *t;
}

void MapReader::quantity(Quantity kind, std::string_view key, double& out, Need need) {
  const Entry* e = take_scalar(key, need, "a number with its unit", example_of(kind));
  if (!e) return;
  const Result<double> v = parse_quantity(kind, e->value.text);
  constexpr double kLargest = 1e24;
  if (!v.ok()) return fault(*e, v.errors()[0].what, v.errors()[0].hint);
  if (v.value() > kLargest) return fault(*e, fmt::format("'{}' is too large", shown(e->value.text)), "");
  if (v.value() == 0 && need == kRequired) return fault(*e, "must not be zero", "");
  out = v.value();
}

void MapReader::bytes(std::string_view key, Bytes& out, Need need) {
  const Entry* e = take_scalar(key, need, "a number with its unit", example_of(Quantity::bytes));
  if (!e) return;
  const Result<Bytes> v = parse_bytes(e->value.text);
  if (!v.ok()) return fault(*e, v.errors()[0].what, v.errors()[0].hint);
  if (v.value().n == 0 && need == kRequired) return fault(*e, "must not be zero", "");
  out = v.value();
}

void MapReader::rate(std::string_view key, BytesPerSecond& out, Need need) {
  quantity(Quantity::bytes_per_second, key, out.n, need);
}

void MapReader::time(std::string_view key, Time& out, Need need) {
  const Entry* e = take_scalar(key, need, "a number with its unit", example_of(Quantity::time));
  if (!e) return;
  const Result<Time> v = parse_time(e->value.text);
  if (!v.ok()) return fault(*e, v.errors()[0].what, v.errors()[0].hint);
  out = v.value();
}

void MapReader::peaks(std::string_view key, std::map<DType, FlopsPerSecond>& out, Need need) {
  const Entry* e = take(key, need, [] { return std::string("dense peaks, such as {bf16: 312 TFLOP/s}"); });
  if (!e) return;
  if (!e->value.is_map()) return wrong_type(*e, "dense peaks by number format", "such as {bf16: 312 TFLOP/s}");
  for (const Entry& p : e->value.entries) {
    const auto t = parse_dtype(p.key);
    const std::string path = fmt::format("{}.{}", path_of(key), shown(p.key));
    if (!t) {
      faults_.push_back({p.place, path, fmt::format("unknown number format '{}'", shown(p.key)),
                         "legal: fp64, fp32, bf16, fp16, fp8"});
      continue;
    }
    const Result<FlopsPerSecond> v =
        p.value.is_scalar() ? parse_flops_per_second(p.value.text)
                            : Result<FlopsPerSecond>(Diagnostic{"", "is not a number with its unit",
                                                                std::string(example_of(Quantity::flops_per_second))});
    if (!v.ok()) {
      faults_.push_back({p.value.place, path, v.errors()[0].what, v.errors()[0].hint});
    } else if (v.value().n == 0 || v.value().n > 1e24) {
      faults_.push_back({p.value.place, path, "is out of range", "leave out a format that the device lacks"});
    } else if (!out.emplace(*t, v.value()).second) {
      faults_.push_back({p.place, path, "the same format under two names", "keep one"});
    }
  }
  if (e->value.entries.empty()) fault(*e, "is empty", "such as {bf16: 312 TFLOP/s}");
}

void MapReader::precision(std::string_view key, TrainingSpec& out) {
  const Entry* e = take_scalar(key, kOptional, "a number format", "such as bf16");
  if (!e) return;
  const std::string& t = e->value.text;
  if (t == "bf16" || t == "fp16") {
    out.compute_dtype = out.param_dtype = *parse_dtype(t);
    out.master_weights = true;
  } else if (t == "fp8") {  // Transformer Engine: products in fp8, weights kept in bf16
    out.compute_dtype = DType::f8;
    out.param_dtype = DType::bf16;
    out.master_weights = true;
  } else if (t == "fp32") {  // the weights are their own master
    out.compute_dtype = out.param_dtype = DType::f32;
    out.master_weights = false;
  } else {
    fault(*e, fmt::format("unknown precision '{}'", shown(t)), "legal: bf16, fp16, fp8, fp32",
          {"bf16", "fp16", "fp8", "fp32"});
  }
}

void MapReader::recompute(std::string_view key, RecomputeSpec& out) {
  const Entry* e = take(key, kOptional, [] { return std::string(); });
  if (!e) return;
  if (e->value.is_map()) return read_section(*e, out);
  if (!e->value.is_scalar()) return wrong_type(*e, "full, selective, none, or a section", "");
  for (const auto& row : names_of(RecomputeKind{}))
    if (row.name == e->value.text) {
      out.kind = row.value;
      return;
    }
  fault(*e, fmt::format("unknown value '{}'", shown(e->value.text)),
        "legal: none, selective, full, or a section {kind, method, layers}", {"none", "selective", "full"});
}

void MapReader::flag_or_count(std::string_view key, int64_t& out) {
  const Entry* e = take_scalar(key, kOptional, "true, false or a number", "such as true or 8");
  if (!e) return;
  const std::string& t = e->value.text;
  if (t == "true" || t == "false") {
    out = t == "true";
    return;
  }
  int64_t n = 0;
  const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), n);
  if (error == std::errc() && end == t.data() + t.size() && n >= 2 && n <= kCount.high)
    out = n;
  else
    fault(*e, fmt::format("is '{}'", shown(t)), fmt::format("legal: true, false, 2 to {}", kCount.high));
}

void MapReader::finish() {
  for (const Entry& e : map_.entries) {
    if (std::find(known_.begin(), known_.end(), e.key) != known_.end()) continue;
    faults_.push_back({e.place, path_, fmt::format("unknown key '{}'", shown(e.key)), suggest(e.key, known_)});
    const auto meant = closest(e.key, known_);
    spoilt(meant ? *meant : e.key);
    std::erase_if(missing_, [&](const Missing& m) { return meant && m.key == *meant; });
  }
  if (part()) return;
  for (Missing& m : missing_) {
    spoilt(m.key);
    faults_.push_back({map_.place, path_, fmt::format("missing key '{}'", m.key), std::move(m.hint)});
  }
}

}  // namespace wt
