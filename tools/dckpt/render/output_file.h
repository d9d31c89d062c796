#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

#include "mapping/base/bytes.h"

namespace dckpt::tool {

/// The destination of -o: a file, or stdout for "-". A file is written under a temporary name
/// beside its own and replaces an existing file only when complete. Devices and pipes are written
/// directly. Errors throw CheckpointError (io).
class OutputFile {
 public:
  explicit OutputFile(const std::string& name);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(ByteView bytes);
  /// Makes the file appear under its name. Without this call the destructor removes it.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& attempted) const;

  std::filesystem::path target_;
  std::filesystem::path written_;  // empty for stdout
  std::FILE* file_ = nullptr;
};

/// Throws CheckpointError (invalid argument) if the file `output` would be a tracker or lock of a
/// training root, or replace a file of any checkpoint.
void require_replaceable(const std::string& output);

/// Throws CheckpointError (invalid argument) if the file `output` would be, or replace, a file of
/// what the command reads: a checkpoint, a training root, or one file.
void require_outside(const std::string& output, const std::string& read);

}  // namespace dckpt::tool
