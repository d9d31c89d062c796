#pragma once

#include <memory>

#include "strategies/storage/location.h"

namespace dckpt {

/// The file in a training root that the job which saves there locks. It stays, and says who has or
/// had the root.
inline constexpr const char* kRootLock = ".dckpt.lock";

/// Locks a training root for this process. Returns null if the storage has no locks. Throws
/// CheckpointError: (aborted) naming the job that holds the lock; (io).
[[nodiscard]] std::unique_ptr<StorageLock> lock_root(const Location& root);

}  // namespace dckpt
