#include "import/kineto_events.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "import/kernel_names.hpp"

namespace wt::import {

namespace {

using trace::ProfilePhase;
using trace::WorkClass;

constexpr int kDeepest = 64;           // the profiler itself writes up to 7
constexpr size_t kLongestText = 4096;  // of a name; templates of C++ reach 2,000
// What no clock shows and no profiler covers is no time: bounds that keep sums and picoseconds within 64 bits.
constexpr int64_t kFarthest = 4'000'000'000'000'000;            // microseconds: the year 2096
constexpr int64_t kLongest = 90 * int64_t{86'400'000'000'000};  // nanoseconds

/// Characters of the pieces, one after the other: what nlohmann's parser reads.
class Bytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  struct Source {
    const Pieces& next;
    int64_t limit = 0, given = 0;
    bool over = false;  // the limit was met
    const char *at = nullptr, *end = nullptr;

    void refill() {
      if (over) return;
      const std::string_view piece = next();
      given += static_cast<int64_t>(piece.size());
      over = given > limit;
      at = piece.data();
      end = over ? at : at + piece.size();
    }
  };

  Bytes() = default;
  explicit Bytes(Source& s) : source_(&s) { s.refill(); }
  reference operator*() const { return *source_->at; }
  Bytes& operator++() {
    if (++source_->at == source_->end) source_->refill();
    return *this;
  }
  bool operator==(const Bytes& o) const { return done() == o.done(); }
  bool operator!=(const Bytes& o) const { return !(*this == o); }

 private:
  bool done() const { return !source_ || source_->at == source_->end; }
  Source* source_ = nullptr;
};

/// One event as far as it is read.
struct Event {
  std::string ph, cat, name, collective, dtype;
  uint64_t pid = 0, tid = 0, correlation = 0, external = 0;
  std::optional<int64_t> ts, dur;  // nanoseconds
  int64_t stream = -1, device = 0, bytes = -1, sequence = -1, forward_thread = 0;
  int64_t in_elements = -1, out_elements = -1, group = 0;

  void clear() {
    for (std::string* s : {&ph, &cat, &name, &collective, &dtype}) s->clear();
    pid = tid = correlation = external = 0;
    ts = dur = std::nullopt;
    stream = bytes = sequence = in_elements = out_elements = -1;
    device = forward_thread = group = 0;
  }
};

enum class Field : uint8_t {
  none,
  ph,
  cat,
  name,
  pid,
  tid,
  ts,
  dur,
  args,
  correlation,
  external,
  stream,
  device,
  bytes,
  sequence,
  forward_thread,
  collective,
  in_elements,
  out_elements,
  group,
  dtype,
  rank,
  world
};

struct Word {
  std::string_view text;
  Field field;
};
constexpr std::array kOfEvent = {Word{"ph", Field::ph},   Word{"cat", Field::cat},  Word{"name", Field::name},
                                 Word{"pid", Field::pid}, Word{"tid", Field::tid},  Word{"ts", Field::ts},
                                 Word{"dur", Field::dur}, Word{"args", Field::args}};
constexpr std::array kOfArgs = {Word{"correlation", Field::correlation},
                                Word{"External id", Field::external},
                                Word{"stream", Field::stream},
                                Word{"device", Field::device},
                                Word{"bytes", Field::bytes},
                                Word{"Sequence number", Field::sequence},
                                Word{"Fwd thread id", Field::forward_thread},
                                Word{"Collective name", Field::collective},
                                Word{"In msg nelems", Field::in_elements},
                                Word{"Out msg nelems", Field::out_elements},
                                Word{"Group size", Field::group},
                                Word{"dtype", Field::dtype}};
constexpr std::array kOfWorld = {Word{"rank", Field::rank}, Word{"world_size", Field::world}};

template <size_t N>
Field field_of(const std::array<Word, N>& words, std::string_view key) {
  for (const Word& w : words)
    if (w.text == key) return w.field;
  return Field::none;
}

/// "4458676522690.655" (microseconds) as nanoseconds, exactly; a double has not the digits.
std::optional<int64_t> nanoseconds(std::string_view token) {
  if (token.find_first_of("eE") != token.npos) {
    const auto v = parse_double(token);
    if (!v || !(std::abs(*v) < static_cast<double>(kFarthest))) return std::nullopt;
    return static_cast<int64_t>(*v * 1e3);
  }
  const size_t point = token.find('.');
  const auto whole = parse_int(token.substr(0, point));
  if (!whole || *whole > kFarthest || *whole < -kFarthest) return std::nullopt;
  int64_t fraction = 0, unit = 100;
  if (point != token.npos)
    for (const char c : token.substr(point + 1, 3)) fraction += unit * (c - '0'), unit /= 10;
  return *whole * 1000 + (token.starts_with('-') ? -fraction : fraction);
}

int64_t bytes_of_dtype(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 11> kSizes = {{{"Float8", 1},
                                                                            {"Float", 4},
                                                                            {"Double", 8},
                                                                            {"Half", 2},
                                                                            {"BFloat16", 2},
                                                                            {"Byte", 1},
                                                                            {"Char", 1},
                                                                            {"Bool", 1},
                                                                            {"Int", 4},
                                                                            {"Long", 8},
                                                                            {"Short", 2}}};
  for (const auto& [prefix, size] : kSizes)
    if (name.starts_with(prefix)) return size;
  return 0;
}

bool holds(std::string_view text, std::string_view small) {
  if (small.size() > text.size()) return false;
  for (size_t i = 0; i + small.size() <= text.size(); ++i) {
    size_t k = 0;
    while (k < small.size() && std::tolower(static_cast<unsigned char>(text[i + k])) == small[k]) ++k;
    if (k == small.size()) return true;
  }
  return false;
}

class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(const std::string& file, const KinetoLimits& limits) : file_(file), limits_(limits) {}

