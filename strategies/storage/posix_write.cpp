#include "strategies/storage/posix_write.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::posix {
namespace {

// Smaller files are not worth a reservation.
constexpr std::uint64_t kReserveFrom = std::uint64_t{1} << 20;

std::string sized(std::uint64_t bytes) {
  return str_format("{} bytes ({})", grouped(bytes), human_bytes(bytes));
}

CheckpointError space_error(const Fd& fd, const std::string& path, std::string attempt, int error) {
  struct statvfs space {};
  if (error == EDQUOT) {
    attempt += " within the quota";
  } else if (error == ENOSPC && ::fstatvfs(fd.get(), &space) == 0) {
    attempt += str_format(", {} are available on this file system",
                          sized(std::uint64_t{space.f_bavail} * space.f_frsize));
  }
  return system_error(attempt, error, path);
}

}  // namespace

std::uint64_t reserve(const Fd& fd, const std::string& path, std::uint64_t bytes, Reserved what) {
  if (bytes < kReserveFrom || bytes > static_cast<std::uint64_t>(INT64_MAX)) return 0;
  int result = 0;
  do {
    result = ::fallocate(fd.get(), what == Reserved::kBlocks ? FALLOC_FL_KEEP_SIZE : 0, 0,
                         static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return bytes;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    throw space_error(fd, path, "cannot reserve " + sized(bytes), errno);
  return 0;  // this file system cannot reserve; a full disk is then found while writing
}

int write_parts(const Fd& fd, std::span<iovec> parts, std::uint64_t& offset) {
  while (!parts.empty()) {
    const ssize_t put = ::pwritev(fd.get(), parts.data(), static_cast<int>(parts.size()),
                                  static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put < 0 ? errno : EIO;
    offset += static_cast<std::uint64_t>(put);
    auto done = static_cast<std::size_t>(put);
    while (!parts.empty() && done >= parts.front().iov_len) {
      done -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (!parts.empty())
      parts.front() = {static_cast<std::byte*>(parts.front().iov_base) + done,
                       parts.front().iov_len - done};
  }
  return 0;
}

CheckpointError write_error(const Fd& fd, const std::string& path, std::uint64_t bytes, int error,
                            std::uint64_t offset) {
  return space_error(fd, path, "cannot write " + sized(bytes), error).with({.offset = offset});
}

void sync_file(const Fd& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0)
    throw system_error("cannot make the content durable (fsync)", errno, path);
}

void give_back(const Fd& fd, const std::string& path, std::uint64_t size, std::uint64_t reserved) {
  if (reserved > size && ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    throw system_error("cannot set the size of the file", errno, path);
}

void close_file(Fd& fd, const std::string& path) {
  // Linux closes the descriptor even if a signal interrupts the call.
  if (::close(fd.release()) != 0 && errno != EINTR)
    throw system_error("cannot close the file after writing", errno, path);
}

}  // namespace dckpt::posix
