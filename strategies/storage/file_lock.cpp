#include "strategies/storage/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "mapping/base/text.h"
#include "strategies/storage/posix_fd.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxOwnerBytes = 200;

std::string read_owner(int fd) {
  std::array<char, kMaxOwnerBytes> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length))
                    : std::string("somebody");
}

}  // namespace

FileLock::FileLock(const std::filesystem::path& file, const std::string& owner) : fd_(-1) {
  posix::Fd fd(::open(file.c_str(),
                      O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  if (!fd && errno == ELOOP)
    throw CheckpointError(ErrorCode::kCorrupt, "refusing to lock the file: it is a link",
                          {.file = file.string()});
  if (!fd) throw posix::system_error("cannot open the lock file", errno, file.string());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0)
    throw posix::system_error("cannot examine the lock file", errno, file.string());
  if (!S_ISREG(status.st_mode)) {
    throw CheckpointError(ErrorCode::kCorrupt,
                          std::string("refusing to lock: it is ") + posix::kind_of(status.st_mode) +
                              ", not a regular file",
                          {.file = file.string()});
  }
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK)
      throw CheckpointError(ErrorCode::kAborted,
                            "it is locked by " + printable(read_owner(fd.get())),
                            {.file = file.string()});
    throw posix::system_error("cannot lock the file", errno, file.string(),
                              errno == EIO ? ErrorCode::kIo : ErrorCode::kUnsupported);
  }
  // Only a help for people: that it could not be written does not make the lock worse.
  const std::string_view shown = std::string_view(owner).substr(0, kMaxOwnerBytes);
  if (::ftruncate(fd.get(), 0) == 0) [[maybe_unused]]
    const ssize_t written = ::pwrite(fd.get(), shown.data(), shown.size(), 0);
  fd_ = fd.release();
}

FileLock::~FileLock() {
  ::close(fd_);
}

}  // namespace dckpt
