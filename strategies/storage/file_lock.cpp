#include "strategies/storage/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "strategies/storage/posix_fd.h"

namespace dckpt::posix {
namespace {

constexpr std::size_t kMaxOwnerBytes = 200;
constexpr int kMaxAttempts = 100;

std::string read_owner(const Fd& file) {
  std::array<char, kMaxOwnerBytes> text{};
  const ssize_t length = ::pread(file.get(), text.data(), text.size(), 0);
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length))
                    : std::string("somebody");
}

struct stat status_of(const Fd& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw system_error("cannot examine the lock file", errno, path);
  return status;
}

/// Returns whether `path` is a name of the open file.
bool is_at(const Fd& file, const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
    throw system_error("cannot examine the lock file", errno, path);
  }
  const struct stat mine = status_of(file, path);
  return found.st_dev == mine.st_dev && found.st_ino == mine.st_ino;
}

class FileLock final : public StorageLock {
 public:
  FileLock(Fd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  bool is_held() const override { return is_at(file_, path_); }

 private:
  Fd file_;
  std::string path_;
};

Fd open_regular(const Fd& directory, const std::string& entry, const std::string& path) {
  Fd file(::openat(directory.get(), entry.c_str(),
                   O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  if (!file && errno == ELOOP)
    throw_error(ErrorCode::kCorrupt, {.file = path}, "refusing to lock the file: it is a link");
  if (!file) throw system_error("cannot open the lock file", errno, path);
  const struct stat status = status_of(file, path);
  if (!S_ISREG(status.st_mode)) {
    throw_error(ErrorCode::kCorrupt, {.file = path},
                "refusing to lock: it is {}, not a regular file", kind_of(status.st_mode));
  }
  return file;
}

/// Returns false if the file system has no locks.
bool lock_without_waiting(const Fd& file, const std::string& path) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK)
      throw_error(ErrorCode::kAborted, {.file = path},
                  "it is locked by " + printable(read_owner(file)));
    const CheckpointError error = system_error("cannot lock the file", errno, path);
    if (errno == EIO) throw CheckpointError(error);
    log_warning(error.what());
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<StorageLock> lock_file(const Fd& directory, const std::string& entry,
                                       const std::string& path, const std::string& absolute,
                                       const std::string& owner) {
  Fd file;
  for (int attempt = 0; !file || !is_at(file, absolute); ++attempt) {
    // The last holder removed the file in between, so nobody else would find the lock.
    if (attempt == kMaxAttempts)
      throw_error(ErrorCode::kAborted, {.file = path}, "the lock file is removed again and again");
    file = open_regular(directory, entry, path);
    if (!lock_without_waiting(file, path)) return nullptr;
  }
  // The lock is valid even if its owner cannot be written. Whoever reads the words then takes those
  // of an earlier owner for the present ones.
  const std::string_view shown = std::string_view(owner).substr(0, kMaxOwnerBytes);
  if (::ftruncate(file.get(), 0) == 0) [[maybe_unused]]
    const ssize_t written = ::pwrite(file.get(), shown.data(), shown.size(), 0);
  return std::make_unique<FileLock>(std::move(file), absolute);
}

}  // namespace dckpt::posix
