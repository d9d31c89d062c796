#pragma once

#include <functional>
#include <optional>
#include <string>

#include "operations/convert/conversion_facts.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/noted_copy.h"
#include "operations/convert/planned_copy.h"
#include "operations/convert/source/copy_source.h"
#include "strategies/storage/location.h"
#include "strategies/storage/publication.h"

namespace dckpt {

/// Settings and callbacks for writing a copy.
struct WriteSteps {
  int writers = 1;  ///< number of ranks at a time
  bool resume = false;
  bool discards = true;  ///< what was written is worthless if check_source() fails
  std::string left{};    ///< leftovers to continue, beside the destination; empty if there are none
  ConversionFacts facts{};
  std::function<void()> check_source{};  ///< called when everything has been read; throws
  std::function<void()> go_on{};         ///< throws to stop
};

/// Writes what `noted` does not have as finished, and publishes the copy. `check` is called just
/// before the checkpoint becomes visible and throws to prevent that.
void finish_copy(const PlannedCopy& copy, CopySource& source, Publication publication,
                 NotedCopy& noted, const WriteSteps& steps, const std::function<void()>& check,
                 ConvertReport& report);

/// Writes the copy from `source` as a pool of one worker, and publishes it. Reports the numbers of
/// files.
void write_copy(const PlannedCopy& copy, const Location& destination, CopySource& source,
                const WriteSteps& steps, ConvertReport& report);

/// Throws CheckpointError (unsupported) if the copy cannot be written by several attempts, which
/// `option` asks for: for formats without Capabilities::resume, and storages without rename.
void require_resumable(const PlannedCopy& copy, const Location& destination,
                       const std::string& option);

}  // namespace dckpt
