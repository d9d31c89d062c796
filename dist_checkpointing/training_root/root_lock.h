#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "strategies/storage/location.h"

namespace dckpt {

/// The file in a training root that the job which saves there locks. It stays, and says who has or
/// had the root.
inline constexpr const char* kRootLock = ".dckpt.lock";

/// The file in a checkpoint that a removal of keys locks. It exists only while a removal runs, or
/// after a killed one.
inline constexpr const char* kRemovalLock = ".dckpt.remove.lock";

/// One of these words precedes the token of the owner in a lock.
inline constexpr std::string_view kJob = "job ";
inline constexpr std::string_view kDoctor = "doctor ";  ///< it saves nothing

/// Locks the file `name` for this process. Returns null if the storage has no locks. Throws
/// CheckpointError: (aborted) if a job holds the lock, with what it does and `advice`; (io).
[[nodiscard]] std::unique_ptr<StorageLock> lock_for_job(Storage& storage, const std::string& name,
                                                        std::string_view what_it_does,
                                                        std::string_view advice,
                                                        std::string_view who = kJob);

/// Locks a training root for this process. Returns null if the storage has no locks. Throws
/// CheckpointError: (aborted) naming the job that holds the lock; (io).
[[nodiscard]] std::unique_ptr<StorageLock> lock_root(const Location& root,
                                                     std::string_view who = kJob);

}  // namespace dckpt
