#pragma once

#include <optional>
#include <span>
#include <string>

#include "mapping/planning/save/local_plan.h"
#include "operations/convert/conversion_journal.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/model/model_folder.h"
#include "strategies/storage/file_watch.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// The leftovers of an interrupted conversion.
struct Interrupted {
  std::string directory;  ///< hidden, beside the target
  JournalContent journal;
};

/// Returns the facts that two conversions must share so that one can continue the other. `ranks`
/// are the items that each rank writes, `watch` has the files as they were first seen.
ConversionFacts conversion_facts(const Location& source, const ConvertOptions& options,
                                 const ChosenTarget& target, const ModelFolder& folder,
                                 std::span<const SavePlan> ranks, FileWatch& watch);

/// Returns a line for each difference between the facts of two conversions, for a message; empty if
/// there is none.
std::string differences(const ConversionFacts& before, const ConversionFacts& now);

/// Returns the leftovers beside `target` of a conversion with these facts; of several, the one that
/// had finished the most. Throws CheckpointError (mismatch) naming the differences if there are
/// only others.
std::optional<Interrupted> find_interrupted(const Location& target, const ConversionFacts& facts);

}  // namespace dckpt
