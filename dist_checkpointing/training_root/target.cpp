#include "dist_checkpointing/training_root/target.h"

#include <algorithm>
#include <span>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/foreign_entries.h"
#include "mapping/base/error.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/publication.h"

namespace dckpt {

namespace {

bool looks_like_checkpoint(const Storage& directory, std::span<const FileInfo> entries) {
  const auto is_part = [](const FileInfo& entry) {
    return entry.name == kConfigFile || entry.name.ends_with(".distcp") ||
           entry.name.starts_with(kClaimPrefix);  // left by a save in place
  };
  const std::span<const LoadStrategyEntry> strategies = load_strategies();
  return std::any_of(entries.begin(), entries.end(), is_part) ||
         std::any_of(strategies.begin(), strategies.end(), [&](const LoadStrategyEntry& strategy) {
           return recognizes(strategy, directory, entries);
         });
}

}  // namespace

void require_target_name(const Location& target) {
  if (target.name().empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                quote(target.display()) + " is not a valid name for a new checkpoint directory");
  }
  if (target.name().size() > kMaxTargetNameBytes) {
    throw_error(ErrorCode::kInvalidArgument, {.file = target.display()},
                "the name of the checkpoint to write has {} bytes; at most {} "
                "leave room for the hidden directory that it is written in",
                grouped(target.name().size()), grouped(kMaxTargetNameBytes));
  }
}

void check_replaceable(const Location& target) {
  if (!target.is_directory()) return;
  const std::shared_ptr<Storage> directory = target.directory();
  const std::vector<std::uint64_t> iterations = list_iterations(target);
  if (iterations.empty() && !directory->stat(kTrackerFile)) {
    if (parse_iteration_directory(target.name())) return;  // leftovers of a save
    const std::vector<FileInfo> entries = directory->list("");
    if (entries.empty() || looks_like_checkpoint(*directory, entries)) return;
    // Leftovers of a discarded save whose list was late.
    if (!directory->capabilities().rename && foreign_entries(target).empty()) return;
    throw_error(
        ErrorCode::kAlreadyExists, {.file = target.display()},
        "refusing to replace a directory that is not a checkpoint (it holds {}{}): remove it "
        "first if it is not needed, or choose another name",
        quote(entries.front().name),
        entries.size() > 1 ? str_format(" and {} more", grouped(entries.size() - 1)) : "");
  }
  throw_error(ErrorCode::kAlreadyExists, {.file = target.display()},
              "refusing to replace a training root (it has {}): a checkpoint goes into a "
              "directory in it, for example {}",
              describe_iterations(iterations),
              quote(iteration_directory(iterations.empty() ? 0 : iterations.back())));
}

}  // namespace dckpt
