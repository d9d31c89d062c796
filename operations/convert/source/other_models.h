#pragma once

#include <functional>
#include <memory>

#include "operations/convert/convert_options.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Combines the source with its main parameters and with the other models that ConvertSource names;
/// returns it as it is if nothing is requested. `again` opens the source another time. `report`
/// gets the steps. If a folder of another model has an integrity.json, its files are compared with
/// it, unless ConvertChecks::source is off. Throws CheckpointError as with_main_parameters(),
/// averaged_models(), joined_models() and compare_digests() do, and (invalid argument) for weights
/// whose number does not fit.
std::unique_ptr<CheckpointReader> combined(
    std::unique_ptr<CheckpointReader> source,
    const std::function<std::unique_ptr<CheckpointReader>()>& again, const ConvertOptions& options,
    ConvertReport& report);

/// Compares the files of a checkpoint that is read beside the source with their integrity.json, if
/// there is one and ConvertChecks::source is set.
void compare_beside(const CheckpointReader& reader, const ConvertOptions& options);

}  // namespace dckpt
