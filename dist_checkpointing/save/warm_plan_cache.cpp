#include "dist_checkpointing/save/warm_plan_cache.h"

#include <algorithm>

#include "mapping/base/error_boundary.h"
#include "strategies/comm/agree.h"

namespace dckpt {

bool warm_plan_cache(SavePlanCache& cache, const Location& location, Communicator& comm,
                     const OpenOptions& options) try {
  std::vector<Bytes> plans;
  agree(comm, "reading the plans that the checkpoint keeps", [&] {
    if (comm.rank() != 0) return;
    const auto reader = open_checkpoint(location, options);
    for (const CachedPlan& kept : reader->metadata().cached_plans) plans.push_back(kept.proposed);
    if (plans.size() != static_cast<std::size_t>(comm.size()) ||
        std::ranges::any_of(plans, &Bytes::empty))
      plans.clear();
  });
  std::vector<Bytes> parts = plans;
  if (comm.rank() == 0) parts.resize(static_cast<std::size_t>(comm.size()));
  Bytes own = comm.scatter(parts, 0);
  if (own.empty()) {
    cache = {};
    return false;
  }
  cache.seed(std::move(own), std::move(plans));
  return true;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
