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

/// Throws CheckpointError (invalid argument) if a training root is there: to put one checkpoint in its place would remove all of them.
void refuse_training_root(const TargetPath& target);

}  // namespace dckpt
