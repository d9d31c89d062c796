#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/save/save_async.h"
#include "strategies/storage/location.h"
#include "tests/dist_checkpointing/training_run.h"

namespace dckpt::testing {

/// A collective operation of ranks, for tests of what happens when it is disturbed.
struct CollectiveJob {
  using Task = std::function<void(const Location& root, Communicator& comm)>;
  std::string name;
  Task before;  ///< runs undisturbed
  Task run;
};

/// Changes nothing, but makes rank 0 receive the plans of all ranks.
class PlansTogether final : public MCoreLoadPlanner {
 public:
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override { return plans; }
};

inline std::vector<CollectiveJob> collective_jobs(int ranks) {
  register_planner(load_planner_entry<PlansTogether>("together", "plans of all ranks"));
  const auto save_state = [ranks](const Location& root, Communicator& comm) {
    save(state_at(1, comm.rank(), ranks), root / "iter_0000001", {}, comm);
  };
  const auto load_with = [ranks](const LoadOptions& options) {
    return [ranks, options](const Location& root, Communicator& comm) {
      StateDict state = empty_state(comm.rank(), ranks);
      load(state, root / "iter_0000001", options, comm);
    };
  };
  LoadOptions parallel;
  parallel.parallel.enabled = true;
  LoadOptions planned;
  planned.registered_planner.name = "together";
  return {
      {"save", nullptr, save_state},
      {"save in the background", nullptr,
       [ranks](const Location& root, Communicator& comm) {
         AsyncSaver saver({}, comm);
         saver.save(state_at(1, comm.rank(), ranks), root / "iter_0000001");
         saver.wait();
       }},
      {"load", save_state, load_with({})},
      {"load in parallel", save_state, load_with(parallel)},
      {"load by a planner", save_state, load_with(planned)},
      {"resume and save",
       [ranks](const Location& root, Communicator& comm) {
         Checkpointer(root, {}, comm).save(state_at(1, comm.rank(), ranks), 1);
       },
       [ranks](const Location& root, Communicator& comm) {
         Checkpointer checkpointer(root, {.retention = {.keep_last = 1}}, comm);
         StateDict state = empty_state(comm.rank(), ranks);
         checkpointer.resume(state);
         checkpointer.save(state_at(2, comm.rank(), ranks), 2);
       }},
  };
}

}  // namespace dckpt::testing
