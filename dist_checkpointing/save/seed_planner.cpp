#include "dist_checkpointing/save/seed_planner.h"

#include "dist_checkpointing/open.h"
#include "mapping/base/error_boundary.h"
#include "strategies/comm/agree.h"

namespace dckpt {

bool seed_planner(SavePlanner& planner, const Location& location, Communicator& comm) try {
  std::vector<Bytes> plans;
  agree(comm, "reading the plans that the checkpoint keeps", [&] {
    if (comm.rank() != 0) return;
    const auto reader = open_checkpoint(location);
    for (const KeptPlan& kept : reader->metadata().kept_plans) plans.push_back(kept.proposed);
    plans.resize(plans.size() == static_cast<std::size_t>(comm.size()) ? plans.size() : 0);
  });
  std::vector<Bytes> parts = plans;
  if (comm.rank() == 0) parts.resize(static_cast<std::size_t>(comm.size()));
  Bytes own = comm.scatter(parts, 0);
  if (own.empty()) {
    planner.forget();
    return false;
  }
  planner.seed(std::move(own), std::move(plans));
  return true;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
