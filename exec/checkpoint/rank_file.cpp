#include "exec/checkpoint/rank_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/atomic_file.hpp"
#include "core/plan/names.hpp"

namespace wt::exec {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMagic("wtckpt\n\0", 8), kEnd("wtckend\n", 8);
constexpr int64_t kAlign = 64, kHeadBytes = 64, kTailBytes = 32;

template <class T>
void put(std::string& out, T v) {
  for (size_t i = 0; i < sizeof v; ++i) out += static_cast<char>(static_cast<uint64_t>(v) >> (8 * i) & 0xff);
}
template <class T>
T get(const char* at) {
  uint64_t v = 0;
  for (size_t i = 0; i < sizeof(T); ++i) v |= uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  return static_cast<T>(v);
}

int64_t aligned(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

std::string head_text(const RankFileHead& h) {
  std::string out(kMagic);
  put<uint32_t>(out, kCheckpointVersion);
  put<uint32_t>(out, h.rank);
  put<uint32_t>(out, h.world);
  put<uint32_t>(out, 0);
  put<uint64_t>(out, h.plan_digest);
  put<int64_t>(out, h.step);
  out.resize(kHeadBytes, '\0');
  return out;
}

}  // namespace

uint32_t crc_of(std::string_view bytes) {
  uLong crc = crc32(0, nullptr, 0);
  while (!bytes.empty()) {
    const size_t n = std::min<size_t>(bytes.size(), std::numeric_limits<uInt>::max() / 2);
    crc = crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(n));
    bytes.remove_prefix(n);
  }
  return static_cast<uint32_t>(crc);
}

std::string rank_file_name(uint32_t rank) { return fmt::format("rank-{:05}.wtckpt", rank); }

std::string rank_and_file(uint32_t rank, const std::string& path) { return fmt::format("rank {}, {}", rank, path); }

