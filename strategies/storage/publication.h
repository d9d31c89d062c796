#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/storage/storage.h"

namespace dckpt {

/// What the names of files begin with that mark a directory as written in place by one job.
inline constexpr const char* kClaimPrefix = ".dckpt.saving-";

/// Makes a finished directory visible in one step. One process (rank 0) begins and commits; the
/// other ranks write into `staging()` between. There are two ways, each with a numbered protocol
/// and what a crash after each step leaves: by rename (publish_by_rename.cpp), and in place, where
/// a storage cannot rename (publish_in_place.cpp).
class Publication {
 public:
  struct Options {
    bool overwrite = false;  ///< replace an existing directory that holds anything; otherwise that
                             ///< throws (already exists). An empty one may always be replaced
    bool sync = true;        ///< fsync directories (files are synced by who writes them)
    /// By rename only: abandon() keeps what was written as `.{name}.interrupted-{token}`, for
    /// adopt().
    bool keep_unfinished = false;
    /// Entries of the directory that is replaced which belong to somebody else: they are kept,
    /// except where the new one has an entry of that name, and a warning names them. Called before
    /// anything of it has changed.
    std::function<std::vector<std::string>()> foreign{};
    /// In place only: files whose removal makes a directory incomplete; they go first.
    std::vector<std::string> markers{};
    /// In place only: whether the writer with this token has certainly ended, so that another one
    /// may take its place. By default nobody is known to have.
    std::function<bool(std::string_view token)> has_ended{};
  };

  /// `token` distinguishes jobs; leftovers of earlier crashes with other tokens are not touched,
  /// one with the same token is removed: two running jobs must not share a token. In place, throws
  /// (aborted) if another job writes there.
  [[nodiscard]] static Publication begin(std::shared_ptr<Storage> storage, std::string name,
                                         const std::string& token, Options options);

  /// By rename: the same with what an unfinished publication of this name has left: `left`, a
  /// hidden sibling of `name` whose writer has ended, becomes the staging directory. Throws
  /// (aborted) if it is gone.
  [[nodiscard]] static Publication adopt(std::shared_ptr<Storage> storage, std::string name,
                                         const std::string& left, const std::string& token,
                                         Options options);

  /// Directory to write into, relative to the storage.
  const std::string& staging() const noexcept;

  /// Makes it visible under its name. `write_marker` writes into staging() the file that tells
  /// readers that all is there; nothing is written after it. Throws CheckpointError and leaves what
  /// was there before if any step fails (by rename). If that is not possible either, nothing is
  /// removed and a warning names the directories. What was replaced is removed before this returns.
  void commit(const std::function<void()>& write_marker = {});
  /// Removes the staging directory, or keeps it (Options::keep_unfinished). Errors are logged only.
  /// Also done by the destructor if nothing was committed.
  void abandon() noexcept;
  /// What is there is worth nothing: it will be removed.
  void discard_unfinished() noexcept;

  Publication(Publication&&) noexcept;
  Publication& operator=(Publication&&) = delete;
  ~Publication();

  class Body;

 private:
  explicit Publication(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

/// Moves `names` from one directory to another, except those that are there already, and makes that
/// durable. Returns what it moved. For storages with rename.
std::vector<std::string> move_entries(Storage& storage, const std::vector<std::string>& names,
                                      const std::string& from, const std::string& to);

}  // namespace dckpt
