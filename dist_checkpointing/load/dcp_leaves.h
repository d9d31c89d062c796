#pragma once

#include <vector>

#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/state/flatten.h"

namespace dckpt {

/// The leaves of a state dict, under the names that a plain DCP directory has for them: torch's
/// current names; but a dict or list without tensors that torch 2.3 or older saved as one object is
/// one leaf under its own name, in place of those for its parts. Throws as flatten_state_dict does.
std::vector<FlatLeaf> leaves_as_stored(const Value& state, const StoredKeys& keys);

}  // namespace dckpt
