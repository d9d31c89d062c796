#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "mapping/base/checked.h"
#include "mapping/base/readable_file.h"

namespace dckpt {

/// A file with one range already in memory: reads inside that range are copied, all others go to
/// the file. Serves many small reads close to each other after one large read. Borrows both, which
/// must outlive it.
class WindowedFile final : public ReadableFile {
 public:
  /// `window` holds the file's bytes from `offset` on.
  WindowedFile(const ReadableFile& file, std::uint64_t offset, ByteView window) noexcept
      : file_(file), offset_(offset), window_(window) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override { return file_.size(); }

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!covers(offset, into.size())) return file_.read(offset, into);
    const ByteView bytes = window_.subspan(offset - offset_, into.size());
    std::copy(bytes.begin(), bytes.end(), into.begin());
  }

  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    if (!covers(offset, length)) file_.prefetch(offset, length);
  }

 private:
  bool covers(std::uint64_t offset, std::uint64_t length) const noexcept {
    return offset >= offset_ && range_fits(offset - offset_, length, window_.size());
  }

  const ReadableFile& file_;
  std::uint64_t offset_;
  ByteView window_;
};

}  // namespace dckpt
