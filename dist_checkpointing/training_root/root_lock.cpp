#include "dist_checkpointing/training_root/root_lock.h"

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"

namespace dckpt {

std::unique_ptr<StorageLock> lock_root(const Location& root) try {
  return root.directory()->lock(kRootLock, "job " + staging_token());
} catch (const CheckpointError& error) {
  if (error.code() != ErrorCode::kAborted) throw;
  throw CheckpointError(error.code(),
                        str_format("another job saves to this training root ({}): wait until it "
                                   "has ended, or give this one a root of its own",
                                   error.message()),
                        {.file = root.display()});
}

}  // namespace dckpt
