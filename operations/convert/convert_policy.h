#pragma once

#include "configs/policy/policy.h"
#include "mapping/base/api.h"
#include "operations/convert/convert_options.h"

namespace DCKPT_API dckpt {

/// A policy translated for a conversion. No field is ignored silently: fields about cooperating
/// ranks and about retention have no meaning for a single process that writes one checkpoint, and
/// `unused` lists them for the report. Translation throws CheckpointError for settings that a
/// conversion does not support: (invalid argument) with all offending fields, (unsupported) for an
/// unknown save strategy.
struct PolicyForConversion {
  ConvertOptions options;
  std::vector<std::string> unused;  ///< dotted names of fields
};
/// Translates a policy. `names_format` is explained at CheckedPolicy; if false, the result leaves
/// the format to the source.
PolicyForConversion policy_for_conversion(const Policy& policy, bool names_format = true);

}  // namespace dckpt
