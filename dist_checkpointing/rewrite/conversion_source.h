#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "dist_checkpointing/rewrite/map_source.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

// The input of a conversion: its source, as its options select and rename it.

/// Throws CheckpointError (cancelled) if a stop was requested.
void require_not_stopped(const ConvertOptions& options);

/// A source as a conversion sees it.
struct OpenedSource {
  std::unique_ptr<CheckpointReader> reader;
  KeyFilter keys;          ///< patterns for its keys
  Metadata source_keys;    ///< with a map: the source's own keys, which patterns may name as well
  ConvertOptions options;  ///< options of the call, adjusted to the map
};

/// Opens the source under the keys of the map, which determines the format if no option does.
OpenedSource open_source(const Location& source, const ConvertOptions& options,
                         ConvertReport& report);

/// Checks that a folder for transformers gets the keys of transformers' models. A copy of such a
/// folder stays as it is. Throws CheckpointError (invalid argument) for Megatron's keys, with the
/// maps that fit.
void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ConvertTarget& target, const ConvertOptions& options);

}  // namespace dckpt
