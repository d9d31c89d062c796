#pragma once

#include <vector>

#include "configs/policy/options.h"
#include "migration/maps/numbers/map_numbers.h"
#include "operations/convert/conversion_request.h"
#include "operations/convert/model/model_folder.h"
#include "strategies/contract/reader.h"

namespace dckpt {

inline constexpr const char* kModelConfig = "config.json";

/// Returns whether the result of a conversion may have weights that are quantized as the files of
/// the model say. `source` is the checkpoint as it is written, with the keys of `map`.
bool keeps_quantization(const CheckpointReader& source, const KeyMapOptions& map);

/// Makes the config.json in `folder` say what is true of the converted weights: their dtype, their
/// quantization, and `entries`. Otherwise transformers would load them as another dtype, look for
/// scales, or make up tensors of other shapes. Then compares it with the tensors `written`
/// (ConvertChecks::allow_other_config). Adds findings. Throws CheckpointError (corrupt) if the file
/// is malformed and must be changed.
void adapt_config(const CheckpointReader& source, const Metadata& written,
                  const std::vector<ConfigEntry>& entries, const ConversionRequest& request,
                  ModelFolder& folder);

}  // namespace dckpt