  KinetoEvents take() { return std::move(out_); }
  const std::optional<Diagnostic>& fault() const { return fault_; }
  bool saw_events() const { return saw_events_; }

  // ------------------------------------------------------------------------------------------------- SAX
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override {
    if (wanted() == Field::none) return true;
    number(v);
    return true;
  }
  bool number_unsigned(number_unsigned_t v) override {
    const Field f = wanted();
    if (f == Field::correlation)
      event_.correlation = v;
    else if (f == Field::external)
      event_.external = v;
    else if (f != Field::none)
      number(static_cast<int64_t>(std::min<uint64_t>(v, INT64_MAX)));
    return true;
  }
  bool number_float(number_float_t v, const string_t& token) override {
    switch (wanted()) {
      case Field::ts: event_.ts = nanoseconds(token); break;
      case Field::dur: event_.dur = nanoseconds(token); break;
      case Field::bytes:
        if (v >= 0 && v < 9e18) event_.bytes = static_cast<int64_t>(v);
        break;
      default: break;
    }
    return true;
  }
  bool string(string_t& v) override {
    auto put = [&](std::string& to) { to.assign(v, 0, kLongestText); };
    switch (wanted()) {
      case Field::ph: put(event_.ph); break;
      case Field::cat: put(event_.cat); break;
      case Field::name: put(event_.name); break;
      case Field::collective: put(event_.collective); break;
      case Field::dtype: put(event_.dtype); break;
      case Field::pid: event_.pid = fnv1a(v); break;
      case Field::tid: event_.tid = fnv1a(v); break;
      default: break;
    }
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (!enter()) return false;
    if (event_depth_ > 0 && depth_ == event_depth_) event_.clear();
    return true;
  }
  bool start_array(std::size_t) override {
    if (!enter()) return false;
    // {"traceEvents": [...]} or the bare list, which Chrome takes too.
    if (depth_ == 1 || (depth_ == 2 && top_ == "traceEvents")) {
      event_depth_ = depth_ + 1;
      saw_events_ = true;
    }
    return true;
  }
  bool key(string_t& v) override {
    if (event_depth_ > 0 && depth_ == event_depth_)
      field_ = field_of(kOfEvent, v);
    else if (event_depth_ > 0 && depth_ == event_depth_ + 1 && in_args_)
      field_ = field_of(kOfArgs, v);
    else if (event_depth_ == 0 && depth_ == 2 && top_ == "distributedInfo")
      field_ = field_of(kOfWorld, v);
    else if (depth_ == 1)
      top_ = v.substr(0, 64);
    return true;
  }
  bool end_object() override {
    const bool event = event_depth_ > 0 && depth_ == event_depth_;
    leave();
    return !event || finish_event();
  }
  bool end_array() override {
    if (event_depth_ > 0 && depth_ == event_depth_ - 1) event_depth_ = 0;
    leave();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string_view said = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
    const size_t last = said.find("last read");
    fault_ = Diagnostic{file_,
                        fmt::format("is no JSON at byte {}, after {} events{}", position, with_commas(out_.events),
                                    last == said.npos ? "" : fmt::format(" ({})", said.substr(last, 80))),
                        "a profiler that was killed leaves such a file: export the trace again"};
    return false;
  }

