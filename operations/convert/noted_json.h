#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mapping/state/value.h"

// JSON notes of conversions (journals, pools of workers) share these pieces. All throw
// CheckpointError if a value is not of this form.
namespace dckpt {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// A list of lists of two texts.
Value to_value(const NamePairs& pairs);
NamePairs pairs_from(const Value& list);

/// Returns an element of a list that has `size`.
const Value& part(const Value& list, std::size_t index, std::size_t size = 2);

/// Returns a number that is not negative.
std::uint64_t count_from(const Value& number);

/// Returns a text that is safe as a name in a storage.
const std::string& name_from(const Value& text);

}  // namespace dckpt
