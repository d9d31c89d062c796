#pragma once

#include <cstdint>
#include <string>

#include "mapping/base/readable_file.h"

namespace dckpt {

/// A file for one reader that goes through it in short reads. They are served from a window of the
/// file that is read at once. The window grows while it moves from front to back, and is small
/// again after a jump. Long reads go to the file. Borrows the file. Not safe to use from several
/// threads.
class ReadAheadFile final : public ReadableFile {
 public:
  static constexpr std::uint64_t kFirstWindow = std::uint64_t{16} << 10;
  static constexpr std::uint64_t kLargestWindow = std::uint64_t{256} << 10;
  /// Reads from this length on are long.
  static constexpr std::uint64_t kLongRead = kLargestWindow / 4;

  explicit ReadAheadFile(const ReadableFile& file) noexcept : file_(file) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override { return file_.size(); }
  /// Fails only if the file cannot be read at that place, regardless of the bytes around it.
  void read(std::uint64_t offset, MutableByteView into) const override;
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    file_.prefetch(offset, length);
  }

 private:
  bool covers(std::uint64_t offset, std::uint64_t length) const noexcept;
  /// Moves the window to `offset`, with at least `length` bytes. Returns false if it cannot be
  /// read.
  bool move_to(std::uint64_t offset, std::uint64_t length) const;

  const ReadableFile& file_;
  mutable std::uint64_t offset_ = 0;
  mutable Bytes window_;
};

}  // namespace dckpt
