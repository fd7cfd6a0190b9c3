// Loading: every holding is put together from the pieces that overlap it, whichever ranks wrote them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <set>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "exec/checkpoint/store.hpp"
#include "exec/convert.hpp"

namespace wt::exec {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (const int64_t n : shape) dims.push_back(std::to_string(n));
  return fmt::format("[{}]", join(dims, ", "));
}

/// Whether a tensor of shape `there` can fill one of shape `here`: equal, or apart only in padding at the end of dim 0.
bool fits(const std::vector<int64_t>& here, const std::vector<int64_t>& there, int64_t padding_from) {
  if (here == there) return true;
  if (padding_from < 0 || here.empty() || here.size() != there.size()) return false;
  if (!std::equal(here.begin() + 1, here.end(), there.begin() + 1)) return false;
  int64_t inner = 1;
  for (size_t d = 1; d < here.size(); ++d) inner *= here[d];
  return std::min(here[0], there[0]) * inner >= padding_from;
}

/// Pieces that were read last: neighbours in a reshard share them. Bounded by count: a piece is one tensor of one rank.
class PieceCache {
 public:
  PieceCache(const std::string& path, const Manifest& manifest) : path_(path), manifest_(manifest) {}

  Result<std::span<const std::byte>> get(uint32_t rank, const Piece& piece) {
    for (auto it = recent_.begin(); it != recent_.end(); ++it)
      if (it->piece == &piece) {
        recent_.splice(recent_.begin(), recent_, it);
        return std::span<const std::byte>(recent_.front().bytes);
      }
    auto file = files_.find(rank);
    if (file == files_.end()) {
      const RankFileHead head{rank, static_cast<uint32_t>(manifest_.ranks.size()), manifest_.plan_digest,
                              manifest_.progress.step};
      auto opened =
          RankFile::open(fmt::format("{}/{}", path_, rank_file_name(rank)), head, manifest_.ranks[rank].bytes);
      if (!opened) return opened.errors();
      file = files_.emplace(rank, std::move(opened.value())).first;
    }
    constexpr size_t kKept = 8;
    if (recent_.size() == kKept)
      recent_.splice(recent_.begin(), recent_, std::prev(recent_.end()));
    else
      recent_.emplace_front();
    Entry& e = recent_.front();
    e.piece = nullptr;
    e.bytes.resize(static_cast<size_t>(piece.bytes()));
    if (auto s = file->second.read(piece, e.bytes); !s) return s.errors();
    e.piece = &piece;
    return std::span<const std::byte>(e.bytes);
  }

 private:
  struct Entry {
    const Piece* piece = nullptr;
    std::vector<std::byte> bytes;
  };
  const std::string& path_;
  const Manifest& manifest_;
  std::map<uint32_t, RankFile> files_;
  std::list<Entry> recent_;
};

/// Elements of `wanted` before the padding that are in none of the intervals.
int64_t missing_of(const std::vector<Segment>& wanted, std::vector<std::pair<int64_t, int64_t>> filled,
                   int64_t padding_from) {
  std::sort(filled.begin(), filled.end());
  int64_t missing = 0;
  auto next = filled.begin();
  for (const Segment& s : wanted) {
    int64_t at = s.global;
    const int64_t end = padding_from < 0 ? s.global + s.count : std::min(s.global + s.count, padding_from);
    for (; at < end && next != filled.end() && next->first < end; ++next) {
      missing += std::max<int64_t>(0, next->first - at);
      at = std::max(at, next->second);
    }
    missing += std::max<int64_t>(0, end - at);
  }
  return missing;
}

/// What stands for a tensor that was not saved: rounded master weights are the weights, and weights that were trained as they
/// are (no master copy) are the master weights of a plan that keeps shards in that type.
TensorName stand_in(TensorName t) {
  if (t.role == plan::Role::weight)
    t.role = plan::Role::master;
  else if (t.role == plan::Role::master)
    t.role = plan::Role::weight;
  return t;
}

/// In another type, rounded as the optimizer rounds.
std::vector<std::byte> converted(std::span<const std::byte> from, DType of, DType to) {
  std::vector<double> values(from.size() / static_cast<size_t>(size_of(of)));
  std::vector<std::byte> out(values.size() * static_cast<size_t>(size_of(to)));
  load(from.data(), of, values);
  store(values, to, out.data());
  return out;
}

constexpr size_t kMostFaults = 8;  // of a rank: a wrong model has one for each tensor

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  const std::string name = path + "/manifest.json";
  auto text = read_file(name);
  if (!text) return text.errors();
  auto m = parse_manifest(text.value(), name);
  if (!m) return m.errors();
  Checkpoint c;
  c.path_ = path;
  c.manifest_ = std::move(m.value());
  return c;
}

