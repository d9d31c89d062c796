#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt::pickle {

/// Applies Python's rule for keys and members. An opaque object counts as hashable, since its
/// behavior is unknown.
bool is_hashable(const Value& value);

/// Returns whether the value can be a callable: a class, a function, or the result of a call.
bool is_callable(const Value& value);

/// Make a dict or a set. Throw CheckpointError (corrupt) for a key or member that is unhashable or
/// occurs twice, which no pickler writes.
Dict make_dict(std::vector<std::pair<Value, Value>>&& items);
Value make_set(ValueList members, bool frozen);

/// Returns the value of a call that only spells a plain value in an old protocol: bytes, bytearray,
/// set, frozenset, complex, and the two functions of copyreg that stand for NEWOBJ and NEWOBJ_EX.
/// Empty for all other calls, and if the spelling is not exactly the one that picklers use.
std::optional<Value> plain_value_of(const Opaque& call);

}  // namespace dckpt::pickle
