#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/planner/load_planner.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// PyTorch DCP's planner for an empty state dict, which it fills with the complete stored state,
/// nested as it was saved, and the common state, on every rank. Tensors become whole ShardedTensors
/// and Megatron's objects ShardedObjects, so that the result can be saved again (plain_state()
/// unwraps them). Other objects become their values.
///
/// `keys` are those of load_state_dict(). Throws CheckpointError: (invalid argument) if the state
/// has entries, (mismatch) for keys that select nothing.
class EmptyStateDictLoadPlanner : public DefaultLoadPlanner {
 public:
  explicit EmptyStateDictLoadPlanner(std::vector<std::string> keys = {}) : keys_(std::move(keys)) {}
  [[nodiscard]] StateDict prepare_state(StateDict state, const LoadSetup& setup) override;

 private:
  std::vector<std::string> keys_;
};

}  // namespace dckpt
