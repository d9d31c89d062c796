#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "dist_checkpointing/rewrite/conversion_journal.h"
#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/copy_source.h"
#include "dist_checkpointing/rewrite/interrupted.h"
#include "dist_checkpointing/rewrite/planned_copy.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Settings and callbacks for writing a copy.
struct WriteSteps {
  int writers = 1;  ///< number of ranks at a time
  bool resume = false;
  std::optional<Interrupted> left{};  ///< leftovers to continue
  ConversionFacts facts{};
  std::function<void()> check_source{};  ///< called when everything has been read; throws
  std::function<void()> go_on{};         ///< throws to stop
};

/// Writes the copy from `source` and publishes it. Reports the numbers of files.
void write_copy(const PlannedCopy& copy, const Location& destination, CopySource& source,
                WriteSteps steps, ConvertReport& report);

/// Returns the leftovers to continue, if any, and adds them to `report`. Throws as
/// find_interrupted() does, and (unsupported) for a format that cannot be resumed.
std::optional<Interrupted> find_left(const Location& destination, const ConversionFacts& facts,
                                     const PlannedCopy& copy, ConvertReport& report);

std::uint64_t bytes_of(const std::optional<Interrupted>& left);

}  // namespace dckpt
