#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt::pickle {

/// Python's rule for keys and members. What an opaque object does is not known; it counts as
/// hashable.
bool is_hashable(const Value& value);

/// Whether the value can stand for something that is called: a class or function, or what a call
/// gave.
bool is_callable(const Value& value);

/// A dict or a set. Throws CheckpointError (corrupt) for a key or member that is unhashable or
/// stands there twice, which no pickler writes.
Dict make_dict(std::vector<std::pair<Value, Value>>&& items);
Value make_set(ValueList members, bool frozen);

/// The value of a call that is only an old protocol's spelling of it: bytes, bytearray, set,
/// frozenset, complex, and the two functions of copyreg which stand for NEWOBJ and NEWOBJ_EX. Empty
/// for all others, and wherever the spelling is not exactly the one that picklers use.
std::optional<Value> plain_value_of(const Opaque& call);

}  // namespace dckpt::pickle
