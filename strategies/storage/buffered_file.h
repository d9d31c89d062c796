#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mapping/base/bytes.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Gathers small parts for a section, passes large ones through.
class SectionBuffer {
 public:
  /// `engine`: of the file; direct files gather parts themselves.
  SectionBuffer(FileSection& section, IoEngine engine);

  void append(ByteView part);
  std::uint64_t position() const noexcept { return section_.position() + buffer_.size(); }
  /// Writes what was gathered.
  void flush();

 private:
  FileSection& section_;
  std::size_t limit_;  ///< of what is gathered
  Bytes buffer_;
};

/// The same for a whole file.
class BufferedFile {
 public:
  explicit BufferedFile(std::unique_ptr<WritableFile> file)
      : file_(std::move(file)), buffer_(*file_, file_->engine()) {}

  void append(ByteView part) { buffer_.append(part); }
  std::uint64_t position() const noexcept { return buffer_.position(); }
  /// Writes what was gathered, makes it durable if `sync`, and closes the file.
  void finish(bool sync);

 private:
  std::unique_ptr<WritableFile> file_;
  SectionBuffer buffer_;
};

/// A new file of this content, durable if `sync`.
void write_small_file(Storage& storage, const std::string& name, ByteView content, bool sync);

}  // namespace dckpt
