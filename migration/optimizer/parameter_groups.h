#pragma once

#include <vector>

#include "mapping/state/value.h"

namespace dckpt {

/// Returns the options of the different parameter groups in the optimizer's common state, for one
/// optimizer or a chain of several, without their parameters. Throws CheckpointError (unsupported)
/// for more than 1000.
std::vector<Value> parameter_groups(const Value& common);

/// Adds the options of a group unless they are there. Throws as parameter_groups() does.
void add_once(std::vector<Value>& groups, Value options);

}  // namespace dckpt