 private:
  /// The field that a value at this place is of.
  Field wanted() const {
    if (event_depth_ > 0 && (depth_ == event_depth_ || (depth_ == event_depth_ + 1 && in_args_))) return field_;
    return event_depth_ == 0 && depth_ == 2 && top_ == "distributedInfo" ? field_ : Field::none;
  }

  bool enter() {
    if (event_depth_ > 0 && depth_ == event_depth_) in_args_ = field_ == Field::args;
    if (++depth_ > kDeepest) {
      fault_ =
          Diagnostic{file_, fmt::format("nests deeper than {} levels", kDeepest), "no profiler writes such a file"};
      return false;
    }
    return true;
  }
  void leave() {
    --depth_;
    if (event_depth_ > 0 && depth_ <= event_depth_) in_args_ = false;
    field_ = Field::none;
  }

  void number(int64_t v) {
    auto time = [&](std::optional<int64_t>& to) {
      if (v < kFarthest && v > -kFarthest) to = v * 1000;
    };
    switch (field_) {
      case Field::pid: event_.pid = static_cast<uint64_t>(v); break;
      case Field::tid: event_.tid = static_cast<uint64_t>(v); break;
      case Field::ts: time(event_.ts); break;
      case Field::dur: time(event_.dur); break;
      case Field::stream: event_.stream = v; break;
      case Field::device: event_.device = v; break;
      case Field::bytes: event_.bytes = v; break;
      case Field::sequence: event_.sequence = v; break;
      case Field::forward_thread: event_.forward_thread = v; break;
      case Field::in_elements: event_.in_elements = v; break;
      case Field::out_elements: event_.out_elements = v; break;
      case Field::group: event_.group = v; break;
      case Field::rank: out_.rank = v; break;
      case Field::world: out_.world = v; break;
      default: break;
    }
  }

  // ----------------------------------------------------------------------------------------------- events
  uint64_t thread() const { return event_.pid * 0x9e3779b97f4a7c15ull ^ event_.tid; }

  uint32_t intern(const std::string& name) {
    const auto [at, fresh] = index_.try_emplace(name, static_cast<uint32_t>(out_.names.size()));
    if (fresh) {
      out_.names.push_back(name);
      name_bytes_ += static_cast<int64_t>(name.size());
    }
    return at->second;
  }

  WorkClass collective_of(int32_t& group, int64_t& bytes) const {
    if (event_.collective.empty()) return WorkClass::other;
    const WorkClass kind = class_of_collective(event_.collective);
    group = static_cast<int32_t>(std::clamp<int64_t>(event_.group, 0, INT32_MAX));
    // The full buffer: what all_gather makes, what every other one starts from.
    const int64_t elements = kind == WorkClass::all_gather ? event_.out_elements : event_.in_elements;
    const int64_t size = bytes_of_dtype(event_.dtype);
    if (elements >= 0 && size > 0 && elements < INT64_MAX / 8) bytes = elements * size;
    return kind;
  }

  bool finish_event() {
    ++out_.events;
    if (event_.ph != "X") return true;
    const bool work = event_.cat == "kernel" || event_.cat == "gpu_memcpy" || event_.cat == "gpu_memset" ||
                      event_.cat == "Kernel" || event_.cat == "Memcpy" || event_.cat == "Memset";
    const bool host_op = event_.cat == "cpu_op" || event_.cat == "Operator";
    const bool launch = event_.cat.ends_with("_runtime") || event_.cat.ends_with("_driver") || event_.cat == "Runtime";
    const bool annotation = event_.cat == "user_annotation";
    if (!work && !host_op && !launch && !annotation) return true;
    out_.host_ops += host_op;
    if (!event_.ts || !event_.dur || *event_.dur < 0 || *event_.dur > kLongest) {
      ++out_.faulty;
      return true;
    }
    const int64_t begin = *event_.ts, end = begin + *event_.dur;
    if (work) add_work(begin, end);
    if (launch && correlation() != 0) out_.launches.push_back({correlation(), thread(), begin});
    if (host_op) add_host_op(begin, end);
    if (annotation) add_annotation(begin, end);
    const auto kept =
        static_cast<int64_t>(out_.device.size() + out_.launches.size() + out_.marks.size() + out_.collectives.size());
    if (kept <= limits_.kept && name_bytes_ <= limits_.names) return true;
    fault_ = Diagnostic{file_, fmt::format("holds more than {} events that count", with_commas(limits_.kept)),
                        "profile fewer steps: torch.profiler.schedule(wait=..., warmup=1, active=3)"};
    return false;
  }

