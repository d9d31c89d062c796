#pragma once

#include <string>

#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

// The input of a conversion: its source, as its options select and rename it.

/// Throws CheckpointError (cancelled) if a stop was requested.
void require_not_stopped(const ConvertOptions& options);

/// Tells whether a map is named: "none" only insists on the keys of the source.
bool has_map(const ConvertOptions& options);

struct Draft;

/// Opens the source, and the adapter that is to be merged into it.
Draft open_source(const Location& source, const ConvertOptions& options);

/// Gives the source the keys of the map, which determines the format if no option does, and checks
/// the round trip: a step (conversion_steps.h).
std::string apply_map(Draft& draft, const ConvertOptions& options, ConvertReport& report);

/// Checks that a folder for transformers gets the keys of transformers' models. A copy of such a
/// folder stays as it is. Throws CheckpointError (invalid argument) for Megatron's keys, with the
/// maps that fit.
void require_map_for_models(const CheckpointReader& reader, const ChosenTarget& target,
                            const ConvertOptions& options);

}  // namespace dckpt
