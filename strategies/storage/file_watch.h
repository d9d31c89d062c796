#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "strategies/storage/storage.h"

namespace dckpt {

/// The sizes and times of files when they were first seen. A reader of several files, or of one in
/// several steps, notices with it that somebody replaced them meanwhile, so that it does not take
/// the parts of two states for one. Safe to use from several threads.
class FileWatch {
 public:
  /// Notes a file unless it is known, and returns it as it was first seen; empty if it is missing.
  std::optional<FileInfo> note(const Storage& storage, const std::string& name);
  /// Notes a file that is about to be read, and compares it from now on.
  void compare(const Storage& storage, const std::string& name);

  /// Throws CheckpointError (aborted), which ends with `advice`, if a file that was read is not as
  /// it was first seen. The second function leaves out those that were last read before its
  /// previous call.
  void require_unchanged(std::string_view advice) const;
  void require_unchanged_since_last(std::string_view advice);

 private:
  struct Seen {
    std::shared_ptr<const Storage> storage;
    std::string name;
    std::optional<FileInfo> info;
    bool is_read = false;
  };

  static void require_unchanged(const Seen& file, std::string_view advice);

  mutable std::mutex mutex_;
  std::map<std::string, Seen> files_;  ///< by absolute name
  std::set<std::string> recent_;       ///< read since the last comparison
};

/// Returns a view of `storage` whose files are noted when they are opened.
std::shared_ptr<Storage> watched_storage(std::shared_ptr<Storage> storage,
                                         std::shared_ptr<FileWatch> watch);

}  // namespace dckpt
