#include "core/trace/file.hpp"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/base/atomic_file.hpp"
#include "core/base/file.hpp"
#include "core/trace/codec.hpp"

namespace wt::trace {

namespace {

constexpr std::string_view kMagic = "wttrace\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kHead = 32;
constexpr size_t kChunkTarget = 1 << 20;     // raw bytes after which a chunk is closed
constexpr uint64_t kChunkLimit = 64u << 20;  // no writer makes a larger one of spans or samples
constexpr size_t kRunSpans = 1 << 14;        // spans collected before a run is encoded
constexpr size_t kPendingSpans = 1 << 21;    // of all ranks together: 48 MiB
constexpr int kLevel = 1;

enum class Kind : uint32_t { plan = 1, spans, samples, meta, end };

void put_u32(std::string& out, uint32_t v) {
  for (int i = 0; i < 4; ++i) out += static_cast<char>(v >> (8 * i));
}
void put_u64(std::string& out, uint64_t v) {
  for (int i = 0; i < 8; ++i) out += static_cast<char>(v >> (8 * i));
}
uint32_t get_u32(std::string_view in, size_t at) {
  uint32_t v = 0;
  for (size_t i = 0; i < 4; ++i) v |= static_cast<uint32_t>(static_cast<unsigned char>(in[at + i])) << (8 * i);
  return v;
}
uint64_t get_u64(std::string_view in, size_t at) {
  return get_u32(in, at) | static_cast<uint64_t>(get_u32(in, at + 4)) << 32;
}
uint32_t crc_of(std::string_view bytes) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<z_size_t>(bytes.size())));
}

}  // namespace

struct FileSink::Impl {
  explicit Impl(AtomicFile f) : file(std::move(f)), zstd(ZSTD_createCCtx(), &ZSTD_freeCCtx) {}

  struct Pending {
    uint32_t step = 0;
    std::vector<Span> spans;
  };

  std::mutex mutex;
  AtomicFile file;
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> zstd;
  std::unordered_map<uint32_t, Pending> pending;
  size_t pending_spans = 0;
  std::string raw;  // of the open chunk of spans
  std::vector<Sample> samples;
  std::string stored;
  uint64_t span_count = 0, sample_count = 0, chunks = 0;

  void chunk(Kind kind, std::string_view content) {
    std::string_view payload = content;
    if (kind != Kind::end) {
      stored.resize(ZSTD_compressBound(content.size()));
      const size_t n =
          ZSTD_compressCCtx(zstd.get(), stored.data(), stored.size(), content.data(), content.size(), kLevel);
      WT_CHECK(!ZSTD_isError(n), "zstd: {}", ZSTD_getErrorName(n));
      payload = std::string_view(stored).substr(0, n);
    }
    std::string head;
    put_u32(head, static_cast<uint32_t>(kind));
    put_u32(head, 0);
    put_u64(head, payload.size());
    put_u64(head, content.size());
    put_u32(head, crc_of(payload));
    put_u32(head, crc_of(head));
    file.write(head);
    file.write(payload);
    ++chunks;
  }

  void close_chunk() {
    if (!raw.empty()) chunk(Kind::spans, raw);
    raw.clear();
  }

  void encode(uint32_t rank, uint32_t step, std::span<const Span> spans) {
    codec::encode_spans(raw, rank, step, spans);
    if (raw.size() >= kChunkTarget) close_chunk();
  }

  void flush(uint32_t rank, Pending& p) {
    if (!p.spans.empty()) encode(rank, p.step, p.spans);
    pending_spans -= p.spans.size();
    p.spans.clear();
  }

  void flush_all() {  // by rank, so that the same run gives the same file
    std::vector<uint32_t> ranks;
    for (const auto& [rank, p] : pending)
      if (!p.spans.empty()) ranks.push_back(rank);
    std::sort(ranks.begin(), ranks.end());
    for (uint32_t rank : ranks) flush(rank, pending[rank]);
    pending.clear();
  }

