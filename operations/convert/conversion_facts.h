#pragma once

#include <string>
#include <utility>
#include <vector>

#include "operations/convert/conversion_request.h"
#include "operations/convert/planned_copy.h"

namespace dckpt {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// Everything that determines the bytes of a conversion, as names and values for messages: the
/// files of its source, its options, its plan.
using ConversionFacts = NamePairs;

/// Returns the facts that two conversions must share so that one can continue the other: the files
/// as they were first seen, and what each rank writes.
ConversionFacts conversion_facts(const Route& route, const ConversionRequest& request,
                                 const PlannedCopy& copy);

/// Returns a line for each difference between the facts of two conversions, for a message; empty if
/// there is none.
std::string differences(const ConversionFacts& before, const ConversionFacts& now);

}  // namespace dckpt
