#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/storage/storage.h"

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// "attempt: text of errno" about a path.
CheckpointError system_error(const std::string& attempt, int error, const std::string& path,
                             ErrorCode code = ErrorCode::kIo);

/// What `mode` of stat is, with an article: "a FIFO".
const char* kind_of(unsigned mode) noexcept;

/// Wraps an open descriptor for reading. Throws (corrupt) unless it is a regular file.
std::unique_ptr<ReadableFile> readable_file(Fd fd, std::string path);

}  // namespace dckpt::posix
