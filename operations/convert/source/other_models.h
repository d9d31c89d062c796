#pragma once

#include <string>

#include "operations/convert/conversion_request.h"
#include "operations/convert/conversion_steps.h"
#include "operations/convert/convert_options.h"
#include "strategies/contract/reader.h"

namespace dckpt {

// Steps (conversion_steps.h) that combine the source with the other models that ConvertSource
// names. If the folder of another model has an integrity.json, its files are compared with it,
// unless ConvertChecks::source is off. All throw CheckpointError as compare_digests() does.

/// Takes the weights from the optimizer. Throws as with_main_parameters() does.
std::string take_main_parameters(Draft& draft, const ConversionRequest& request,
                                 ConvertReport& report);
/// Throws as averaged_models() does.
std::string average_models(Draft& draft, const ConversionRequest& request, ConvertReport& report);
/// Throws as joined_models() does.
std::string join_models(Draft& draft, const ConversionRequest& request, ConvertReport& report);

/// Compares the files of a checkpoint that is read beside the source with their integrity.json, if
/// there is one and ConvertChecks::source is set, by so many threads.
void compare_beside(const CheckpointReader& reader, const ConvertChecks& checks, int threads);

}  // namespace dckpt
