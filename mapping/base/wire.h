#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"

namespace DCKPT_API dckpt {

/// Writes small messages between ranks: LEB128 numbers and length-prefixed texts.
class WireWriter {
 public:
  explicit WireWriter(Bytes& out) : out_(out) {}
  void number(std::uint64_t value);
  void text(std::string_view text);

 private:
  Bytes& out_;
};

/// Reads messages of a WireWriter. Everything is checked against the available bytes: throws
/// CheckpointError (corrupt), naming `what`.
class WireReader {
 public:
  WireReader(ByteView bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  std::uint64_t number();
  /// Reads a number that must be at most `limit`.
  std::uint64_t number(std::uint64_t limit);
  std::int64_t signed_number();
  /// Reads a count of things that take at least one byte each.
  std::size_t count();
  std::string text();
  ByteView rest() const noexcept { return bytes_.subspan(at_); }  ///< the unread part
  bool at_end() const noexcept { return at_ == bytes_.size(); }
  /// Throws unless everything has been read.
  void finish() const;
  [[noreturn]] void malformed(std::string_view why) const;

 private:
  ByteView bytes_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace dckpt
