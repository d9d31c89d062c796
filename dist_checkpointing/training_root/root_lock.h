#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "strategies/storage/location.h"

namespace dckpt {

/// The file in a training root that the job which saves there locks. It stays, and says who has or
/// had the root.
inline constexpr const char* kRootLock = ".dckpt.lock";

/// The file in a checkpoint that a job locks while it changes or replaces the checkpoint. It exists
/// only meanwhile, or after a job that was killed.
inline constexpr const char* kRemovalLock = ".dckpt.remove.lock";

/// One of these words precedes the token of the owner in a lock.
inline constexpr std::string_view kJob = "job ";
inline constexpr std::string_view kDoctor = "doctor ";  ///< it saves nothing

/// Returns how the owner of a lock in this process is named: one of the words above and a token.
std::string lock_owner(std::string_view who = kJob);

/// Locks the file `name` for this process. Returns null if the storage has no locks. Throws
/// CheckpointError: (aborted) if a job holds the lock, with what it does and `advice`; (io).
/// `owner` is as from lock_owner().
[[nodiscard]] std::unique_ptr<StorageLock> lock_for_job(Storage& storage, const std::string& name,
                                                        std::string_view what_it_does,
                                                        std::string_view advice,
                                                        const std::string& owner = lock_owner());

/// Locks a training root for this process. A job waits, for up to half an hour and with a warning
/// every minute, until a tool (kDoctor) has ended. Returns null if the storage has no locks. Throws
/// CheckpointError: (aborted) naming the job that holds the lock; (io).
[[nodiscard]] std::unique_ptr<StorageLock> lock_root(const Location& root,
                                                     const std::string& owner = lock_owner());

/// Returns the words in the lock of a root; empty if there are none.
std::string lock_words(const Storage& root);

/// Excludes other jobs that would change or replace a checkpoint, during its lifetime. Its file is
/// removed at the end, unless the checkpoint was replaced.
class ChangeLock {
 public:
  /// Locks the directory of a checkpoint. Throws CheckpointError: (aborted) if another job changes
  /// or replaces it; (io).
  explicit ChangeLock(std::shared_ptr<Storage> checkpoint);
  ~ChangeLock();
  ChangeLock(const ChangeLock&) = delete;
  ChangeLock& operator=(const ChangeLock&) = delete;

  /// Returns false if the storage has no locks, so that nobody is excluded.
  bool excludes_others() const noexcept { return lock_ != nullptr; }
  /// Throws CheckpointError (aborted) if the checkpoint was moved or replaced in spite of the lock.
  void require_held() const;

 private:
  const std::shared_ptr<Storage> checkpoint_;
  const std::unique_ptr<StorageLock> lock_;
};

}  // namespace dckpt
