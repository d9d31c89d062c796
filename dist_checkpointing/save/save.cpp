#include "dist_checkpointing/save/save.h"

#include "dist_checkpointing/save/save_steps.h"
#include "mapping/base/error_boundary.h"
#include "strategies/contract/registry.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {

SavePlanner make_planner(const SaveOptions& given) {
  const SaveOptions options = canonical(given);
  PlannerOptions planner = options.planner;
  planner.kind = planner_kind(options);
  return SavePlanner(planner, options.parallel.enabled);
}

SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options,
                Communicator& comm, SavePlanner& planner, const SaveHooks& hooks) try {
  PlanMemory memory(planner);
  SaveCall call(location, options, comm, hooks);
  auto [planned, tensors, object_bytes, checkpoint] = plan_save(call, state, planner);
  StateSource source(std::move(tensors), std::move(object_bytes));
  const WrittenByRank written = write_save(call, planned, source);
  SaveReport report = publish_save(call, planned, written, std::move(checkpoint));
  memory.keep();
  return report;
} catch (...) {
  throw_checkpoint_error();
}

SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options,
                Communicator& comm, const SaveHooks& hooks) {
  SavePlanner planner = make_planner(options);
  return save(state, location, options, comm, planner, hooks);
}

SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options) {
  const auto alone = single_rank();
  return save(state, location, options, *alone);
}

}  // namespace dckpt