  uint64_t correlation() const { return event_.correlation != 0 ? event_.correlation : event_.external; }

  void add_work(int64_t begin, int64_t end) {
    KinetoEvents::Device d;
    d.begin = begin;
    d.end = end;
    d.correlation = correlation();
    d.name = intern(event_.name);
    d.bytes = event_.bytes;
    d.collective = collective_of(d.group, d.bytes);
    const uint64_t stream = event_.stream >= 0 ? static_cast<uint64_t>(event_.stream) : event_.tid;
    const uint64_t key = static_cast<uint64_t>(event_.device) * 0x9e3779b97f4a7c15ull ^ stream;
    d.stream =
        streams_.try_emplace(key, static_cast<uint16_t>(std::min<size_t>(streams_.size(), UINT16_MAX))).first->second;
    out_.device.push_back(d);
  }

  void add_host_op(int64_t begin, int64_t end) {
    using Says = KinetoEvents::Says;
    if (event_.name == "record_param_comms") {
      KinetoEvents::Collective c{thread(), begin, end, WorkClass::other, 0, -1};
      c.kind = collective_of(c.group, c.bytes);
      if (c.kind != WorkClass::other) out_.collectives.push_back(c);
    } else if (event_.name.starts_with("autograd::engine::evaluate_function")) {
      out_.marks.push_back({thread(), begin, end, Says::autograd, ProfilePhase::backward});
    } else if (event_.sequence >= 0 && event_.forward_thread == 0) {
      // An op that autograd recorded; what it runs later carries the number of the forward's thread.
      out_.marks.push_back({thread(), begin, end, Says::recorded_forward, ProfilePhase::forward});
    }
  }

  void add_annotation(int64_t begin, int64_t end) {
    using Says = KinetoEvents::Says;
    const std::string_view name = event_.name;
    constexpr std::string_view kStep = "ProfilerStep#";
    if (name.starts_with(kStep)) {
      if (const auto n = parse_int(name.substr(kStep.size()))) out_.steps.push_back({*n, begin, end});
    } else if (name.starts_with("nccl:") || name.starts_with("rccl:") || name.starts_with("gloo:")) {
      if (const WorkClass kind = class_of_collective(name.substr(5)); kind != WorkClass::other)
        out_.collectives.push_back({thread(), begin, end, kind, 0, -1});
    } else if (name.starts_with("Optimizer.") || holds(name, "optimizer")) {
      out_.marks.push_back({thread(), begin, end, Says::optimizer, ProfilePhase::optimizer});
    } else if (holds(name, "backward")) {
      out_.marks.push_back({thread(), begin, end, Says::annotated, ProfilePhase::backward});
    } else if (holds(name, "forward")) {
      out_.marks.push_back({thread(), begin, end, Says::annotated, ProfilePhase::forward});
    }
  }

  const std::string& file_;
  const KinetoLimits& limits_;
  KinetoEvents out_;
  std::optional<Diagnostic> fault_;
  std::string top_;      // key of the file's own object
  int depth_ = 0;        // of objects and lists that are open
  int event_depth_ = 0;  // at which events are objects; 0: not among events
  bool in_args_ = false, saw_events_ = false;
  Field field_ = Field::none;
  Event event_;
  std::unordered_map<std::string, uint32_t> index_;
  std::unordered_map<uint64_t, uint16_t> streams_;
  int64_t name_bytes_ = 0;
};

}  // namespace

Result<KinetoEvents> read_kineto_events(const std::string& name, const Pieces& next, const KinetoLimits& limits) {
  Reader reader(name, limits);
  Bytes::Source source{next, limits.bytes};
  const bool whole = nlohmann::json::sax_parse(Bytes(source), Bytes(), &reader);
  if (source.over)
    return Diagnostic{name, fmt::format("is larger than {} bytes, unpacked", with_commas(limits.bytes)),
                      "profile fewer steps: torch.profiler.schedule(wait=..., warmup=1, active=3)"};
  if (!whole) {
    if (reader.fault()) return *reader.fault();
    return Diagnostic{name, "is no JSON", ""};
  }
  if (!reader.saw_events())
    return Diagnostic{name, "has no \"traceEvents\"", "a trace of torch.profiler has: export_chrome_trace"};
  return reader.take();
}

}  // namespace wt::import
