#include "dist_checkpointing/target_path.h"

#include "mapping/base/error.h"
#include "mapping/base/text.h"

namespace dckpt {

TargetPath split_target(const std::filesystem::path& directory) {
  std::filesystem::path path = std::filesystem::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a slash at the end
  if (directory.empty() || !path.has_filename()) {
    throw CheckpointError(ErrorCode::kInvalidArgument, dckpt::quoted(directory.string()) + " is no name for a new checkpoint directory");
  }
  return {path.parent_path(), path.filename().string()};
}

}  // namespace dckpt
