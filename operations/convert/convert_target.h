#pragma once

#include <string>
#include <vector>

#include "mapping/base/finding.h"
#include "operations/convert/convert_options.h"
#include "strategies/contract/reader.h"
#include "strategies/registry/registry.h"

namespace dckpt {

/// The format that a conversion writes.
struct ChosenTarget {
  const SaveStrategyEntry* format = nullptr;
  SaveOptions save{};  ///< options that its strategy is made with
  Findings findings{};
};

/// Chooses the format that `target` names, else `usual`, else that of the source. Messages call the
/// source `source`. Throws CheckpointError for contradictions, and for formats that cannot be
/// written or read.
ChosenTarget choose_target(const CheckpointReader& reader, const std::string& source,
                           const std::string& usual, const ConvertTarget& target,
                           const ConvertOptimizer& optimizer);

/// Throws CheckpointError (invalid argument) for a destination inside the source, which must not
/// change meanwhile.
void require_outside(const Location& source, const Location& destination);

/// Checks early what publishing would find only at the end: throws CheckpointError (already exists)
/// if the destination exists and must not be replaced.
void require_free_name(const Location& destination, bool overwrite);

/// Throws CheckpointError (io) unless `bytes` are free at the destination.
void require_space(const Location& destination, std::uint64_t bytes);

}  // namespace dckpt
