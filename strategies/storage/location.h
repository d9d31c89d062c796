#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mapping/base/api.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// The place of a checkpoint or a training root: a name in a storage. Functions that take a
/// Location also accept a path, or "scheme://…" with a registered scheme.
///
///   load(state, "run/iter_0001000");
///   load(state, Location(memory, "run") / "iter_0001000");
///
/// A cheap value; nothing needs to exist there.
class Location {
 public:
  /// A location in the local file system, given as /a/b or `file:///a/b`, or one of a registered
  /// scheme. Throws CheckpointError: (unsupported) for an unknown scheme, which would otherwise
  /// name a local folder "s3:"; (invalid argument) for "".
  template <std::convertible_to<std::filesystem::path> Path>
  Location(const Path& path) : Location(from_path(path)) {}

  /// `name` may be a name in a directory. It is "" for the root of the storage.
  explicit Location(std::shared_ptr<Storage> storage, const std::string& name = "");

  /// The storage, and the name in its root: one component, or "" for the root itself.
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }
  const std::string& name() const noexcept { return name_; }

  /// Returns this directory as a separate storage, whether or not it exists yet; links are
  /// followed.
  std::shared_ptr<Storage> directory() const;
  /// Returns the location `name` in this directory.
  Location operator/(const std::string& name) const;

  /// Returns the entry at this location, following links; empty if there is none. Throws (io).
  std::optional<FileInfo> stat() const { return storage_->stat_target(name_); }
  bool is_directory() const;

  std::string display() const { return storage_->display_path(name_); }  ///< as the user spells it
  /// The same text in every process for the same place.
  std::string absolute() const { return storage_->absolute(name_); }

  /// True if both have the same absolute name.
  friend bool operator==(const Location& a, const Location& b) {
    return a.absolute() == b.absolute();
  }

 private:
  static Location from_path(const std::filesystem::path& path);

  std::shared_ptr<Storage> storage_;
  std::string name_;
};

/// Creates the location for "scheme://…", which is passed as written.
using LocationFactory = std::function<Location(std::string_view url)>;

/// Makes `scheme` valid wherever a location is expected; replaces an earlier registration. Throws
/// CheckpointError (invalid argument) for an invalid scheme and for "file", which is built in. Safe
/// to call from several threads.
void register_scheme(std::string scheme, LocationFactory factory);

}  // namespace dckpt
