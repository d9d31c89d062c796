#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strategies/storage/storage.h"

namespace dckpt {

/// The hidden names beside a name that publishing uses: `.{name}.{purpose}-{token}`. Code that
/// makes another kind of them (a purpose is lower-case letters) uses these functions too.
struct HiddenSibling {
  std::string name;     ///< one component
  std::string purpose;  ///< "saving", "interrupted", "replaced", "tmp", …
  std::string token;    ///< identifies the writer

  friend bool operator==(const HiddenSibling&, const HiddenSibling&) = default;
};
std::string to_string(const HiddenSibling& sibling);
/// Inverse, for names without a part like `.letters-`; empty for anything else.
std::optional<HiddenSibling> parse_hidden_sibling(std::string_view component);

/// Makes a finished directory visible in one step; publish.cpp starts with the numbered protocol
/// and what a crash after each step leaves. One process (rank 0) begins and commits; the other
/// ranks write into `staging()` between.
class Publication {
 public:
  struct Options {
    bool overwrite = false;  ///< replace an existing directory that holds anything; otherwise that
                             ///< throws (already exists). An empty one may always be replaced
    bool sync = true;        ///< fsync directories (files are synced by who writes them)
    /// abandon() keeps what was written as `.{name}.interrupted-{token}`, for adopt().
    bool keep_unfinished = false;
    /// Entries of the directory that is replaced which belong to somebody else: they are moved into
    /// the new one, except where it has an entry of that name, and a warning names them. Called by
    /// commit(), before anything has changed.
    std::function<std::vector<std::string>()> foreign{};
  };

  /// Creates the hidden sibling `.{name}.saving-{token}` of `name` in `storage`. `token`
  /// distinguishes jobs; leftovers of earlier crashes with other tokens are not touched, one with
  /// the same token is removed: two running jobs must not share a token.
  static Publication begin(std::shared_ptr<Storage> storage, std::string name,
                           const std::string& token, Options options);

  /// The same with what an unfinished publication of this name has left: `left`, a hidden sibling
  /// of `name` whose writer has ended, becomes the staging directory. Throws (aborted) if it is
  /// gone.
  static Publication adopt(std::shared_ptr<Storage> storage, std::string name,
                           const std::string& left, const std::string& token, Options options);

  /// Directory to write into, relative to the storage.
  const std::string& staging() const noexcept { return staging_; }

  /// Makes it visible under its name. Throws CheckpointError and leaves what was there before if
  /// any step fails. If that is not possible either, nothing is removed and a warning names the
  /// directories. What was replaced is removed before this returns.
  void commit();
  /// Removes the staging directory, or keeps it (Options::keep_unfinished). Errors are logged only.
  /// Also done by the destructor if nothing was committed.
  void abandon() noexcept;
  /// What is there is worth nothing: it will be removed.
  void discard_unfinished() noexcept { options_.keep_unfinished = false; }

  Publication(Publication&&) noexcept;
  Publication& operator=(Publication&&) = delete;
  ~Publication();

 private:
  Publication(std::shared_ptr<Storage> storage, std::string name, const std::string& token,
              Options options);
  std::shared_ptr<Storage> storage_;
  std::string name_;
  std::string staging_;
  std::string aside_;        ///< for what is replaced, where the storage cannot exchange
  std::string interrupted_;  ///< for what is kept
  Options options_;
  bool open_ = false;
};

/// Moves `names` from one directory to another, except those that are there already, and makes that
/// durable. Returns what it moved.
std::vector<std::string> move_entries(Storage& storage, const std::vector<std::string>& names,
                                      const std::string& from, const std::string& to);

/// A small file that is replaced in one step: it is written under a hidden name and synced first,
/// so that a lack of space fails before the replacement. One process at a time. Throws
/// CheckpointError (io). At any time the name refers to the old content or to all of `content`.
class StagedFile {
 public:
  StagedFile(Storage& storage, std::string name, ByteView content);
  /// Renames it to its name, and makes that durable.
  void commit();

  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  /// Removes it if it was not committed. Errors are logged only.
  ~StagedFile();

 private:
  void remove() noexcept;

  Storage& storage_;
  std::string name_;
  std::string temporary_;
  bool open_ = true;
};

/// Writes a small file atomically and durably: temporary sibling, sync, rename, sync of the
/// directory. For tracker files.
void write_file_atomically(Storage& storage, const std::string& name, ByteView content);

}  // namespace dckpt
