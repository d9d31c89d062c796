#pragma once

#include "configs/policy.h"
#include "dist_checkpointing/rewrite/convert.h"

namespace dckpt {

/// What a policy says about a conversion. No field is passed over in silence: those about ranks
/// that work together, and about what a run keeps, have no meaning for one process that writes one
/// checkpoint, and `unused` names them for the report. Throws CheckpointError for what a conversion
/// cannot do: (invalid argument) with all fields that are not as they must be, (unsupported) for
/// another save strategy than torch_dist.
struct PolicyForConversion {
  ConvertOptions options;
  std::vector<std::string> unused;  ///< dotted names of fields
};
PolicyForConversion policy_for_conversion(const Policy& policy);

}  // namespace dckpt
