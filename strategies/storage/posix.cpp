#include "strategies/storage/posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/direct_io.h"
#include "strategies/storage/file_lock.h"
#include "strategies/storage/posix_root.h"
#include "strategies/storage/posix_write.h"

namespace dckpt {
namespace {

using posix::DirectoryEntry;
using posix::Fd;
using posix::PosixRoot;
using posix::system_error;

// The longest directory listing that is held in memory.
constexpr std::size_t kMaxDirectoryEntries = std::size_t{1} << 24;

// Smaller files are written through the page cache if the choice is left to the storage.
constexpr std::uint64_t kDirectFrom = std::uint64_t{8} << 20;
using Components = std::vector<std::string_view>;

FileInfo file_info(std::string name, const struct stat& status) {
  const auto kind = S_ISREG(status.st_mode)   ? FileInfo::Kind::kRegular
                    : S_ISDIR(status.st_mode) ? FileInfo::Kind::kDirectory
                                              : FileInfo::Kind::kOther;
  return {.name = std::move(name),
          .kind = kind,
          .size = kind == FileInfo::Kind::kRegular ? static_cast<std::uint64_t>(status.st_size) : 0,
          .modified = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

/// Returns FileInfo::id of a directory. File systems give the numbers of removed inodes to new
/// ones. The handle of a directory tells them apart, and where there are no handles, the time of
/// birth. In FUSE (sshfs, gcsfuse) a directory may get another number when the kernel has forgotten
/// it, so there is none.
std::uint64_t id_of(const Fd& parent, const std::string& entry, const struct stat& status) {
  constexpr decltype(statfs::f_type) kFuse = 0x65735546;  // FUSE_SUPER_MAGIC
  struct statfs system {};
  if (::fstatfs(parent.get(), &system) != 0 || system.f_type == kFuse) return 0;
  Bytes text;
  append_le(text, std::uint64_t{status.st_dev});
  append_le(text, std::uint64_t{status.st_ino});
  struct {
    file_handle head{.handle_bytes = MAX_HANDLE_SZ, .handle_type = 0, .f_handle = {}};
    std::array<std::byte, MAX_HANDLE_SZ> bytes{};
  } handle;
  int mount = 0;
  struct statx born {};
  if (::name_to_handle_at(parent.get(), entry.c_str(), &handle.head, &mount, 0) == 0) {
    const ByteView bytes(handle.bytes);
    text.insert(text.end(), bytes.begin(), bytes.begin() + handle.head.handle_bytes);
  } else if (::statx(parent.get(), entry.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BTIME, &born) == 0 &&
             (born.stx_mask & STATX_BTIME) != 0) {
    append_le(text, static_cast<std::uint64_t>(born.stx_btime.tv_sec));
    append_le(text, std::uint64_t{born.stx_btime.tv_nsec});
  }
  return std::max<std::uint64_t>(fingerprint_of(text).low, 1);
}

/// As file_info(), with the identity of a directory.
FileInfo entry_info(const Fd& parent, const std::string& entry, const struct stat& status) {
  FileInfo info = file_info(entry, status);
  if (info.kind == FileInfo::Kind::kDirectory) info.id = id_of(parent, entry, status);
  return info;
}

/// Returns the names in an open directory, in the order of the file system.
std::vector<std::string> entry_names(Fd directory, const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(directory.get()), ::closedir);
  if (!stream) throw system_error("cannot list the directory", errno, path);
  directory.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr && errno != 0)
      throw system_error("cannot list the directory", errno, path);
    if (entry == nullptr) return names;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == kMaxDirectoryEntries) {
      throw_error(ErrorCode::kCorrupt, {.file = path},
                  "refusing to list the directory: it has more than {} entries",
                  grouped(kMaxDirectoryEntries));
    }
    names.emplace_back(name);
  }
}

/// Chooses the engine. Turns O_DIRECT on and returns true if it is the direct one.
bool start_direct(const Fd& fd, const std::string& path, const CreateOptions& options) {
  const bool wanted = options.engine == IoEngine::kDirect ||
                      (options.engine == IoEngine::kAuto && options.durable &&
                       options.size_hint >= kDirectFrom && posix::profits_from_direct(fd));
  if (!wanted) return false;
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags >= 0 && ::fcntl(fd.get(), F_SETFL, flags | O_DIRECT) == 0) return true;
  if (options.engine == IoEngine::kAuto) return false;
  throw system_error(
      "cannot write past the page cache (O_DIRECT); use the engine 'auto' or 'buffered' on this "
      "file system",
      errno, path, ErrorCode::kUnsupported);
}

