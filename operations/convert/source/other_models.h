#pragma once

#include <string>

#include "operations/convert/conversion_steps.h"
#include "operations/convert/convert_options.h"
#include "strategies/contract/reader.h"

namespace dckpt {

// Steps (conversion_steps.h) that combine the source with the other models that ConvertSource
// names. If the folder of another model has an integrity.json, its files are compared with it,
// unless ConvertChecks::source is off. All throw CheckpointError as compare_digests() does.

/// Takes the weights from the optimizer. Throws as with_main_parameters() does.
std::string take_main_parameters(Draft& draft, const ConvertOptions& options,
                                 ConvertReport& report);
/// Throws as averaged_models() does.
std::string average_models(Draft& draft, const ConvertOptions& options, ConvertReport& report);
/// Throws as joined_models() does.
std::string join_models(Draft& draft, const ConvertOptions& options, ConvertReport& report);

/// Compares the files of a checkpoint that is read beside the source with their integrity.json, if
/// there is one and ConvertChecks::source is set.
void compare_beside(const CheckpointReader& reader, const ConvertOptions& options);

}  // namespace dckpt
