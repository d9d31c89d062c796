#pragma once

#include <filesystem>
#include <string>

namespace dckpt {

/// A directory to be published, as its parent and its name.
struct TargetPath {
  std::filesystem::path parent;
  std::string name;
};

/// Throws CheckpointError (invalid argument) if the path names no directory that could be made anew ("/", "..").
TargetPath split_target(const std::filesystem::path& directory);

/// Throws CheckpointError (invalid argument) if a directory is there that is neither empty nor a checkpoint, whole or interrupted, nor named like an iteration: what is
/// replaced is removed with all that it holds. A training root is refused, too: to put one checkpoint in its place would remove all of them.
void check_replaceable(const TargetPath& target);

}  // namespace dckpt
