#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "operations/convert/workers/worker_pool.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The name of a file in the directory of a shared copy that tells where the pool is.
inline constexpr const char* kPoolNote = ".pool";

/// A copy in a hidden directory, whose finished files a pool notes. Safe to use from several
/// threads.
class NotedCopy {
 public:
  /// This process writes into `folder` of `directory`; "" is the directory itself.
  NotedCopy(WorkerPool& pool, std::shared_ptr<Storage> storage, std::string directory,
            std::string folder, bool manifest);

  /// Returns the storage to write through: it knows the digests of files when wrote() is called,
  /// and notes renames.
  const std::shared_ptr<Storage>& storage() const noexcept { return noting_; }

  /// Returns a finished file; empty if it has yet to be written.
  std::optional<FinishedUnit> find(const std::string& file) const { return pool_.find(file); }
  /// Implements ItemSource::wrote(); `source_checked` as in FinishedUnit.
  void wrote(const std::string& file, std::span<const StorageInfo> places, bool source_checked);
  /// Returns the SHA-256 of the data files, if there will be a manifest.
  ManifestDigests digests() const;

  enum class Comparison { kTime, kDigest };
  /// Takes over what other processes have left: undoes their renames, moves finished files to the
  /// names of their units and removes everything else. Notes which are not as they were noted, and
  /// returns whether there are none. Nothing changes if the directory is gone.
  bool take_over(Comparison comparison, int threads);

 private:
  class NotingStorage;
  class DigestedFile;
  void undo_renames();
  std::string place_of(const std::string& name, const FinishedUnit& unit,
                       Comparison comparison) const;
  std::string full(const std::string& name) const;

  WorkerPool& pool_;
  const std::shared_ptr<Storage> storage_;
  const std::string directory_;
  const std::string folder_;
  const bool manifest_;
  std::mutex mutex_;
  std::map<std::string, std::string> digests_;  ///< by full name, of files not yet noted
  const std::shared_ptr<Storage> noting_;
};

}  // namespace dckpt
