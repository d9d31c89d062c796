#pragma once

#include <vector>

#include "mapping/state/value.h"

namespace dckpt {

/// The different parameter groups in the optimizer's common state, of one or of a chain of several:
/// their options, without what they hold. Throws CheckpointError (unsupported) for more than 1000.
std::vector<Value> parameter_groups(const Value& common);

/// Adds the options of a group unless they are there. Throws likewise.
void add_once(std::vector<Value>& groups, Value options);

}  // namespace dckpt
