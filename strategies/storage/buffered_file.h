#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/bytes.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Gathers small parts, passes large ones through.
class BufferedFile {
 public:
  explicit BufferedFile(std::unique_ptr<WritableFile> file);

  void append(ByteView part);
  std::uint64_t position() const noexcept { return position_; }
  /// Writes what was gathered, makes it durable if `sync`, and closes the file.
  void finish(bool sync);

 private:
  void flush();

  std::unique_ptr<WritableFile> file_;
  Bytes buffer_;
  std::uint64_t position_ = 0;
};

/// A new file of this content, durable if `sync`.
void write_small_file(Storage& storage, const std::string& name, ByteView content, bool sync);

}  // namespace dckpt
