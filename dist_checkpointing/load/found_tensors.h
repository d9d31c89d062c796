#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist_checkpointing/load/load.h"

namespace dckpt {

/// A tensor of the checkpoint that was loaded, under the name that load.rename gives it.
struct FoundTensor {
  std::string key;
  std::uint64_t bytes = 0;
  bool requested = false;  ///< by any rank
};

/// load() for a run that goes on: rank 0 also learns what the checkpoint holds, in its order and
/// without empty tensors and those whose data files are lost; other ranks learn nothing.
LoadReport load_and_find(StateDict& state, const Location& location, const LoadOptions& options,
                         Communicator& comm, LoadPlanCache& cache, std::vector<FoundTensor>& found);

}  // namespace dckpt
