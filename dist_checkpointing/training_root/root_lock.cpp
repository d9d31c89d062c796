#include "dist_checkpointing/training_root/root_lock.h"

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"

namespace dckpt {

std::unique_ptr<StorageLock> lock_for_job(Storage& storage, const std::string& name,
                                          std::string_view what_it_does, std::string_view advice,
                                          std::string_view who) try {
  return storage.lock(name, std::string(who) + staging_token());
} catch (const CheckpointError& error) {
  if (error.code() != ErrorCode::kAborted) throw;
  throw CheckpointError(
      error.code(), str_format("another job {} ({}); {}", what_it_does, error.message(), advice),
      {.file = storage.display_path("")});
}

std::unique_ptr<StorageLock> lock_root(const Location& root, std::string_view who) {
  return lock_for_job(*root.directory(), kRootLock, "has this training root",
                      "wait until it has ended, or give this one a root of its own", who);
}

}  // namespace dckpt
