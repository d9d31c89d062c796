#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/base/io_engine.h"
#include "mapping/base/readable_file.h"

namespace DCKPT_API dckpt {

/// Consecutive bytes of a file, from a given offset on, that one thread writes. Destroying it
/// without close() leaves the contents unspecified.
class FileSection {
 public:
  virtual ~FileSection() = default;
  /// Appends the parts one after the other. Throws CheckpointError (io) with errno's text, the
  /// offset and, for a full disk, the sizes.
  virtual void append(std::span<const ByteView> parts) = 0;
  void append(ByteView part) { append({&part, 1}); }
  /// Returns the offset in the file of the next byte.
  virtual std::uint64_t position() const noexcept = 0;
  virtual void close() = 0;
};

/// A file being written by one thread, front to back, or by several in sections.
class WritableFile : public FileSection {
 public:
  virtual const std::string& name() const noexcept = 0;
  /// Makes the content durable.
  virtual void sync() = 0;
  /// Returns the I/O engine of the file; kAuto if unknown.
  virtual IoEngine engine() const noexcept { return IoEngine::kAuto; }
  /// Begins a section at `offset`. Sections may be written concurrently, in any order. They must
  /// not overlap and leave no gap; each must be closed before the file is synced or closed, and
  /// nothing may be appended to the file itself. The file ends with the furthest section. Returns
  /// null if the file can only be written front to back, as by default. Safe to call from several
  /// threads.
  virtual std::unique_ptr<FileSection> section(std::uint64_t /*offset*/) { return nullptr; }
};

/// Knowledge about a file at its creation.
struct CreateOptions {
  /// Space to reserve if possible, so that a full disk is found early.
  std::uint64_t size_hint = 0;
  /// sync() will follow, so that appended data may be written to the disk meanwhile.
  bool durable = false;
  IoEngine engine = IoEngine::kAuto;
};

struct FileInfo {
  /// Symlinks are kOther, so are FIFOs and devices.
  enum class Kind : std::uint8_t { kRegular, kDirectory, kOther };
  std::string name;  ///< one path component
  Kind kind = Kind::kRegular;
  std::uint64_t size = 0;
  /// The time of the last change of the content, in nanoseconds since 1970; 0 if the storage does
  /// not know.
  std::int64_t modified = 0;
  /// Identifies a directory whatever its name: renames keep it, and no other directory of the
  /// storage has or has had it. 0 for files, and if the storage does not know. Publishing undoes
  /// nothing in a storage without it.
  std::uint64_t id = 0;
};

/// The abilities of a storage and their price. Callers check them in advance instead of catching
/// exceptions.
struct StorageCapabilities {
  /// rename() moves a file or a directory in one step. Without it, as in object stores, rename()
  /// and exchange() are never called. A file then appears whole at its close(), which fails as
  /// create() does if a file of this name exists by then. Checkpoints are written in place and
  /// become complete with their last file.
  bool rename = true;
  /// exchange() may succeed; it reports itself if the underlying file system does not support it.
  bool exchange = true;
  bool locks = false;  ///< lock() may succeed
  /// Two reads of a file are joined if no more bytes than this lie between them: reading those
  /// costs less than another request. Never less than the value of a local disk, 2 KiB.
  std::uint64_t cheap_gap = 0;
  /// The number of requests that the storage serves at once without slowing down. Reading tensors
  /// uses that many threads even if fewer are asked for, as far as the memory for reads allows:
  /// threads that wait for a network need no core.
  int concurrency = 1;
};

/// A lock that is held for the lifetime of the object.
class StorageLock {
 public:
  virtual ~StorageLock() = default;
  /// Returns whether others who take the lock by its name are still excluded: false once the locked
  /// file, or a directory above it, has been removed, moved or replaced. Throws CheckpointError
  /// (io). By default true.
  virtual bool is_held() const { return true; }
};

/// A tree of files under one root. Names are relative, with components separated by '/' that are
/// never empty, "." or "..". Any other name throws CheckpointError (corrupt) before the system is
/// asked. Safe to use from several threads.
class Storage : public std::enable_shared_from_this<Storage> {
 public:
  virtual ~Storage() = default;
  virtual StorageCapabilities capabilities() const = 0;
  virtual std::string display_path(
      const std::string& name) const = 0;  ///< the full path for messages
  /// Returns the same text in every process for the same place. By default display_path().
  virtual std::string absolute(const std::string& name) const { return display_path(name); }

  /// Returns the entries of a directory in name order, "" for the root. Throws (io); (corrupt) for
  /// a file. In a storage without rename the list may be late by some seconds; all other functions
  /// see at once what has been created or removed.
  virtual std::vector<FileInfo> list(const std::string& directory) const = 0;
  /// Does not follow a symlink in the last component. Returns an empty result if nothing is there.
  virtual std::optional<FileInfo> stat(const std::string& name) const = 0;
  /// Opens a regular file without following a symlink in any component; never blocks on a FIFO.
  /// Throws (incomplete) if it is missing, (corrupt) if it is not a regular file.
  virtual std::unique_ptr<ReadableFile> open(const std::string& name) const = 0;
  /// Creates a new file; throws (already exists), (io) if the space cannot be reserved,
  /// (unsupported) for an engine that does not exist.
  virtual std::unique_ptr<WritableFile> create(const std::string& name,
                                               const CreateOptions& options = {}) = 0;
  /// Makes a directory with its parents. Does nothing if it exists.
  virtual void make_directory(const std::string& name) = 0;
  /// Renames a file or directory atomically. A file replaces a file; anything else at `to` stays,
  /// and the call throws (already exists).
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Swaps two directories atomically. Returns false, and changes nothing, if the file system
  /// cannot do that.
  [[nodiscard]] virtual bool exchange(const std::string& a, const std::string& b) = 0;
  /// Removes a file or a tree without following links. Does nothing if it is missing.
  virtual void remove_all(const std::string& name) = 0;
  /// Makes creations, renames and removals in a directory durable.
  virtual void sync_directory(const std::string& directory) = 0;

  // Optional functions.

  /// Returns the entry at `name` ("" for the root) after following links; empty if there is none,
  /// or for a link that leads nowhere. Throws (io). By default there are no links, and the root
  /// exists.
  virtual std::optional<FileInfo> stat_target(const std::string& name) const;
  /// Returns the directory `name`, which need not exist yet, as a separate storage; a link to a
  /// directory is followed. Creating something in it first creates the directory, durably. By
  /// default it is a view of this storage, which must be owned by a shared_ptr; `name` then counts
  /// towards the limits of names.
  virtual std::shared_ptr<Storage> subtree(const std::string& name);
  /// Takes the lock `name` without waiting; it excludes other holders in this process too. `owner`
  /// identifies the holder as text for messages. Returns null if there are no locks, as by default,
  /// or if the file system refuses them, which a warning reports. Throws CheckpointError: (aborted)
  /// if it is taken, with its owner's text; (corrupt) if the name refers to something else; (io).
  [[nodiscard]] virtual std::unique_ptr<StorageLock> lock(const std::string& name,
                                                          const std::string& owner);
  /// Creates or replaces a small file in one step and durably: whoever opens it finds the old
  /// content or all of the new. One process at a time may call it. By default a hidden sibling is
  /// written and renamed; a storage without rename must override it.
  virtual void put(const std::string& name, ByteView content);
  /// Returns the number of bytes that can still be written; empty if unknown, as by default.
  virtual std::optional<std::uint64_t> available_space() const { return std::nullopt; }
};

}  // namespace dckpt
