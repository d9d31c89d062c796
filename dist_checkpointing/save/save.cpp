#include "dist_checkpointing/save/save.h"

#include "dist_checkpointing/save/save_steps.h"
#include "mapping/base/error_boundary.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {

SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options,
                Communicator& comm, SavePlanCache& cache, const SaveHooks& hooks) try {
  SaveCall call(location, options, comm, hooks);
  auto [planned, tensors, object_bytes, plans, checkpoint] = plan_save(call, state, cache);
  try {
    StateSource source(std::move(tensors), std::move(object_bytes));
    const WrittenByRank written = write_save(call, planned, source);
    SaveReport report = publish_save(call, planned, written, std::move(checkpoint));
    planned.planner.published();
    cache.commit(std::move(plans));
    return report;
  } catch (...) {
    planned.planner.failed();
    throw;
  }
} catch (...) {
  throw_checkpoint_error();
}

SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options,
                Communicator& comm, const SaveHooks& hooks) {
  SavePlanCache once;
  return save(state, location, options, comm, once, hooks);
}

SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options) {
  const auto alone = single_rank();
  return save(state, location, options, *alone);
}

}  // namespace dckpt
