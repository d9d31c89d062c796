#include "strategies/storage/location.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/local_path.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/posix.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;

struct Schemes {
  std::mutex mutex;
  std::map<std::string, LocationFactory, std::less<>> factories{};
};

// Never destroyed: locations may be made during static destruction.
Schemes& schemes() {
  static auto* const instance = new Schemes;
  return *instance;
}

LocationFactory find_factory(std::string_view scheme) {
  const std::lock_guard lock(schemes().mutex);
  const auto found = schemes().factories.find(scheme);
  return found == schemes().factories.end() ? nullptr : found->second;
}

/// Removes a tail that does not change the name: "run/", "run/." and "run/./" are "run".
fs::path without_tail(fs::path path) {
  while ((!path.has_filename() || path.filename() == ".") && path.has_parent_path() &&
         path.has_relative_path())
    path = path.parent_path();
  return path;
}

Location local_location(const fs::path& given) {
  fs::path path = without_tail(given);
  // ".." is resolved as the system does. After a folder that does not exist, ".." cancels that
  // folder.
  if (std::ranges::find(path, "..") != path.end() || path.filename() == ".")
    path = without_tail(fs::weakly_canonical(path));
  if (!path.has_filename()) return Location(posix_storage(path));
  const std::string name = path.filename().string();
  try {
    name_components(name);
  } catch (const CheckpointError& error) {  // an error of the caller, not of a file
    throw_error(ErrorCode::kInvalidArgument, error.message());
  }
  return Location(posix_storage(path.parent_path()), name);
}

}  // namespace

Location::Location(std::shared_ptr<Storage> storage, const std::string& name)
    : storage_(std::move(storage)) {
  if (!storage_) throw_error(ErrorCode::kInvalidArgument, "a location needs a storage, got none");
  if (name.empty()) return;
  name_ = base_name(name);
  if (const std::string above = parent_name(name); !above.empty())
    storage_ = storage_->subtree(above);
}

Location Location::from_path(const fs::path& path) try {
  if (path.empty())
    throw_error(ErrorCode::kInvalidArgument,
                "the path is empty, expected one of a checkpoint or a training root");
  const std::string text = path.string();
  if (const LocationFactory factory = find_factory(scheme_of(text))) return factory(text);
  return local_location(local_path(path));
} catch (...) {
  throw_checkpoint_error();
}

std::shared_ptr<Storage> Location::directory() const {
  return name_.empty() ? storage_ : storage_->subtree(name_);
}

Location Location::operator/(const std::string& name) const {
  return Location(directory(), name);
}

bool Location::is_directory() const {
  const std::optional<FileInfo> found = stat();
  return found && found->kind == FileInfo::Kind::kDirectory;
}

void register_scheme(std::string scheme, LocationFactory factory) {
  if (scheme.empty() || scheme_of(scheme + "://") != scheme || scheme == "file" || !factory) {
    throw_error(ErrorCode::kInvalidArgument, "cannot register the scheme {}{}", quote(scheme),
                factory ? ": expected a letter, then letters, digits, '+', '-' "
                          "and '.', but not 'file', which is built in"
                        : ": it has no factory");
  }
  const std::lock_guard lock(schemes().mutex);
  schemes().factories[std::move(scheme)] = std::move(factory);
}

}  // namespace dckpt
