// Bytes on their way into an exported file: small writes are collected, and compressed where the format asks for it.
// Equal bytes in give equal bytes out. Not a file of its own: whoever made the AtomicFile commits it.
#pragma once

#include <zlib.h>

#include <string>
#include <string_view>

#include "core/base/atomic_file.hpp"
#include "core/base/check.hpp"

namespace wt::trace {

/// Collects small writes; compresses them where asked.
class Out {
 public:
  Out(AtomicFile& file, bool gzip) : file_(file), gzip_(gzip) {
    if (!gzip_) return;
    constexpr int kGzipWindow =
        15 + 16;  // 16: a gzip header, without time or name, so that equal runs give equal bytes
    WT_CHECK(deflateInit2(&z_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  }
  ~Out() {
    if (gzip_) deflateEnd(&z_);
  }
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;

  void write(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= kBuffer) drain(Z_NO_FLUSH);
  }
  void finish() { drain(Z_FINISH); }

 private:
  static constexpr size_t kBuffer = 1 << 18;

  void drain(int flush) {
    if (!gzip_) {
      file_.write(buffer_);
    } else {
      z_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
      z_.avail_in = static_cast<uInt>(buffer_.size());
      packed_.resize(kBuffer);
      do {
        z_.next_out = reinterpret_cast<Bytef*>(packed_.data());
        z_.avail_out = static_cast<uInt>(packed_.size());
        WT_CHECK(deflate(&z_, flush) != Z_STREAM_ERROR);
        file_.write(std::string_view(packed_).substr(0, packed_.size() - z_.avail_out));
      } while (z_.avail_out == 0);
    }
    buffer_.clear();
  }

  AtomicFile& file_;
  bool gzip_;
  z_stream z_{};
  std::string buffer_, packed_;
};

}  // namespace wt::trace
