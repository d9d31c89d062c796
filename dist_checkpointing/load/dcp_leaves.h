#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/load/load_steps.h"
#include "mapping/state/flatten.h"

namespace dckpt {

/// Returns the name under which a leaf is stored; sharded leaves have keys of their own.
std::string stored_name(const FlatLeaf& leaf);

/// Returns the leaves of a state dict, under the names that a plain DCP directory has for them:
/// torch's current names, with two exceptions. A dict or list without tensors that torch 2.3 or
/// older saved as one object is one leaf under its own name. An object that the reader opened
/// (CheckpointInfo::opened_keys) is loaded completely, as torch loads it as a whole: leaves that
/// the state lacks are added without a value, and entries in their way are removed from `state`
/// (all of the object's entries if none is a tensor, as in an optimizer without moments). Throws as
/// flatten_state_dict does.
std::vector<FlatLeaf> leaves_as_stored(LoadCall& load, const OpenedCheckpoint& from, Value& state);

}  // namespace dckpt