Status Checkpoint::load(std::span<const Holding> holdings, Device& device) const {
  Diagnostics faults;
  size_t more = 0;
  auto fail = [&](Diagnostic d) {
    if (faults.size() < kMostFaults)
      faults.push_back(std::move(d));
    else
      ++more;
  };
  struct Source {
    uint32_t rank;
    const Piece* piece;
    std::vector<Segment> segments;
  };
  std::map<TensorName, std::vector<Source>> sources;
  for (uint32_t r = 0; r < manifest_.ranks.size(); ++r)
    for (const Piece& p : manifest_.ranks[r].pieces) sources[p.tensor].push_back({r, &p, {}});

  PieceCache cache(path_, manifest_);
  std::vector<std::byte> host;
  std::set<uint32_t> bad;  // ranks whose file was told
  for (const Holding& h : holdings) {
    if (!h.loaded || h.layout.count == 0) continue;
    WT_CHECK(h.operand.elements == h.layout.count, "{}", to_text(h.tensor));
    auto found = sources.find(h.tensor);
    const bool stands_in = found == sources.end();
    if (stands_in) found = sources.find(stand_in(h.tensor));
    if (found == sources.end()) {
      fail({path_, fmt::format("has no {}", to_text(h.tensor)), "it is of another model or optimizer"});
      continue;
    }
    std::vector<Source>& list = found->second;
    const std::vector<int64_t> here = h.layout.global_shape(), there = list[0].piece->layout.global_shape();
    if (!fits(here, there, h.padding_from)) {
      fail({path_, fmt::format("{} is {} and the plan's is {}", to_text(h.tensor), shape_text(there), shape_text(here)),
            "it is of another model"});
      continue;
    }
    const DType saved = list[0].piece->dtype;
    if (saved != h.operand.dtype && !(stands_in && h.tensor.role == plan::Role::weight)) {
      fail({path_,
            fmt::format("{} is {} and the run's is {}", to_text(h.tensor), to_text(saved), to_text(h.operand.dtype)),
            "it is of a run in another precision"});
      continue;
    }
    const auto size = static_cast<size_t>(size_of(saved));
    host.assign(size * static_cast<size_t>(h.layout.count), std::byte{0});
    const std::vector<Segment> wanted = segments_of(h.layout);
    std::vector<std::pair<int64_t, int64_t>> filled;  // of the whole tensor
    bool damaged = false;
    for (Source& source : list) {
      if (source.segments.empty()) source.segments = segments_of(source.piece->layout);
      std::span<const std::byte> bytes;
      auto have = source.segments.begin();
      for (const Segment& s : wanted) {
        const int64_t end = s.global + s.count;
        while (have != source.segments.end() && have->global + have->count <= s.global) ++have;
        for (auto it = have; it != source.segments.end() && it->global < end; ++it) {
          const int64_t from = std::max(s.global, it->global), until = std::min(end, it->global + it->count);
          if (bytes.empty()) {
            auto read = cache.get(source.rank, *source.piece);
            if (!read) {
              if (bad.insert(source.rank).second)
                for (const Diagnostic& d : read.errors()) fail(d);
              damaged = true;
              break;
            }
            bytes = read.value();
          }
          std::memcpy(host.data() + static_cast<size_t>(s.local + from - s.global) * size,
                      bytes.data() + static_cast<size_t>(it->local + from - it->global) * size,
                      static_cast<size_t>(until - from) * size);
          filled.emplace_back(from, until);
        }
        if (damaged) break;
      }
    }
    if (damaged) continue;
    if (const int64_t missing = missing_of(wanted, std::move(filled), h.padding_from); missing > 0) {
      fail({path_, fmt::format("{} of {} elements of {} are on no rank", missing, h.layout.count, to_text(h.tensor)),
            "it was saved by a part of the ranks"});
      continue;
    }
    if (saved != h.operand.dtype) host = converted(host, saved, h.operand.dtype);
    if (auto s = device.write(host.data(), h.operand); !s)
      for (const Diagnostic& d : s.errors()) fail(d);
  }
  if (more > 0) faults.push_back({path_, fmt::format("{} more faults like these", more), ""});
  return status_of(std::move(faults));
}

Result<Loaded> load_checkpoint(const std::string& path, std::span<const Holding> holdings, const Team& team,
                               Device& device) {
  Loaded out;
  out.path = path;
  Diagnostics faults;
  auto opened = Checkpoint::open(path);
  if (!opened) {
    faults = opened.errors();
  } else {
    out.progress = opened.value().progress();
    out.plan_digest = opened.value().plan_digest();
    if (auto s = opened.value().load(holdings, device); !s) faults = s.errors();
  }
  if (auto all = team.agree(faults); !all) return all.errors();
  return out;
}

Result<std::optional<Loaded>> load_newest(const std::string& root, std::span<const Holding> holdings, const Team& team,
                                          Device& device) {
  // What rank 0 sees: a directory that changes is seen alike by all.
  std::vector<std::string> paths;
  if (team.rank.v == 0)
    for (const FoundCheckpoint& f : list_checkpoints(root)) paths.push_back(f.path);
  auto same = team.from_first(paths);
  if (!same) return same.errors();
  Diagnostics faults;
  for (const std::string& path : same.value()) {
    auto loaded = load_checkpoint(path, holdings, team, device);
    if (loaded) {
      loaded.value().passed_over = std::move(faults);
      return std::optional(std::move(loaded.value()));
    }
    faults.insert(faults.end(), loaded.errors().begin(), loaded.errors().end());
  }
  if (!faults.empty()) return faults;
  return std::optional<Loaded>();
}

}  // namespace wt::exec
