#pragma once

#include <cstdint>
#include <string>

#include "mapping/planning/metadata.h"
#include "migration/adapters/peft_adapter.h"
#include "operations/convert/conversion_request.h"
#include "operations/convert/convert_options.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// The adapter that a conversion merges.
struct AdapterToMerge {
  PeftAdapter adapter;
  std::string folder;        ///< as messages name it
  std::uint64_t memory = 0;  ///< that merging takes of ConvertLimits::memory

  /// Returns whether the adapter is merged into a model with these keys, rather than into the
  /// result of a map.
  bool is_for(const Metadata& model) const;
};

/// Opens the adapter in `folder`. If the folder has an integrity.json, the adapter is compared with
/// it, unless ConvertChecks::source is off. Throws CheckpointError as open_peft_adapter() and
/// compare_digests() do.
AdapterToMerge adapter_to_merge(const Location& folder, const ConversionRequest& request);

struct Draft;

/// Merges the adapter of the draft into the model: a step (conversion_steps.h). Throws
/// CheckpointError as merged_adapter() does, and (invalid argument) for a model that is an adapter
/// itself.
std::string merge_adapter(Draft& draft, const ConversionRequest& request, ConvertReport& report);

}  // namespace dckpt
