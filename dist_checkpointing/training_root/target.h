#pragma once

#include "strategies/storage/location.h"

namespace dckpt {

/// Longest name of a directory to be published: the hidden sibling in which it is written must also
/// have a valid name, whatever the host is called.
inline constexpr std::size_t kMaxTargetNameBytes = 140;

/// Throws CheckpointError (invalid argument) if the location is not a directory that could be
/// created (the root of a storage, "/"), or if its name is too long.
void require_target_name(const Location& target);

/// Throws CheckpointError (already exists) if there is a directory that is neither empty, nor a
/// complete or interrupted checkpoint, nor named like an iteration: replacing it would remove
/// everything in it. A training root is refused too, because replacing it by one checkpoint would
/// remove all of them.
void check_replaceable(const Location& target);

}  // namespace dckpt