ErrorCode code_of(int error) {
  return error == EEXIST || error == EISDIR ? ErrorCode::kAlreadyExists : ErrorCode::kIo;
}

bool flag_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

Fd duplicate(const Fd& fd, const std::string& path) {
  Fd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) throw system_error("cannot list the directory", errno, path);
  return copy;
}

void remove_tree(const Fd& parent, const std::string& entry, const std::string& path,
                 std::size_t depth) {
  if (::unlinkat(parent.get(), entry.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR && errno != EPERM) throw system_error("cannot remove the file", errno, path);
  if (depth == kMaxNameDepth) {
    throw_error(ErrorCode::kUnsupported, {.file = path},
                "cannot remove the directory: it is nested deeper than {} levels", kMaxNameDepth);
  }
  const int unlink_error = errno;
  const Fd directory(
      ::openat(parent.get(), entry.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory)
    throw system_error("cannot remove", errno == ENOTDIR || errno == ELOOP ? unlink_error : errno,
                       path);
  for (const std::string& name : entry_names(duplicate(directory, path), path))
    remove_tree(directory, name, str_format("{}/{}", path, name), depth + 1);
  if (::unlinkat(parent.get(), entry.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    throw system_error("cannot remove the directory", errno, path);
}

class PosixStorage final : public Storage {
 public:
  explicit PosixStorage(const std::filesystem::path& root) : root_(root) {}
  /// The directory `name` of `above`.
  PosixStorage(const PosixStorage& above, const std::string& name) : root_(above.root_, name) {}

  StorageCapabilities capabilities() const override { return {.locks = true}; }
  std::string display_path(const std::string& name) const override {
    return root_.display_path(name);
  }

  std::string absolute(const std::string& name) const override {
    const std::string path = root_.absolute(name).lexically_normal().string();
    return path.size() > 1 && path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
  }

  std::vector<FileInfo> list(const std::string& directory) const override {
    const std::string path = display_path(directory);
    const Fd fd = root_.open_directory(directory, "cannot list the directory");
    std::vector<FileInfo> entries;
    for (const std::string& name : entry_names(duplicate(fd, path), path)) {
      struct stat status {};
      if (::fstatat(fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
        entries.push_back(entry_info(fd, name, status));
      } else if (errno != ENOENT) {  // removed meanwhile
        throw system_error("cannot examine the file", errno, str_format("{}/{}", path, name));
      }
    }
    std::ranges::sort(entries, {}, &FileInfo::name);
    return entries;
  }

  std::optional<FileInfo> stat(const std::string& name) const override {
    const DirectoryEntry place = root_.find(name, "cannot examine the file");
    struct stat status {};
    if (!place.parent) return std::nullopt;
    if (::fstatat(place.parent.get(), place.last.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
      return entry_info(place.parent, place.last, status);
    if (errno == ENOENT) return std::nullopt;
    throw system_error("cannot examine the file", errno, display_path(name));
  }

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    const std::string path = display_path(name);
    const DirectoryEntry place = root_.find(name, "cannot open the file");
    struct stat status {};
    if (!place.parent ||
        ::fstatat(place.parent.get(), place.last.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      const int error = place.parent ? errno : ENOENT;
      throw system_error("cannot open the file", error, path,
                         error == ENOENT ? ErrorCode::kIncomplete : ErrorCode::kIo);
    }
    // The file is examined before it is opened, since opening a device can act on it. The opened
    // file is examined again.
    if (!S_ISREG(status.st_mode)) {
      throw_error(ErrorCode::kCorrupt, {.file = path},
                  "refusing to read: it is {}, not a regular file", posix::kind_of(status.st_mode));
    }
    Fd fd(::openat(place.parent.get(), place.last.c_str(),
                   O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd)
      throw system_error("cannot open the file", errno, path,
                         errno == ENOENT ? ErrorCode::kIncomplete : ErrorCode::kIo);
    return posix::readable_file(std::move(fd), path);
  }

  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    root_.make();
    const std::string path = display_path(name);
    const DirectoryEntry place = root_.find_parent(name, "cannot create the file");
    Fd fd(::openat(place.parent.get(), place.last.c_str(),
                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!fd) throw system_error("cannot create the file", errno, path, code_of(errno));
    try {
      return start_direct(fd, path, options) ? posix::direct_file(std::move(fd), path, options)
                                             : posix::buffered_file(std::move(fd), path, options);
    } catch (...) {
      ::unlinkat(place.parent.get(), place.last.c_str(), 0);
      throw;
    }
  }

  void make_directory(const std::string& name) override {
    const Components components = directory_components(name);
    root_.make();
    std::string path = display_path("");
    Fd directory = root_.open("cannot create the directory");
    for (const std::string_view component : components) {
      const std::string entry(component);
      path += "/" + entry;
      if (::mkdirat(directory.get(), entry.c_str(), 0777) != 0 && errno != EEXIST)
        throw system_error("cannot create the directory", errno, path);
      directory = PosixRoot::enter(directory, entry, path, "cannot create the directory");
      if (!directory) throw system_error("cannot create the directory", ENOENT, path);
    }
  }

  void rename(const std::string& from, const std::string& to) override {
    const std::string attempt = "cannot rename to " + quote(to);
    const DirectoryEntry source = root_.find_parent(from, attempt);
    const DirectoryEntry target = root_.find_parent(to, attempt);
    struct stat status {};
    if (::fstatat(source.parent.get(), source.last.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      throw system_error(attempt, errno, display_path(from));
    const auto move = [&](unsigned flags) {
      return ::renameat2(source.parent.get(), source.last.c_str(), target.parent.get(),
                         target.last.c_str(), flags) == 0
                 ? 0
                 : errno;
    };
    if (!S_ISDIR(status.st_mode)) {
      if (const int error = move(0))
        throw system_error(attempt, error, display_path(from), code_of(error));
      return;
    }
    // A plain rename would replace an empty directory.
    int error = move(RENAME_NOREPLACE);
    if (flag_unsupported(error)) {
      error = ::fstatat(target.parent.get(), target.last.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0
                  ? EEXIST
              : errno == ENOENT ? move(0)
                                : errno;
    }
    if (error != 0) throw system_error(attempt, error, display_path(from), code_of(error));
  }

  bool exchange(const std::string& a, const std::string& b) override {
    const std::string attempt = "cannot exchange it with " + quote(b);
    const DirectoryEntry first = root_.find_parent(a, attempt);
    const DirectoryEntry second = root_.find_parent(b, attempt);
    if (::renameat2(first.parent.get(), first.last.c_str(), second.parent.get(),
                    second.last.c_str(), RENAME_EXCHANGE) == 0)
      return true;
    if (flag_unsupported(errno)) return false;
    throw system_error(attempt, errno, display_path(a));
  }

  void remove_all(const std::string& name) override {
    const DirectoryEntry place = root_.find(name, "cannot remove");
    if (place.parent) remove_tree(place.parent, place.last, display_path(name), 0);
  }

  void sync_directory(const std::string& directory) override {
    const Fd fd = root_.open_directory(directory, "cannot make the directory durable");
    if (::fsync(fd.get()) != 0)
      throw system_error("cannot make the directory durable (fsync)", errno,
                         display_path(directory));
  }

  std::optional<FileInfo> stat_target(const std::string& name) const override {
    const Components components = directory_components(name);
    struct stat status {};
    if (::stat(root_.absolute(name).c_str(), &status) == 0)
      return file_info(std::string(components.empty() ? std::string_view() : components.back()),
                       status);
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return std::nullopt;
    throw system_error("cannot examine the file", errno, display_path(name));
  }

  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return std::make_shared<PosixStorage>(*this, name);
  }

  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    const DirectoryEntry place = root_.find_parent(name, "cannot open the lock file");
    return posix::lock_file(place.parent, place.last, display_path(name),
                            root_.absolute(name).string(), owner);
  }

  std::optional<std::uint64_t> available_space() const override {
    std::filesystem::path directory = root_.absolute("");  // or its closest existing parent
    std::error_code ignored;
    while (!std::filesystem::exists(directory, ignored) && directory.has_relative_path())
      directory = directory.parent_path();
    struct statvfs system {};
    if (::statvfs(directory.c_str(), &system) != 0) return std::nullopt;
    return std::uint64_t{system.f_bavail} * system.f_frsize;
  }

 private:
  PosixRoot root_;
};

}  // namespace

std::shared_ptr<Storage> posix_storage(const std::filesystem::path& root) {
  return std::make_shared<PosixStorage>(root);
}

}  // namespace dckpt
