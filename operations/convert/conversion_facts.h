#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mapping/planning/save/local_plan.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/model/model_folder.h"
#include "strategies/storage/file_watch.h"
#include "strategies/storage/location.h"

namespace dckpt {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// Everything that determines the bytes of a conversion, as names and values for messages: the
/// files of its source, its options, its plan.
using ConversionFacts = NamePairs;

/// Returns the facts that two conversions must share so that one can continue the other. `ranks`
/// are the items that each rank writes, `watch` has the files as they were first seen.
ConversionFacts conversion_facts(const Location& source, const ConvertOptions& options,
                                 const ChosenTarget& target, const ModelFolder& folder,
                                 std::span<const SavePlan> ranks, FileWatch& watch);

/// Returns a line for each difference between the facts of two conversions, for a message; empty if
/// there is none.
std::string differences(const ConversionFacts& before, const ConversionFacts& now);

}  // namespace dckpt
