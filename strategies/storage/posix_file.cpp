#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/local_path.h"
#include "strategies/storage/direct_io.h"
#include "strategies/storage/guarded_mapping.h"
#include "strategies/storage/mappable_file.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/posix_fd.h"
#include "strategies/storage/posix_uncached.h"
#include "strategies/storage/uncached_file.h"

namespace dckpt {
namespace posix {
namespace {

// One system call transfers at most this many bytes (Linux stops at 2 GiB - 4 KiB).
constexpr std::uint64_t kMaxTransfer = std::uint64_t{1} << 30;

class PosixReadableFile final : public ReadableFile, public MappableFile, public UncachedFile {
 public:
  PosixReadableFile(Fd fd, std::string path, std::uint64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t size() const noexcept override { return size_; }

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size_)) {
      throw_error(ErrorCode::kCorrupt, {.file = path_, .offset = offset},
                  "cannot read {} bytes: the file has only {}", grouped(into.size()),
                  grouped(size_));
    }
    while (!into.empty()) {
      const ssize_t got =
          ::pread(fd_.get(), into.data(), std::min<std::uint64_t>(into.size(), kMaxTransfer),
                  static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        throw system_error(str_format("cannot read {} bytes", grouped(into.size())), errno, path_)
            .with({.offset = offset});
      if (got == 0) {
        throw_error(ErrorCode::kCorrupt, {.file = path_, .offset = offset},
                    "the file ends here, but had {} bytes when it was opened: "
                    "something truncated it meanwhile",
                    grouped(size_));
      }
      into = into.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
  }

  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    if (length > 0 && range_fits(offset, length, size_))
      ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(length),
                      POSIX_FADV_WILLNEED);
  }

  bool with_mapped(std::uint64_t offset, std::uint64_t length,
                   const std::function<void(const std::byte*)>& copy) const override {
    return range_fits(offset, length, size_) && posix::with_mapped(fd_.get(), offset, length, copy);
  }

  bool is_cold(std::uint64_t offset, std::uint64_t length) const override {
    return profits_from_direct(fd_) && posix::is_cold(fd_, offset, length);
  }

  bool read_past_cache(std::uint64_t offset, std::uint64_t length,
                       const std::function<void(ByteView)>& take) const override {
    return range_fits(offset, length, size_) && uncached_.read(*this, fd_, offset, length, take);
  }

 private:
  Fd fd_;
  std::string path_;
  std::uint64_t size_;
  UncachedDescriptor uncached_;
};

}  // namespace

CheckpointError system_error(const std::string& attempt, int error, const std::string& path,
                             ErrorCode code) {
  return CheckpointError(
      code, str_format("{}: {}", attempt, std::generic_category().message(error)), {.file = path});
}

const char* kind_of(unsigned mode) noexcept {
  switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a directory";
    case S_IFLNK: return "a symbolic link";
    case S_IFIFO: return "a FIFO";
    case S_IFSOCK: return "a socket";
    case S_IFCHR: return "a character device";
    case S_IFBLK: return "a block device";
    default: return "an unknown kind of file";
  }
}

std::unique_ptr<ReadableFile> readable_file(Fd fd, std::string path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error("cannot examine the file", errno, path);
  if (!S_ISREG(status.st_mode))
    throw_error(ErrorCode::kCorrupt, {.file = path},
                "refusing to read: it is {}, not a regular file", kind_of(status.st_mode));
  // The file was opened without blocking only in case it was a FIFO; file systems with offline
  // storage would answer EAGAIN to a non-blocking reader.
  if (const int flags = ::fcntl(fd.get(), F_GETFL); flags >= 0)
    ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK);
  return std::make_unique<PosixReadableFile>(std::move(fd), std::move(path),
                                             static_cast<std::uint64_t>(status.st_size));
}

}  // namespace posix

std::unique_ptr<ReadableFile> open_posix_file(const std::filesystem::path& given) {
  const std::filesystem::path path = local_path(given);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw posix::system_error("cannot open the file", errno, path.string(),
                              errno == ENOENT ? ErrorCode::kIncomplete : ErrorCode::kIo);
  }
  // The file is examined before it is opened, since opening a device can act on it.
  if (!S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::kCorrupt, {.file = path.string()},
                "refusing to read: it is {}, not a regular file", posix::kind_of(status.st_mode));
  }
  posix::Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw posix::system_error("cannot open the file", errno, path.string());
  return posix::readable_file(std::move(fd), path.string());
}

}  // namespace dckpt