  void flush_samples() {
    if (samples.empty()) return;
    std::string out;
    codec::encode_samples(out, samples);
    chunk(Kind::samples, out);
    samples.clear();
  }
};

FileSink::FileSink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FileSink::~FileSink() = default;

Result<std::unique_ptr<FileSink>> FileSink::create(const std::string& path, std::string_view plan_text) {
  auto file = AtomicFile::create(path);
  if (!file) return file.errors();
  auto impl = std::make_unique<Impl>(std::move(file.value()));
  std::string head(kMagic);
  put_u32(head, kVersion);
  put_u32(head, 0);
  impl->file.write(head);
  impl->chunk(Kind::plan, plan_text);
  return std::unique_ptr<FileSink>(new FileSink(std::move(impl)));
}

void FileSink::spans(uint32_t rank, uint32_t step, std::span<const Span> spans) {
  const std::lock_guard lock(impl_->mutex);
  Impl& s = *impl_;
  s.span_count += spans.size();
  Impl::Pending& p = s.pending[rank];
  if (p.step != step) s.flush(rank, p);
  p.step = step;
  if (p.spans.empty() && spans.size() >= kRunSpans / 2) {  // no copy of what is long already
    for (size_t i = 0; i < spans.size(); i += kRunSpans)
      s.encode(rank, step, spans.subspan(i, std::min(kRunSpans, spans.size() - i)));
    return;
  }
  while (!spans.empty()) {
    const size_t n = std::min(spans.size(), kRunSpans - p.spans.size());
    p.spans.insert(p.spans.end(), spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(n));
    s.pending_spans += n;
    spans = spans.subspan(n);
    if (p.spans.size() == kRunSpans) s.flush(rank, p);
  }
  if (s.pending_spans > kPendingSpans) s.flush_all();
}

void FileSink::sample(const Sample& sample) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->sample_count;
  impl_->samples.push_back(sample);
  if (impl_->samples.size() >= kRunSpans) impl_->flush_samples();
}

Status FileSink::finish(const Meta& meta) {
  const std::lock_guard lock(impl_->mutex);
  Impl& s = *impl_;
  s.flush_all();
  s.close_chunk();
  s.flush_samples();
  std::string out;
  codec::encode_meta(out, meta);
  s.chunk(Kind::meta, out);
  out.clear();
  put_u64(out, s.span_count);
  put_u64(out, s.sample_count);
  put_u64(out, s.chunks);
  s.chunk(Kind::end, out);
  return s.file.commit();
}

