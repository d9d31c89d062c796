#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mapping/base/bytes.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Gathers small parts for a section and passes large ones through.
class SectionBuffer {
 public:
  /// `engine` is the file's; direct files gather parts themselves.
  SectionBuffer(FileSection& section, IoEngine engine);

  void append(ByteView part);
  std::uint64_t position() const noexcept { return section_.position() + buffer_.size(); }
  /// Writes the gathered parts.
  void flush();

 private:
  FileSection& section_;
  std::size_t limit_;  ///< maximum number of gathered bytes
  Bytes buffer_;
};

/// Does the same for a whole file.
class BufferedFile {
 public:
  explicit BufferedFile(std::unique_ptr<WritableFile> file)
      : file_(std::move(file)), buffer_(*file_, file_->engine()) {}

  void append(ByteView part) { buffer_.append(part); }
  std::uint64_t position() const noexcept { return buffer_.position(); }
  /// Writes the gathered parts, makes the file durable if `sync`, and closes it.
  void finish(bool sync);

 private:
  std::unique_ptr<WritableFile> file_;
  SectionBuffer buffer_;
};

/// Creates a file with this content, durably if `sync`.
void write_small_file(Storage& storage, const std::string& name, ByteView content, bool sync);

}  // namespace dckpt
