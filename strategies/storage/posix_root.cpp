#include "strategies/storage/posix_root.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/local_path.h"
#include "mapping/base/storage_name.h"

namespace dckpt::posix {

PosixRoot::PosixRoot(const std::filesystem::path& root)
    : root_(local_path(root)), absolute_(std::filesystem::absolute(root_.empty() ? "." : root_)) {}

PosixRoot::PosixRoot(const PosixRoot& above, const std::string& name)
    : root_(above.display_path(name)), absolute_(above.absolute_ / name) {
  name_components(name);
}

std::string PosixRoot::display_path(const std::string& name) const {
  const std::string root = root_.string();
  if (root.empty()) return name.empty() ? "." : name;
  return name.empty() ? root : root.ends_with('/') ? root + name : str_format("{}/{}", root, name);
}

Fd PosixRoot::open(const std::string& attempt) const {
  Fd root(::open(absolute_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root && errno != ENOENT) throw system_error(attempt, errno, display_path(""));
  return root;
}

Fd PosixRoot::enter(const Fd& directory, const std::string& component, const std::string& path,
                    const std::string& attempt) {
  Fd next(
      ::openat(directory.get(), component.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (next || errno == ENOENT) return next;
  const int error = errno;
  struct stat status {};
  if ((error == ELOOP || error == ENOTDIR) &&
      ::fstatat(directory.get(), component.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    const std::string advice =
        S_ISLNK(status.st_mode) ? "; links inside a checkpoint are not followed" : "";
    throw_error(ErrorCode::kCorrupt, {.file = path},
                "{}: a component of the path is {}, not a directory{}", attempt,
                kind_of(status.st_mode), advice);
  }
  throw system_error(attempt, error, path);
}

Fd PosixRoot::walk(std::span<const std::string_view> components, const std::string& attempt) const {
  Fd directory = open(attempt);
  std::string path = display_path("");
  for (const std::string_view component : components) {
    if (!directory) return directory;
    const std::string entry(component);
    path += "/" + entry;
    directory = enter(directory, entry, path, attempt);
  }
  return directory;
}

DirectoryEntry PosixRoot::find(const std::string& name, const std::string& attempt) const {
  std::vector<std::string_view> components = name_components(name);
  std::string last(components.back());
  components.pop_back();
  return {walk(components, attempt), std::move(last)};
}

DirectoryEntry PosixRoot::find_parent(const std::string& name, const std::string& attempt) const {
  DirectoryEntry place = find(name, attempt);
  if (!place.parent) throw system_error(attempt, ENOENT, display_path(name));
  return place;
}

Fd PosixRoot::open_directory(const std::string& name, const std::string& attempt) const {
  const Fd directory = walk(directory_components(name), attempt);
  if (!directory) throw system_error(attempt, ENOENT, display_path(name));
  // `directory` is only a handle of the path; `readable` can be read and synced.
  Fd readable(::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!readable) throw system_error(attempt, errno, display_path(name));
  return readable;
}

void PosixRoot::make() const {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  for (std::filesystem::path path = absolute_; !std::filesystem::exists(path, ignored);
       path = path.parent_path()) {
    missing.push_back(path);
    if (path == path.parent_path()) break;
  }
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    if (::mkdir(path->c_str(), 0777) != 0 && errno != EEXIST)
      throw system_error("cannot create the directory", errno, path->string());
    const Fd parent(::open(path->parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent || ::fsync(parent.get()) != 0)
      throw system_error("cannot make the directory durable", errno, path->parent_path().string());
  }
}

}  // namespace dckpt::posix
