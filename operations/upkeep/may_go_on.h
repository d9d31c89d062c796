#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "strategies/storage/location.h"

namespace dckpt {

/// The time without a change after which nobody is writing an unfinished checkpoint any more, if
/// nothing else says who does.
inline constexpr std::chrono::minutes kSettled{15};

/// Returns whether a time (as FileInfo::modified) is less than kSettled ago, or in the future.
bool changed_lately(std::int64_t modified);

/// Returns whether a job may still be writing a checkpoint of `root` that is not finished and that
/// was changed last at `modified`: by its claims, or else by the time (0: by its claims alone).
/// Throws CheckpointError (io).
bool may_go_on(const Location& root, const std::string& directory, std::int64_t modified);

}  // namespace dckpt
