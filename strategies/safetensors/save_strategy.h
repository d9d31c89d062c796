#pragma once

#include <memory>

#include "configs/policy/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

inline constexpr const char* kSafetensorsMetadataOption = "metadata";
inline constexpr const char* kSafetensorsNamesOption = "names";

/// Returns the strategy that saves safetensors as Hugging Face's transformers load them, under the
/// names safetensors and hf. The options `max_file_size`, `names` and `metadata` are
/// SafetensorsOptions'. Throws CheckpointError (unsupported) for io options that do not apply to
/// these files.
std::unique_ptr<SaveStrategy> make_safetensors_save_strategy(const SaveOptions& options);

/// Returns what its write_data() would return.
WrittenItems measure_safetensors(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
