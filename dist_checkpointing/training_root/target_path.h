#pragma once

#include <filesystem>
#include <string>

namespace dckpt {

/// A directory to be published, as its parent and its name.
struct TargetPath {
  std::filesystem::path parent;
  std::string name;
};

/// Longest name of a directory to be published: the hidden sibling that it is written in must be a
/// name, too, whatever the host is called.
inline constexpr std::size_t kMaxTargetNameBytes = 140;

/// Throws CheckpointError: (invalid argument) if the path names no directory that could be made
/// anew ("/", ".."), or a name that is too long; (unsupported) for a path that is not of the local
/// file system.
TargetPath split_target(const std::filesystem::path& directory);

/// Throws CheckpointError (already exists) if a directory is there that is neither empty nor a
/// checkpoint, whole or interrupted, nor named like an iteration: what is replaced is removed with
/// all that it holds. A training root is refused, too: to put one checkpoint in its place would
/// remove all of them.
void check_replaceable(const TargetPath& target);

}  // namespace dckpt
