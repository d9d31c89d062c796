#pragma once

#include "strategies/storage/location.h"

namespace dckpt {

/// Longest name of a directory to be published: the hidden sibling that it is written in must be a
/// name, too, whatever the host is called.
inline constexpr std::size_t kMaxTargetNameBytes = 140;

/// Throws CheckpointError (invalid argument) if the location is no directory that could be made
/// anew (the root of a storage, "/"), or has a name that is too long.
void require_target_name(const Location& target);

/// Throws CheckpointError (already exists) if a directory is there that is neither empty nor a
/// checkpoint, whole or interrupted, nor named like an iteration: what is replaced is removed with
/// all that it holds. A training root is refused, too: to put one checkpoint in its place would
/// remove all of them.
void check_replaceable(const Location& target);

}  // namespace dckpt
