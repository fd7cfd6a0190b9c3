// A hand encoder of protobuf messages for the few that exports need; not a protobuf library, no reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wt::trace {

/// Appends fields of one protobuf message.
class Message {
 public:
  Message& number(uint32_t field, uint64_t value) {
    varint(field << 3 | 0);
    varint(value);
    return *this;
  }
  Message& fixed64(uint32_t field, uint64_t value) {
    varint(field << 3 | 1);
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> (8 * i));
    return *this;
  }
  Message& text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(uint32_t field, const Message& m) { return text(field, m.bytes_); }
  /// A number without a field: of a packed list, or the length of what follows.
  Message& bare(uint64_t value) {
    varint(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

 private:
  void varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes_ += static_cast<char>(v | 0x80);
    bytes_ += static_cast<char>(v);
  }
  std::string bytes_;
};

}  // namespace wt::trace
