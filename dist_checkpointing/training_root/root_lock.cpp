#include "dist_checkpointing/training_root/root_lock.h"

#include <exception>
#include <utility>

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/warn_if_possible.h"

namespace dckpt {

std::unique_ptr<StorageLock> lock_for_job(Storage& storage, const std::string& name,
                                          std::string_view what_it_does, std::string_view advice,
                                          const std::string& owner) try {
  return storage.lock(name, owner);
} catch (const CheckpointError& error) {
  if (error.code() != ErrorCode::kAborted) throw;
  throw CheckpointError(
      error.code(), str_format("another job {} ({}); {}", what_it_does, error.message(), advice),
      {.file = storage.display_path("")});
}

std::unique_ptr<StorageLock> lock_root(const Location& root, const std::string& owner) {
  return lock_for_job(*root.directory(), kRootLock, "has this training root",
                      "wait until it has ended, or give this one a root of its own", owner);
}

std::string lock_words(const Storage& root) try {
  constexpr std::uint64_t kMaxWords = 4096;
  if (!root.stat(kRootLock)) return "";
  return std::string(as_text(ByteView(read_file(*root.open(kRootLock), kMaxWords))));
} catch (const CheckpointError&) {
  return "";  // they are for information
}

std::string lock_owner(std::string_view who) {
  return std::string(who) + staging_token();
}

ChangeLock::ChangeLock(std::shared_ptr<Storage> checkpoint)
    : checkpoint_(std::move(checkpoint)),
      lock_(lock_for_job(*checkpoint_, kRemovalLock, "changes or replaces this checkpoint",
                         "nothing was changed, try again when it has ended")) {}

ChangeLock::~ChangeLock() {
  try {
    if (lock_ && lock_->is_held()) checkpoint_->remove_all(kRemovalLock);
  } catch (const std::exception& error) {
    warn_if_possible(
        [&] { return "a lock file could not be removed: " + std::string(error.what()); });
  }
}

void ChangeLock::require_held() const {
  if (lock_ == nullptr || lock_->is_held()) return;
  throw CheckpointError(ErrorCode::kAborted,
                        "another job has moved or replaced the checkpoint meanwhile; look at what "
                        "is there now, and try again",
                        {.file = checkpoint_->display_path("")});
}

}  // namespace dckpt
