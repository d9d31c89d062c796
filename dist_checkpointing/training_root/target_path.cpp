#include "dist_checkpointing/training_root/target_path.h"

#include <algorithm>
#include <span>
#include <system_error>
#include <vector>

#include "dist_checkpointing/tracker.h"
#include "mapping/base/error.h"
#include "mapping/base/local_path.h"
#include "mapping/base/text.h"
#include "strategies/contract/registry.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/posix.h"

namespace dckpt {

TargetPath split_target(const std::filesystem::path& given) {
  const std::filesystem::path directory = local_path(given);
  std::error_code no_such_path;  // of the empty one
  std::filesystem::path path =
      std::filesystem::absolute(directory, no_such_path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a slash at the end
  if (directory.empty() || !path.has_filename()) {
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        dckpt::quoted(directory.string()) + " is no name for a new checkpoint directory");
  }
  std::string name = path.filename().string();
  if (name.size() > kMaxTargetNameBytes) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the name of the checkpoint to write has " + grouped(name.size()) +
                              " bytes; at most " + grouped(kMaxTargetNameBytes) +
                              " leave room for the hidden directory that it is written in",
                          {.file = directory.string()});
  }
  return {path.parent_path(), std::move(name)};
}

namespace {

bool looks_like_checkpoint(std::span<const FileInfo> entries) {
  const auto is_part = [](const FileInfo& entry) {
    return entry.name == kConfigFile || entry.name.ends_with(".distcp");
  };
  const std::span<const LoadStrategyEntry> strategies = load_strategies();
  return std::any_of(entries.begin(), entries.end(), is_part) ||
         std::any_of(strategies.begin(), strategies.end(), [&](const LoadStrategyEntry& strategy) {
           return strategy.recognises && strategy.recognises(entries);
         });
}

}  // namespace

void check_replaceable(const TargetPath& target) {
  const std::filesystem::path path = target.parent / target.name;
  std::error_code nothing_there;
  if (!std::filesystem::is_directory(path, nothing_there)) return;
  const std::vector<std::uint64_t> iterations = list_iterations(path);
  if (iterations.empty() && !std::filesystem::exists(path / kTrackerFile, nothing_there)) {
    if (parse_iteration_directory(target.name)) return;  // whatever a save has left of it
    const std::vector<FileInfo> entries = posix_storage(path)->list("");
    if (entries.empty() || looks_like_checkpoint(entries)) return;
    throw CheckpointError(
        ErrorCode::kAlreadyExists,
        "refusing to replace a directory that is no checkpoint (it holds " +
            dckpt::quoted(entries.front().name) +
            (entries.size() > 1 ? " and " + grouped(entries.size() - 1) + " more" : "") +
            "): remove it first if it is not needed, or choose another name",
        {.file = path.string()});
  }
  throw CheckpointError(
      ErrorCode::kAlreadyExists,
      "refusing to replace a training root (it has " + describe_iterations(iterations) +
          "): a checkpoint goes into a directory in it, for example " +
          dckpt::quoted(iteration_directory(iterations.empty() ? 0 : iterations.back())),
      {.file = path.string()});
}

}  // namespace dckpt
