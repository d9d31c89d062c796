#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist_checkpointing/load/load.h"

namespace dckpt {

/// A tensor of the loaded checkpoint, under the name that load.rename gives it.
struct FoundTensor {
  std::string key;
  std::uint64_t bytes = 0;
  bool requested = false;  ///< some rank requests it
};

/// Loads as load() does, for a run that continues. Rank 0 also gets the checkpoint's tensors in
/// stored order, without empty tensors and those whose data files are lost; other ranks get none.
LoadReport load_and_find(StateDict& state, const Location& location, const LoadOptions& options,
                         Communicator& comm, LoadPlanCache& cache, std::vector<FoundTensor>& found);

}  // namespace dckpt
