#pragma once

#include <memory>
#include <optional>
#include <string>

#include "operations/convert/conversion_request.h"
#include "operations/convert/conversion_steps.h"
#include "strategies/storage/location.h"

namespace dckpt {

// The input of a conversion: its source, as its options select and rename it.

/// Opens the source, and the adapter that is to be merged into it.
Draft open_source(const Route& route, const ConversionRequest& request, ConvertReport& report);

/// Returns the folder whose config.json identifies the model; null if there is none. Throws
/// CheckpointError (io) if it is missing.
std::shared_ptr<const Storage> model_files(const std::optional<Location>& folder);

// Steps (conversion_steps.h).

/// Gives the source the keys of the map, which determines the format if no option does.
std::string apply_map(Draft& draft, const ConversionRequest& request, ConvertReport& report);
/// Goes back through the map, in memory.
std::string map_back(Draft& draft, const ConversionRequest& request, ConvertReport& report);
/// Compares the tensors that have come back with those of the source. Throws CheckpointError
/// (mismatch) for those that differ. Padding of a vocabulary is not compared: it has no meaning and
/// is lost.
std::string compare_round_trip(Draft& draft, const ConversionRequest& request,
                               ConvertReport& report);

}  // namespace dckpt
