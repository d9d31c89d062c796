#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/load/load_steps.h"
#include "mapping/state/flatten.h"

namespace dckpt {

/// The name under which a leaf is stored: sharded ones have keys of their own.
std::string stored_name(const FlatLeaf& leaf);

/// The leaves of a state dict, under the names that a plain DCP directory has for them: torch's
/// current names, with two exceptions. A dict or list without tensors that torch 2.3 or older saved
/// as one object is one leaf under its own name, in place of those for its parts. And of an object
/// that the reader opened (CheckpointInfo::opened_keys) everything is loaded, as torch does that
/// loads it as a whole: leaves that the state lacks are added without a value, and what stands in
/// their way is taken out of `state` (all of it where it holds no tensor: none, an optimizer
/// without moments). Throws as flatten_state_dict does.
std::vector<FlatLeaf> leaves_as_stored(LoadCall& load, const OpenedCheckpoint& from, Value& state);

}  // namespace dckpt
