#include "dist_checkpointing/training_root/root_lock.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/warn_if_possible.h"

namespace dckpt {
namespace {

constexpr std::chrono::milliseconds kLookAfter{100};
constexpr std::chrono::minutes kRemindAfter{1};
constexpr std::chrono::minutes kPatience{30};  // with a tool
/// A new holder writes its name after it has got the lock.
constexpr std::chrono::seconds kHandover{2};

std::string_view token_of(std::string_view owner) {
  return owner.substr(owner.rfind(' ') + 1);
}

}  // namespace

std::unique_ptr<StorageLock> lock_for_job(Storage& storage, const std::string& name,
                                          std::string_view what_it_does, std::string_view advice,
                                          const std::string& owner) try {
  return storage.lock(name, owner);
} catch (const CheckpointError& error) {
  if (error.code() != ErrorCode::kAborted) throw;
  throw_error(error.code(), {.file = storage.display_path("")}, "another job {} ({}); {}",
              what_it_does, error.message(), advice);
}

std::unique_ptr<StorageLock> lock_root(const Location& root, const std::string& owner) {
  using Clock = std::chrono::steady_clock;
  const std::shared_ptr<Storage> storage = root.directory();
  const Clock::time_point begin = Clock::now();
  for (Clock::duration said = -kRemindAfter;; std::this_thread::sleep_for(kLookAfter)) {
    try {
      return lock_for_job(*storage, kRootLock, "has this training root",
                          "wait until it has ended, or give this one a root of its own", owner);
    } catch (const CheckpointError& error) {
      const Clock::duration waited = Clock::now() - begin;
      const std::string holder = lock_words(*storage);
      const bool is_tool = holder.starts_with(kDoctor);
      const bool may_end = waited < (is_tool ? Clock::duration(kPatience) : kHandover) &&
                           (is_tool || made_by_ended_process(token_of(holder)));
      if (!owner.starts_with(kJob) || error.code() != ErrorCode::kAborted || !may_end) throw;
      if (!is_tool || waited - said < kRemindAfter) continue;
      said = waited;
      log_warning(str_format("training root {}: waiting for {}, which treats the root",
                             quote(root.display()), quote(holder)));
    }
  }
}

std::string lock_words(const Storage& root) try {
  constexpr std::uint64_t kMaxWords = 4096;
  if (!root.stat(kRootLock)) return "";
  return std::string(as_text(ByteView(read_file(*root.open(kRootLock), kMaxWords))));
} catch (const CheckpointError&) {
  return "";
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
  throw_error(ErrorCode::kAborted, {.file = checkpoint_->display_path("")},
              "another job has moved or replaced the checkpoint meanwhile; look at what "
              "is there now, and try again");
}

}  // namespace dckpt
