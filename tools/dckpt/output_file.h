#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

#include "mapping/base/bytes.h"

namespace dckpt::tool {

/// Where -o writes: a file, or stdout for "-". A file is written beside its name first and appears
/// under it, replacing what was there, only when it is complete. Devices and pipes are written to
/// as they are. Errors throw CheckpointError (io).
class OutputFile {
 public:
  explicit OutputFile(const std::string& name);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(ByteView bytes);
  /// Makes it appear. Without this the destructor removes what was written.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& attempted) const;

  std::filesystem::path target_;
  std::filesystem::path written_;  // empty for stdout
  std::FILE* file_ = nullptr;
};

}  // namespace dckpt::tool
