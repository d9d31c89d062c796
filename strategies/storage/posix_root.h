#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "strategies/storage/posix_fd.h"

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// An entry of a directory, whether or not it exists. `parent` is empty if a directory above it is
/// missing.
struct DirectoryEntry {
  Fd parent;
  std::string last;
};

/// The directory that contains all names of a storage. Names are walked component by component
/// without following links. `attempt` begins messages: "cannot open the file".
class PosixRoot {
 public:
  explicit PosixRoot(const std::filesystem::path& root);
  /// The directory `name` of `above`.
  PosixRoot(const PosixRoot& above, const std::string& name);

  std::string display_path(const std::string& name) const;
  /// Returns the path of `name`, which does not depend on later changes of the working directory.
  std::filesystem::path absolute(const std::string& name) const { return absolute_ / name; }

  /// Creates the root and its parents where they are missing, and makes their entries durable.
  void make() const;
  /// Returns an empty Fd if the root is missing.
  Fd open(const std::string& attempt) const;
  /// Steps down one directory. Returns an empty Fd if it is missing; refuses links and other files.
  static Fd enter(const Fd& directory, const std::string& component, const std::string& path,
                  const std::string& attempt);
  DirectoryEntry find(const std::string& name, const std::string& attempt) const;
  /// Throws if the parent is missing.
  DirectoryEntry find_parent(const std::string& name, const std::string& attempt) const;
  /// Opens a directory for reading and syncing.
  Fd open_directory(const std::string& name, const std::string& attempt) const;

 private:
  Fd walk(std::span<const std::string_view> components, const std::string& attempt) const;

  std::filesystem::path root_;  ///< as the user spells it
  std::filesystem::path absolute_;
};

}  // namespace dckpt::posix
