#include "dist_checkpointing/load/load_watch.h"

#include "dist_checkpointing/planner/foreign_code.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"

namespace dckpt {

void LoadWatch::check() const {
  heartbeat.check();
  if (hooks_.cancel.stop_requested())
    throw CheckpointError(ErrorCode::kCancelled, "the load was cancelled");
  if (timeout_ > timeout_.zero() && std::chrono::steady_clock::now() - begin_ > timeout_)
    throw CheckpointError(
        ErrorCode::kUnavailable,
        str_format("the load has taken longer than {} ms (load.timeout)", timeout_.count()));
}

void LoadWatch::arrived(std::uint64_t bytes, std::uint64_t total) {
  check();
  if (hooks_.progress)
    run_foreign("LoadHooks::progress", {}, [&] { hooks_.progress(bytes, total); });
}

void LoadWatch::ready(const std::string& key, const Tensor& tensor) {
  const std::lock_guard lock(telling_);
  run_foreign("LoadHooks::tensor_ready", {.key = key}, [&] { hooks_.tensor_ready(key, tensor); });
}

}  // namespace dckpt
