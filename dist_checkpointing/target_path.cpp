#include "dist_checkpointing/target_path.h"

#include <system_error>
#include <vector>

#include "dist_checkpointing/training_root/layout.h"
#include "mapping/base/error.h"
#include "mapping/base/text.h"

namespace dckpt {

TargetPath split_target(const std::filesystem::path& directory) {
  std::error_code no_such_path;  // of the empty one
  std::filesystem::path path = std::filesystem::absolute(directory, no_such_path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a slash at the end
  if (directory.empty() || !path.has_filename()) {
    throw CheckpointError(ErrorCode::kInvalidArgument, dckpt::quoted(directory.string()) + " is no name for a new checkpoint directory");
  }
  return {path.parent_path(), path.filename().string()};
}

void refuse_training_root(const TargetPath& target) {
  const std::filesystem::path path = target.parent / target.name;
  std::error_code nothing_there;
  if (!std::filesystem::is_directory(path, nothing_there)) return;
  const std::vector<std::uint64_t> iterations = list_iterations(path);
  if (iterations.empty() && !std::filesystem::exists(path / kTrackerFile, nothing_there)) return;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        "refusing to replace a training root (it has " + describe_iterations(iterations) + "): a checkpoint goes into a directory in it, for example " +
                            dckpt::quoted(iteration_directory(iterations.empty() ? 0 : iterations.back())),
                        {.file = path.string()});
}

}  // namespace dckpt
