// The file of one rank in a checkpoint: its pieces one behind the other, and what they are. Not a checkpoint (store.hpp).
//
//   "wtckpt\n\0"  u32 version  u32 rank  u32 world  u32 zero  u64 plan digest  i64 step    little-endian, padded to 64 bytes
//   piece*        raw elements, each piece from a multiple of 64 bytes on
//   index         JSON: what each piece is, where it lies, its CRC-32
//   u64 offset of the index  u64 bytes of it  u32 CRC-32 of it  u32 zero  "wtckend\n"
//
// Invariant: the file has its name only when all of it is on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.hpp"
#include "exec/checkpoint/holding.hpp"

namespace wt::exec {

inline constexpr uint32_t kCheckpointVersion = 1;

struct RankFileHead {
  uint32_t rank = 0, world = 1;
  uint64_t plan_digest = 0;
  int64_t step = 0;
};

struct Piece {
  TensorName tensor;
  DType dtype = DType::f32;
  Layout layout;
  int64_t offset = 0;
  uint32_t crc = 0;

  int64_t bytes() const { return layout.count * size_of(dtype); }
};

std::string rank_file_name(uint32_t rank);  // "rank-00003.wtckpt"

/// `read(i, to)` copies the elements of holding i to host memory. Holdings that another rank writes are left out.
/// Errors: disk full, not writable, a failed read; then the file is not there.
Result<std::vector<Piece>> write_rank_file(const std::string& path, const RankFileHead& head,
                                           std::span<const Holding> holdings,
                                           const std::function<Status(size_t, void*)>& read);

/// Pieces as the JSON of an index, and back with everything checked: layouts, bounds.
std::string print_index(std::span<const Piece> pieces);
Result<std::vector<Piece>> parse_index(std::string_view json, const std::string& where);

/// An open file of a checkpoint.
class RankFile {
 public:
  /// Errors: missing, cut, not of this checkpoint, another version, an index that does not match its checksum.
  /// `bytes`: how long it should be, where that is known.
  static Result<RankFile> open(const std::string& path, const RankFileHead& expected, int64_t bytes = -1);
  RankFile(RankFile&&) noexcept;
  RankFile& operator=(RankFile&&) noexcept;
  ~RankFile();

  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }
  /// The bytes of a piece, checked.
  Status read(const Piece& piece, std::span<std::byte> to) const;

 private:
  RankFile() = default;
  std::string path_;
  uint32_t rank_ = 0;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::vector<Piece> pieces_;
};

/// CRC-32 of zlib, of any length.
uint32_t crc_of(std::string_view bytes);

/// "rank 3, /ckpt/step-00000100/rank-00003.wtckpt"; `where` of every fault of a rank file.
std::string rank_and_file(uint32_t rank, const std::string& path);

}  // namespace wt::exec