std::string print_index(std::span<const Piece> pieces) {
  Json list = Json::array();
  for (const Piece& p : pieces) {
    Json cuts = Json::array();
    for (const Cut& c : p.layout.cuts)
      cuts.push_back({{"dim", c.dim}, {"parts", c.parts}, {"index", c.index}, {"blocks", c.blocks}});
    list.push_back({{"name", p.tensor.name},
                    {"layer", p.tensor.layer},
                    {"role", plan::to_text(p.tensor.role)},
                    {"dtype", to_text(p.dtype)},
                    {"shape", p.layout.shape},
                    {"cuts", std::move(cuts)},
                    {"first", p.layout.first},
                    {"count", p.layout.count},
                    {"offset", p.offset},
                    {"crc32", fmt::format("{:08x}", p.crc)}});
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::vector<Piece>> parse_index(std::string_view json, const std::string& where) {
  std::vector<Piece> out;
  auto fault = [&](std::string what) { return Diagnostic{where, std::move(what), "the file is damaged"}; };
  try {
    const Json list = Json::parse(json);
    for (const Json& j : list) {
      Piece p;
      p.tensor.name = j.at("name").get<std::string>();
      p.tensor.layer = j.at("layer").get<int64_t>();
      const auto role = plan::value_of<plan::Role>(plan::kRoleNames, j.at("role").get<std::string>());
      const auto dtype = parse_dtype(j.at("dtype").get<std::string>());
      if (!role || !dtype) return fault(fmt::format("'{}' has an unknown role or element type", p.tensor.name));
      p.tensor.role = *role;
      p.dtype = *dtype;
      p.layout.shape = j.at("shape").get<std::vector<int64_t>>();
      for (const Json& c : j.at("cuts"))
        p.layout.cuts.push_back({c.at("dim").get<uint8_t>(), c.at("parts").get<int64_t>(), c.at("index").get<int64_t>(),
                                 c.at("blocks").get<int64_t>()});
      p.layout.first = j.at("first").get<int64_t>();
      p.layout.count = j.at("count").get<int64_t>();
      p.offset = j.at("offset").get<int64_t>();
      const auto crc = j.at("crc32").get<std::string>();
      if (std::from_chars(crc.data(), crc.data() + crc.size(), p.crc, 16).ec != std::errc())
        return fault(fmt::format("'{}' has no checksum", p.tensor.name));
      if (const std::string bad = fault_of(p.layout); !bad.empty())
        return fault(fmt::format("{}: {}", to_text(p.tensor), bad));
      if (p.offset < kHeadBytes) return fault(fmt::format("{} lies in the head", to_text(p.tensor)));
      out.push_back(std::move(p));
    }
  } catch (const Json::exception& e) { return fault(fmt::format("its index cannot be read: {}", e.what())); }
  return out;
}

Result<std::vector<Piece>> write_rank_file(const std::string& path, const RankFileHead& head,
                                           std::span<const Holding> holdings,
                                           const std::function<Status(size_t, void*)>& read) {
  auto named = [&](Diagnostics errors) {  // of AtomicFile: knows the file, not the rank
    for (Diagnostic& e : errors) e.where = rank_and_file(head.rank, path);
    return errors;
  };
  auto created = AtomicFile::create(path);
  if (!created) return named(created.errors());
  AtomicFile file = std::move(created.value());
  file.write(head_text(head));
  int64_t at = kHeadBytes;
  std::vector<Piece> pieces;
  std::string bytes;
  for (size_t i = 0; i < holdings.size(); ++i) {
    const Holding& h = holdings[i];
    if (!h.written || h.layout.count == 0) continue;
    Piece p{h.tensor, h.operand.dtype, h.layout, at, 0};
    bytes.resize(static_cast<size_t>(aligned(p.bytes())));
    std::fill(bytes.begin() + p.bytes(), bytes.end(), '\0');
    if (const Status s = read(i, bytes.data()); !s) return s.errors();
    p.crc = crc_of(std::string_view(bytes).substr(0, static_cast<size_t>(p.bytes())));
    file.write(bytes);
    at += static_cast<int64_t>(bytes.size());
    pieces.push_back(std::move(p));
  }
  const std::string index = print_index(pieces);
  file.write(index);
  std::string tail;
  put<int64_t>(tail, at);
  put<uint64_t>(tail, index.size());
  put<uint32_t>(tail, crc_of(index));
  put<uint32_t>(tail, 0);
  file.write(tail.append(kEnd));
  if (const Status s = file.commit(Durability::disk); !s) return named(s.errors());
  return pieces;
}

// ------------------------------------------------------------------------------------------------- reading

namespace {

/// Fills `to` from `offset`; errno, 0, or -1 where the file ends early.
int read_at(int fd, int64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd, to.data(), to.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return -1;
    offset += n;
    to = to.subspan(static_cast<size_t>(n));
  }
  return 0;
}

std::span<std::byte> bytes_of(std::string& s) { return std::as_writable_bytes(std::span(s.data(), s.size())); }

}  // namespace

RankFile::RankFile(RankFile&& other) noexcept { *this = std::move(other); }
RankFile& RankFile::operator=(RankFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(rank_, other.rank_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(pieces_, other.pieces_);
  return *this;
}
RankFile::~RankFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<RankFile> RankFile::open(const std::string& path, const RankFileHead& expected, int64_t bytes) {
  auto fault = [&](std::string what, std::string hint = "the file is damaged") {
    return Diagnostic{rank_and_file(expected.rank, path), std::move(what), std::move(hint)};
  };
  RankFile f;
  f.path_ = path;
  f.rank_ = expected.rank;
  f.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (f.fd_ < 0) return fault(fmt::format("cannot open: {}", std::strerror(errno)), "");
  struct stat st {};
  if (::fstat(f.fd_, &st) != 0 || !S_ISREG(st.st_mode)) return fault("is not a file", "");
  f.bytes_ = st.st_size;
  if (bytes >= 0 && f.bytes_ < bytes) return fault(fmt::format("is cut: {} of {} bytes", f.bytes_, bytes));
  if (bytes >= 0 && f.bytes_ > bytes) return fault(fmt::format("is too long: {} and not {} bytes", f.bytes_, bytes));
  if (f.bytes_ < kHeadBytes + kTailBytes) return fault(fmt::format("is cut: {} bytes", f.bytes_));

  std::string head(kHeadBytes, '\0'), tail(kTailBytes, '\0');
  if (const int code = read_at(f.fd_, 0, bytes_of(head)); code != 0)
    return fault(fmt::format("cannot read: {}", code > 0 ? std::strerror(code) : "ends early"), "");
  if (std::string_view(head).substr(0, kMagic.size()) != kMagic) return fault("is not a checkpoint file", "");
  if (const auto version = get<uint32_t>(head.data() + 8); version != kCheckpointVersion)
    return fault(fmt::format("is of version {}", version),
                 fmt::format("this program reads version {}", kCheckpointVersion));
  if (head != head_text(expected))
    return fault(
        fmt::format("is of rank {} of {}, step {}, plan {:016x}", get<uint32_t>(head.data() + 12),
                    get<uint32_t>(head.data() + 16), get<int64_t>(head.data() + 32), get<uint64_t>(head.data() + 24)),
        fmt::format("expected rank {} of {}, step {}, plan {:016x}", expected.rank, expected.world, expected.step,
                    expected.plan_digest));
  if (const int code = read_at(f.fd_, f.bytes_ - kTailBytes, bytes_of(tail)); code != 0)
    return fault(fmt::format("cannot read: {}", code > 0 ? std::strerror(code) : "ends early"), "");
  if (std::string_view(tail).substr(24) != kEnd) return fault(fmt::format("is cut: it ends after {} bytes", f.bytes_));
  const auto offset = get<int64_t>(tail.data());
  const auto size = get<int64_t>(tail.data() + 8);
  if (offset < kHeadBytes || size < 0 || offset > f.bytes_ - kTailBytes || size != f.bytes_ - kTailBytes - offset)
    return fault("its index is out of bounds");
  std::string index(static_cast<size_t>(size), '\0');
  if (const int code = read_at(f.fd_, offset, bytes_of(index)); code != 0)
    return fault(fmt::format("cannot read: {}", code > 0 ? std::strerror(code) : "ends early"), "");
  if (crc_of(index) != get<uint32_t>(tail.data() + 16)) return fault("its index does not match its checksum");
  auto pieces = parse_index(index, rank_and_file(expected.rank, path));
  if (!pieces) return pieces.errors();
  for (const Piece& p : pieces.value())
    if (p.bytes() > offset - p.offset || p.offset > offset)
      return fault(fmt::format("{} is out of bounds", to_text(p.tensor)));
  f.pieces_ = std::move(pieces.value());
  return f;
}

Status RankFile::read(const Piece& piece, std::span<std::byte> to) const {
  WT_CHECK(static_cast<int64_t>(to.size()) == piece.bytes());
  auto fault = [&](std::string what) {
    return Diagnostic{rank_and_file(rank_, path_), fmt::format("{}: {}", to_text(piece.tensor), what),
                      "the file is damaged"};
  };
  if (const int code = read_at(fd_, piece.offset, to); code != 0)
    return fault(code > 0 ? fmt::format("cannot read: {}", std::strerror(code)) : "the file ends early");
  if (crc_of({reinterpret_cast<const char*>(to.data()), to.size()}) != piece.crc)
    return fault("does not match its checksum");
  return ok_status();
}

}  // namespace wt::exec
