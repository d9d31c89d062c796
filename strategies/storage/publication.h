#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/storage/storage.h"

namespace dckpt {

/// The prefix of files that mark a directory as written in place by one job.
inline constexpr const char* kClaimPrefix = ".dckpt.saving-";

/// Makes a finished directory visible in one step. One process (rank 0) begins and commits; the
/// other ranks write into `staging()` in between. There are two ways, each with a numbered protocol
/// that says what a crash after each step leaves: by rename (publish_by_rename.cpp), and in place,
/// for a storage that cannot rename (publish_in_place.cpp).
class Publication {
 public:
  struct Options {
    /// Replaces an existing directory that holds anything; otherwise such a directory throws
    /// (already exists). An empty one may always be replaced.
    bool overwrite = false;
    /// Syncs directories with fsync (the writers of files sync them).
    bool sync = true;
    /// Makes abandon() keep the written files as `.{name}.interrupted-{token}`, for adopt(). Has an
    /// effect by rename only.
    bool keep_unfinished = false;
    /// Returns entries of the replaced directory that belong to somebody else. They are kept,
    /// except where the new directory has an entry of that name, and a warning names them. Called
    /// before anything in the replaced directory has changed.
    std::function<std::vector<std::string>()> foreign{};
    /// Called in begin() with the directory that is to be replaced; throws to prevent that. By
    /// rename only.
    std::function<void(const FileInfo& old)> may_replace{};
    /// The files whose removal makes a directory incomplete; they go first. Used in place only.
    std::vector<std::string> markers{};
    /// Returns whether the writer with this token has certainly ended, so that another one may take
    /// its place. By default no writer is known to have ended. Used in place only.
    std::function<bool(std::string_view token)> has_ended{};
    /// The time without a renewal of its claim, by the clock of the storage, after which a writer
    /// has ended. A writer that was stopped for longer publishes nothing. Used in place only.
    std::chrono::milliseconds lease{std::chrono::minutes(2)};
    /// Kept until the publication ends, such as a lock.
    std::shared_ptr<const void> held{};
  };

  /// `token` distinguishes jobs: two running jobs must not share one. Leftovers of earlier crashes
  /// are removed if they have the same token, and not touched otherwise. In place, throws (aborted)
  /// if another job is writing there.
  [[nodiscard]] static Publication begin(std::shared_ptr<Storage> storage, std::string name,
                                         const std::string& token, Options options);

  /// Begins with the leftover `left` of an unfinished publication of this name, a hidden sibling of
  /// `name` whose writer has ended, as the staging directory. Needs a storage with rename. Throws
  /// (aborted) if the leftover is gone.
  [[nodiscard]] static Publication adopt(std::shared_ptr<Storage> storage, std::string name,
                                         const std::string& left, const std::string& token,
                                         Options options);

  /// The directory to write into, relative to the storage.
  const std::string& staging() const noexcept;

  /// Makes the directory visible under its name. `write_marker` writes into staging() the file that
  /// tells readers that the directory is complete; nothing is written after it. Throws
  /// CheckpointError if any step fails, and (aborted) if another job has published under this name
  /// since begin(), or has taken the staging directory; by rename, the previous content of the name
  /// is then restored. If that is not possible either, nothing is removed and a warning names the
  /// directories. The replaced directory is removed before this returns.
  void commit(const std::function<void()>& write_marker = {});
  /// Removes the staging directory, or keeps it (Options::keep_unfinished). Errors are only logged.
  /// The destructor calls it if nothing was committed.
  void abandon() noexcept;
  /// Marks the staging directory as worthless, so that abandon() removes it.
  void discard_unfinished() noexcept;

  Publication(Publication&&) noexcept;
  Publication& operator=(Publication&&) = delete;
  ~Publication();

  class Body;

 private:
  explicit Publication(std::unique_ptr<Body> body);
  static Publication of(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

/// Moves `names` from one directory to another, except those that exist there, and makes that
/// durable. Returns the names moved. For storages with rename.
std::vector<std::string> move_entries(Storage& storage, const std::vector<std::string>& names,
                                      const std::string& from, const std::string& to);

}  // namespace dckpt
