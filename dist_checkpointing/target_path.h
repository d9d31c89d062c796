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

}  // namespace dckpt
