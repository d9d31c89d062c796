#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

// NVIDIA's ModelOpt (quantisation, pruning, distillation) keeps how it has changed a model beside a
// checkpoint of Megatron's: in the folder modelopt_state, a checkpoint of its own with common state
// alone, and in modelopt_run_config.yaml; with rank folders in the common state, as modelopt_state
// or, for virtual stages, modelopt_state_0 and so on. What each module has of it is extra state.

struct ModelOptState {
  std::string place;      ///< "modelopt_state", the folder or the entry; of several the first
  std::string version{};  ///< of ModelOpt; empty if it cannot be read
  std::vector<std::string> modes{};  ///< in the order in which they were applied: "quantize"
};

/// Empty if there is none.
std::optional<ModelOptState> modelopt_state(const CheckpointReader& reader);

/// Its files, relative to the checkpoint; empty if there are none.
std::vector<std::string> modelopt_files(const Storage& storage);

}  // namespace dckpt
