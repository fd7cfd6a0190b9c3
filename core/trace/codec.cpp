#include "core/trace/codec.hpp"

#include <bit>
#include <cstring>
#include <memory>

namespace wt::trace::codec {

namespace {

constexpr size_t kVarintMax = 10;

inline uint64_t zigzag(int64_t v) { return (static_cast<uint64_t>(v) << 1) ^ static_cast<uint64_t>(v >> 63); }
inline int64_t unzigzag(uint64_t v) { return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1); }

inline char* put(char* p, uint64_t v) {
  while (v >= 0x80) {
    *p++ = static_cast<char>(v | 0x80);
    v >>= 7;
  }
  *p++ = static_cast<char>(v);
  return p;
}

void put(std::string& out, uint64_t v) {
  char b[kVarintMax];
  out.append(b, static_cast<size_t>(put(b, v) - b));
}

void put_text(std::string& out, std::string_view text) {
  put(out, text.size());
  out.append(text);
}

bool get(std::string_view& in, uint64_t& v) {
  v = 0;
  for (size_t i = 0; i < in.size() && i < kVarintMax; ++i) {
    const auto byte = static_cast<unsigned char>(in[i]);
    if (i == 9 && byte > 1) return false;  // more than 64 bits
    v |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      in.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

bool get_bytes(std::string_view& in, std::string_view& bytes) {
  uint64_t n = 0;
  if (!get(in, n) || n > in.size()) return false;
  bytes = in.substr(0, n);
  in.remove_prefix(n);
  return true;
}

Diagnostic corrupt(std::string_view what) { return {"trace", fmt::format("corrupt: {}", what), ""}; }

// Differences are taken modulo 2^64, so that no input can overflow.
inline uint64_t u(int64_t v) { return static_cast<uint64_t>(v); }

template <class F>
void column(std::string& out, size_t count, char* scratch, F&& write_all) {
  (void)count;
  const char* end = write_all(scratch);
  const auto n = static_cast<size_t>(end - scratch);
  put(out, n);
  out.append(scratch, n);
}

}  // namespace

void encode_spans(std::string& out, uint32_t rank, uint32_t step, std::span<const Span> spans) {
  put(out, rank);
  put(out, step);
  put(out, spans.size());
  const auto scratch = std::make_unique_for_overwrite<char[]>(spans.size() * kVarintMax);
  column(out, spans.size(), scratch.get(), [&](char* p) {
    int64_t before = 0;
    for (const Span& s : spans) {
      p = put(p, zigzag(int64_t{s.invocation} - before));
      before = s.invocation;
    }
    return p;
  });
  column(out, spans.size(), scratch.get(), [&](char* p) {
    int64_t expected = 0;
    uint32_t invocation = spans.empty() ? 0 : spans[0].invocation;
    for (const Span& s : spans) {
      if (s.invocation != invocation) expected = 0;
      p = put(p, zigzag(int64_t{s.op} - expected));
      invocation = s.invocation;
      expected = int64_t{s.op} + 1;
    }
    return p;
  });
  column(out, spans.size(), scratch.get(), [&](char* p) {
    uint64_t end_before = 0;
    for (const Span& s : spans) {
      p = put(p, zigzag(static_cast<int64_t>(u(s.begin_ps) - end_before)));
      end_before = u(s.end_ps);
    }
    return p;
  });
  column(out, spans.size(), scratch.get(), [&](char* p) {
    for (const Span& s : spans) {
      WT_CHECK(s.end_ps >= s.begin_ps, "span of invocation {} op {} ends at {} ps before its begin {} ps", s.invocation,
               s.op, s.end_ps, s.begin_ps);
      p = put(p, u(s.end_ps) - u(s.begin_ps));
    }
    return p;
  });
}

Status decode_spans(std::string_view& in, RankSpans& run, uint64_t room) {
  uint64_t rank = 0, step = 0, count = 0;
  if (!get(in, rank) || !get(in, step) || !get(in, count) || rank > UINT32_MAX || step > UINT32_MAX)
    return corrupt("head of a run of spans");
  std::string_view columns[4];
  for (auto& c : columns)
    if (!get_bytes(in, c)) return corrupt("column longer than its chunk");
  for (const auto& c : columns)  // a value takes a byte at least: no count can ask for more memory than its bytes allow
    if (c.size() < count) return corrupt("column shorter than its count");
  if (count > room) return Diagnostic{"trace", "holds more spans than the limit", "raise the limit"};
  run.rank = static_cast<uint32_t>(rank);
  run.step = static_cast<uint32_t>(step);
  run.spans.resize(count);
  uint64_t invocation = 0, expected = 0, end_before = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Span& s = run.spans[i];
    uint64_t v[4];
    for (int c = 0; c < 4; ++c)
      if (!get(columns[c], v[c])) return corrupt("value of a column");
    const uint64_t now = invocation + u(unzigzag(v[0]));
    if (now != invocation) expected = 0;
    invocation = now;
    const uint64_t op = expected + u(unzigzag(v[1]));
    if (invocation > UINT32_MAX || op > UINT32_MAX) return corrupt("index of a span");
    expected = op + 1;
    s.invocation = static_cast<uint32_t>(invocation);
    s.op = static_cast<uint32_t>(op);
    s.begin_ps = static_cast<int64_t>(end_before + u(unzigzag(v[2])));
    s.end_ps = static_cast<int64_t>(u(s.begin_ps) + v[3]);
    if (s.end_ps < s.begin_ps) return corrupt("span that ends before its begin");
    constexpr int64_t kLongest = int64_t{1} << 62;  // 53 days: sums of two instants stay in range
    if (s.begin_ps < -kLongest || s.end_ps > kLongest) return corrupt("instant out of range");
    end_before = u(s.end_ps);
  }
  for (const auto& c : columns)
    if (!c.empty()) return corrupt("bytes left in a column");
  return ok_status();
}

void encode_samples(std::string& out, std::span<const Sample> samples) {
  put(out, samples.size());
  uint64_t before = 0;
  for (const Sample& s : samples) {
    put(out, s.rank);
    put(out, static_cast<uint64_t>(s.kind));
    put(out, zigzag(static_cast<int64_t>(u(s.at_ps) - before)));
    before = u(s.at_ps);
    const auto bits = std::bit_cast<uint64_t>(s.value);
    for (int i = 0; i < 8; ++i) out += static_cast<char>(bits >> (8 * i));
  }
}

Status decode_samples(std::string_view in, std::vector<Sample>& out) {
  uint64_t count = 0, before = 0;
  if (!get(in, count) || count > in.size() / 11) return corrupt("count of samples");
  out.reserve(out.size() + count);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rank = 0, kind = 0, at = 0;
    if (!get(in, rank) || !get(in, kind) || !get(in, at) || in.size() < 8 || rank > UINT32_MAX)
      return corrupt("sample");
    if (kind > static_cast<uint64_t>(CounterKind::link_bytes_per_second)) return corrupt("kind of a sample");
    uint64_t bits = 0;
    for (int k = 0; k < 8; ++k) bits |= static_cast<uint64_t>(static_cast<unsigned char>(in[k])) << (8 * k);
    in.remove_prefix(8);
    before += u(unzigzag(at));
    out.push_back({static_cast<uint32_t>(rank), static_cast<CounterKind>(kind), static_cast<int64_t>(before),
                   std::bit_cast<double>(bits)});
  }
  if (!in.empty()) return corrupt("bytes left after the samples");
  return ok_status();
}

