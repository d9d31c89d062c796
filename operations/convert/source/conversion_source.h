#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/source/map_source.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

// The input of a conversion: its source, as its options select and rename it.

/// Throws CheckpointError (cancelled) if a stop was requested.
void require_not_stopped(const ConvertOptions& options);

/// Tells whether a map is named: "none" only insists on the keys of the source.
bool has_map(const ConvertOptions& options);

/// A source as a conversion sees it.
struct OpenedSource {
  std::unique_ptr<CheckpointReader> reader;
  KeyFilter keys;                     ///< the patterns for its keys
  Metadata source_keys;               ///< the keys before the map, which patterns may name as well
  std::vector<ConfigEntry> config{};  ///< entries that config.json must have, by the map
  std::string usual_format{};  ///< the format that the map's keys suggest; empty: the source's
  Progress progress{};         ///< of the copy, which continues that of the round trip
  std::uint64_t memory = 0;    ///< the part of ConvertLimits::memory that is left for the copy
};

/// Opens the source under the keys of the map, which determines the format if no option does.
OpenedSource open_source(const Location& source, const ConvertOptions& options,
                         ConvertReport& report);

/// Checks that a folder for transformers gets the keys of transformers' models. A copy of such a
/// folder stays as it is. Throws CheckpointError (invalid argument) for Megatron's keys, with the
/// maps that fit.
void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ChosenTarget& target, const ConvertOptions& options);

}  // namespace dckpt