Result<Trace> parse_trace(std::string_view bytes, std::string_view where, const ReadLimits& limits) {
  auto fail = [&](std::string what, std::string hint = {}) {
    return Diagnostic{std::string(where), std::move(what), std::move(hint)};
  };
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < kMagic.size() + 8)
    return fail("is not a Windtunnel trace", "expected a .wttrace file");
  const uint32_t version = get_u32(bytes, kMagic.size());
  if (version == 0 || version > kVersion)
    return fail(fmt::format("trace version {} is unknown to this program, which reads up to {}", version, kVersion),
                "use a newer windtunnel");
  Trace trace;
  trace.meta.version = version;
  std::map<std::pair<uint32_t, uint32_t>, RankSpans> runs;  // (step, rank)
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> zstd(ZSTD_createDCtx(), &ZSTD_freeDCtx);
  std::string raw;
  uint64_t spans = 0, chunks = 0;
  bool have_plan = false, have_meta = false, have_end = false;
  size_t at = kMagic.size() + 8;
  while (!have_end) {
    auto bad = [&](std::string_view what) { return fail(fmt::format("{} (chunk at byte {})", what, at)); };
    if (bytes.size() - at < kHead) return fail(fmt::format("is cut short at byte {}", bytes.size()), "copy it again");
    const std::string_view head = bytes.substr(at, kHead);
    if (get_u32(head, kHead - 4) != crc_of(head.substr(0, kHead - 4))) return bad("corrupt: head of a chunk");
    const auto kind = static_cast<Kind>(get_u32(head, 0));
    const uint64_t stored = get_u64(head, 8), size = get_u64(head, 16);
    if (stored > bytes.size() - at - kHead)
      return fail(fmt::format("is cut short at byte {}", bytes.size()), "copy it again");
    const std::string_view payload = bytes.substr(at + kHead, stored);
    if (get_u32(head, 24) != crc_of(payload)) return bad("corrupt: checksum does not match");
    const bool text = kind == Kind::plan || kind == Kind::meta;
    if (size > (text ? limits.text_bytes : kChunkLimit)) return bad("corrupt: chunk larger than any writer makes");
    std::string_view content = payload;
    if (kind == Kind::end) {
      if (stored != size) return bad("corrupt: end chunk");
    } else {
      // The frame states its size too; memory is taken only when both agree.
      if (ZSTD_getFrameContentSize(payload.data(), payload.size()) != size) return bad("corrupt: size of a chunk");
      raw.resize(size);
      const size_t n = ZSTD_decompressDCtx(zstd.get(), raw.data(), raw.size(), payload.data(), payload.size());
      if (ZSTD_isError(n) || n != size) return bad("corrupt: cannot decompress");
      content = raw;
    }
    auto located = [&](const Diagnostics& errors) { return bad(errors.front().what); };
    switch (kind) {
      case Kind::plan:
        if (have_plan) return bad("corrupt: a second plan");
        have_plan = true;
        trace.plan_text = content;
        break;
      case Kind::spans:
        while (!content.empty()) {
          RankSpans run;
          if (auto s = codec::decode_spans(content, run, limits.spans - spans); !s) return located(s.errors());
          spans += run.spans.size();
          RankSpans& all = runs[{run.step, run.rank}];
          if (all.spans.empty())
            all = std::move(run);
          else
            all.spans.insert(all.spans.end(), run.spans.begin(), run.spans.end());
        }
        break;
      case Kind::samples:
        if (auto s = codec::decode_samples(content, trace.samples); !s) return located(s.errors());
        if (trace.samples.size() > limits.spans) return bad("holds more samples than the limit");
        break;
      case Kind::meta: {
        if (have_meta) return bad("corrupt: a second meta");
        have_meta = true;
        auto meta = codec::decode_meta(content);
        if (!meta) return located(meta.errors());
        trace.meta = std::move(meta.value());
        trace.meta.version = version;
        break;
      }
      case Kind::end:
        have_end = true;
        if (size != 24) return bad("corrupt: end chunk");
        if (get_u64(content, 0) != spans || get_u64(content, 8) != trace.samples.size() ||
            get_u64(content, 16) != chunks)
          return bad("corrupt: parts are missing");
        break;
      default: return bad(fmt::format("corrupt: unknown chunk kind {}", get_u32(head, 0)));
    }
    ++chunks;
    at += kHead + stored;
  }
  if (at != bytes.size()) return fail(fmt::format("corrupt: {} bytes after the end", bytes.size() - at));
  if (!have_plan || !have_meta) return fail("corrupt: plan or meta is missing");
  trace.ranks.reserve(runs.size());
  for (auto& [key, run] : runs) trace.ranks.push_back(std::move(run));
  return trace;
}

Result<Trace> read_trace(const std::string& path, const ReadLimits& limits) {
  auto bytes = read_file(path, static_cast<int64_t>(limits.file_bytes));
  if (!bytes) return bytes.errors();
  return parse_trace(bytes.value(), path, limits);
}

Status write_trace(const std::string& path, const Trace& trace) {
  auto sink = FileSink::create(path, trace.plan_text);
  if (!sink) return sink.errors();
  for (const RankSpans& r : trace.ranks) sink.value()->spans(r.rank, r.step, r.spans);
  for (const Sample& s : trace.samples) sink.value()->sample(s);
  return sink.value()->finish(trace.meta);
}

}  // namespace wt::trace
