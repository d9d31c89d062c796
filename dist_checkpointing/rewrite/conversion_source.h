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

// What a conversion reads: its source, seen through what its options ask for.

/// Throws CheckpointError (cancelled) if a stop was requested.
void require_not_stopped(const ConvertOptions& options);

/// A source as a conversion sees it.
struct OpenedSource {
  std::unique_ptr<CheckpointReader> reader;
  KeyFilter keys;          ///< the patterns for its keys
  Metadata source_keys;    ///< behind a map: the keys before it, which patterns may name as well
  ConvertOptions options;  ///< those of the call, with what follows from the map
};

/// The source under the keys that the map gives, which decide the format if no option does.
OpenedSource open_source(const Location& source, const ConvertOptions& options,
                         ConvertReport& report);

/// A folder for transformers has the keys of its models. A copy of such a folder stays as it is.
/// Throws CheckpointError (invalid argument) for Megatron's, with the maps that fit.
void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ConvertTarget& target, const ConvertOptions& options);

}  // namespace dckpt
