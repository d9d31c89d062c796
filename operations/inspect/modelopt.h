#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

// NVIDIA's ModelOpt (quantization, pruning, distillation) records its changes to a model beside a
// Megatron checkpoint: in the folder modelopt_state, a checkpoint of its own with common state
// alone, and in modelopt_run_config.yaml. With rank folders, the record is in the common state, as
// modelopt_state or, for virtual stages, modelopt_state_0 and so on. The part of each module is
// extra state.

struct ModelOptState {
  std::string place;      ///< the folder or the entry, "modelopt_state"; the first of several
  std::string version{};  ///< version of ModelOpt; empty if it cannot be read
  std::vector<std::string> modes{};  ///< in the order in which they were applied: "quantize"
};

/// Returns nothing if there is no state of ModelOpt.
std::optional<ModelOptState> modelopt_state(const CheckpointReader& reader);

/// Returns ModelOpt's files, relative to the checkpoint; empty if there are none.
std::vector<std::string> modelopt_files(const Storage& storage);

}  // namespace dckpt
