#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/planner/load_planner.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// PyTorch DCP's planner for a state dict that is empty: it is given what is stored, nested as it
/// was saved, and the common state; on each rank all of it. Tensors become whole ShardedTensors and
/// objects of Megatron ShardedObjects, so that the result can be saved again (plain_state() has
/// them bare); other objects are their values.
///
/// `keys` as load_state_dict() takes them. Throws CheckpointError: (invalid argument) if the state
/// has entries, (mismatch) for keys that select nothing.
class EmptyStateDictLoadPlanner : public DefaultLoadPlanner {
 public:
  explicit EmptyStateDictLoadPlanner(std::vector<std::string> keys = {}) : keys_(std::move(keys)) {}
  [[nodiscard]] StateDict prepare_state(StateDict state, const LoadSetup& setup) override;

 private:
  std::vector<std::string> keys_;
};

}  // namespace dckpt
