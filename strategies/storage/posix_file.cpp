#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <system_error>

#include "mapping/base/checked.h"
#include "mapping/base/text.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/posix_fd.h"

namespace dckpt {
namespace posix {
namespace {

// One system call transfers at most this much (Linux stops at 2 GiB - 4 KiB).
constexpr std::uint64_t kMaxTransfer = std::uint64_t{1} << 30;
// Parts handed over in one system call.
constexpr std::size_t kMaxBatch = std::min(IOV_MAX, 256);
// Less is not worth a call. Without the calls Linux waits until a tenth of the memory is dirty, and all the waiting is left to fsync.
constexpr std::uint64_t kWriteback = std::uint64_t{8} << 20;
// Smaller files are not worth a reservation.
constexpr std::uint64_t kReserveFrom = std::uint64_t{1} << 20;

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(Fd fd, std::string path, std::uint64_t size) : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t size() const noexcept override { return size_; }

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size_)) {
      throw CheckpointError(ErrorCode::kCorrupt, "cannot read " + grouped(into.size()) + " bytes: the file has only " + grouped(size_), {.file = path_, .offset = offset});
    }
    while (!into.empty()) {
      const ssize_t got = ::pread(fd_.get(), into.data(), std::min<std::uint64_t>(into.size(), kMaxTransfer), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error("cannot read " + grouped(into.size()) + " bytes", errno, path_).with({.offset = offset});
      if (got == 0) {
        throw CheckpointError(ErrorCode::kCorrupt, "the file ends here, but had " + grouped(size_) + " bytes when it was opened: something truncated it meanwhile",
                              {.file = path_, .offset = offset});
      }
      into = into.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
  }

  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    if (length > 0 && range_fits(offset, length, size_)) ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_WILLNEED);
  }

 private:
  Fd fd_;
  std::string path_;
  std::uint64_t size_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t position() const noexcept override { return position_; }

  /// Sets blocks aside beyond the end of the file, which keeps its size.
  void reserve(std::uint64_t bytes) {
    if (bytes < kReserveFrom || bytes > static_cast<std::uint64_t>(INT64_MAX)) return;
    int result = 0;
    do {
      result = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
      reserved_ = bytes;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      throw write_error("cannot reserve " + sized(bytes), errno);
    }
    // Any other error: this file system reserves nothing; a full disk then shows while writing.
  }

  void append(std::span<const ByteView> parts) override {
    std::array<iovec, kMaxBatch> batch;
    for (std::size_t next = 0; next < parts.size();) {
      std::size_t count = 0;
      for (; next < parts.size() && count < batch.size(); ++next) {
        if (!parts[next].empty()) batch[count++] = {const_cast<std::byte*>(parts[next].data()), parts[next].size()};  // only read by the call
      }
      write_all({batch.data(), count});
    }
  }

  /// Only asks for it; what cannot be done (not every file system can) is left to sync().
  void start_writeback() override {
    if (position_ - handed_over_ < kWriteback) return;
    ::sync_file_range(fd_.get(), static_cast<off_t>(handed_over_), static_cast<off_t>(position_ - handed_over_), SYNC_FILE_RANGE_WRITE);
    handed_over_ = position_;
  }

  void sync() override {
    if (::fsync(fd_.get()) != 0) throw system_error("cannot make the content durable (fsync)", errno, path_);
  }

  void close() override {
    if (!fd_) return;
    // Gives the blocks back that were reserved and not used.
    if (reserved_ > position_ && ::ftruncate(fd_.get(), static_cast<off_t>(position_)) != 0) throw system_error("cannot set the size of the file", errno, path_);
    // Linux closes the descriptor even if a signal interrupts the call.
    if (::close(fd_.release()) != 0 && errno != EINTR) throw system_error("cannot close the file after writing", errno, path_);
  }

 private:
  void write_all(std::span<iovec> batch) {
    while (!batch.empty()) {
      const ssize_t put = ::pwritev(fd_.get(), batch.data(), static_cast<int>(batch.size()), static_cast<off_t>(position_));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) {
        const int error = put < 0 ? errno : EIO;
        std::uint64_t bytes = 0;
        for (const iovec& part : batch) bytes += part.iov_len;
        throw write_error("cannot write " + sized(bytes), error).with({.offset = position_});
      }
      position_ += static_cast<std::uint64_t>(put);
      auto done = static_cast<std::size_t>(put);
      while (!batch.empty() && done >= batch.front().iov_len) {
        done -= batch.front().iov_len;
        batch = batch.subspan(1);
      }
      if (!batch.empty()) batch.front() = {static_cast<std::byte*>(batch.front().iov_base) + done, batch.front().iov_len - done};
    }
  }

  static std::string sized(std::uint64_t bytes) { return grouped(bytes) + " bytes (" + human_bytes(bytes) + ")"; }

  CheckpointError write_error(std::string attempt, int error) const {
    struct statvfs space {};
    if (error == EDQUOT) {
      attempt += " within the quota";
    } else if (error == ENOSPC && ::fstatvfs(fd_.get(), &space) == 0) {
      attempt += ", " + sized(std::uint64_t{space.f_bavail} * space.f_frsize) + " are available on this file system";
    }
    return system_error(attempt, error, path_);
  }

  Fd fd_;
  std::string path_;
  std::uint64_t position_ = 0;
  std::uint64_t handed_over_ = 0;  ///< up to here the disk was asked to write
  std::uint64_t reserved_ = 0;
};

}  // namespace

CheckpointError system_error(const std::string& attempt, int error, const std::string& path, ErrorCode code) {
  return CheckpointError(code, attempt + ": " + std::generic_category().message(error), {.file = path});
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
  if (!S_ISREG(status.st_mode)) throw CheckpointError(ErrorCode::kCorrupt, std::string("refusing to read: it is ") + kind_of(status.st_mode) + ", not a regular file", {.file = path});
  // It was opened without blocking only for the case that it is a FIFO; file systems with offline storage would answer EAGAIN to such a reader.
  if (const int flags = ::fcntl(fd.get(), F_GETFL); flags >= 0) ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK);
  return std::make_unique<PosixReadableFile>(std::move(fd), std::move(path), static_cast<std::uint64_t>(status.st_size));
}

std::unique_ptr<WritableFile> writable_file(Fd fd, std::string path, std::uint64_t size_hint) {
  auto file = std::make_unique<PosixWritableFile>(std::move(fd), std::move(path));
  file->reserve(size_hint);
  return file;
}

}  // namespace posix

std::unique_ptr<ReadableFile> open_posix_file(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw posix::system_error("cannot open the file", errno, path.string(), errno == ENOENT ? ErrorCode::kIncomplete : ErrorCode::kIo);
  }
  // Looked at before it is opened: opening a device can act on it.
  if (!S_ISREG(status.st_mode)) {
    throw CheckpointError(ErrorCode::kCorrupt, std::string("refusing to read: it is ") + posix::kind_of(status.st_mode) + ", not a regular file", {.file = path.string()});
  }
  posix::Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw posix::system_error("cannot open the file", errno, path.string());
  return posix::readable_file(std::move(fd), path.string());
}

}  // namespace dckpt