// Meta is a list of (field, length, bytes); readers skip fields that they do not know.
namespace {
enum class Field : uint64_t {
  producer = 1,
  plan_digest,
  cluster,
  code_version,
  command,
  seed,
  ranks,
  clock_uncertainty
};
}

void encode_meta(std::string& out, const Meta& meta) {
  auto text = [&](Field f, std::string_view v) {
    put(out, static_cast<uint64_t>(f));
    put_text(out, v);
  };
  auto number = [&](Field f, uint64_t v) {
    std::string b;
    put(b, v);
    text(f, b);
  };
  number(Field::producer, static_cast<uint64_t>(meta.producer));
  number(Field::plan_digest, meta.plan_digest);
  text(Field::cluster, meta.cluster);
  text(Field::code_version, meta.code_version);
  text(Field::command, meta.command);
  number(Field::seed, meta.seed);
  std::string ranks;
  for (const FoldedRank& r : meta.ranks) {
    put(ranks, r.rank);
    put(ranks, r.count);
  }
  text(Field::ranks, ranks);
  number(Field::clock_uncertainty, zigzag(meta.clock_uncertainty.count_ps()));
}

Result<Meta> decode_meta(std::string_view in) {
  Meta meta;
  while (!in.empty()) {
    uint64_t field = 0, number = 0;
    std::string_view bytes;
    if (!get(in, field) || !get_bytes(in, bytes)) return corrupt("meta");
    auto as_number = [&] {
      std::string_view b = bytes;
      return get(b, number) && b.empty();
    };
    switch (static_cast<Field>(field)) {
      case Field::producer:
        if (!as_number() || number > 1) return corrupt("producer");
        meta.producer = static_cast<Producer>(number);
        break;
      case Field::plan_digest:
        if (!as_number()) return corrupt("plan digest");
        meta.plan_digest = number;
        break;
      case Field::cluster: meta.cluster = bytes; break;
      case Field::code_version: meta.code_version = bytes; break;
      case Field::command: meta.command = bytes; break;
      case Field::seed:
        if (!as_number()) return corrupt("seed");
        meta.seed = number;
        break;
      case Field::ranks:
        while (!bytes.empty()) {
          uint64_t rank = 0, count = 0;
          if (!get(bytes, rank) || !get(bytes, count) || rank > UINT32_MAX || count > UINT32_MAX)
            return corrupt("list of ranks");
          meta.ranks.push_back({static_cast<uint32_t>(rank), static_cast<uint32_t>(count)});
        }
        break;
      case Field::clock_uncertainty:
        if (!as_number()) return corrupt("clock uncertainty");
        meta.clock_uncertainty = Time::ps(unzigzag(number));
        break;
    }
  }
  return meta;
}

}  // namespace wt::trace::codec
