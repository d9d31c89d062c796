#include "dist_checkpointing/training_root/latest.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "dist_checkpointing/data_files.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/tracker.h"
#include "dist_checkpointing/training_root/removal.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

/// Returns whether metadata.json is missing from Megatron's checkpoint, which writes it last and
/// would pass for a plain DCP one without it. Plain DCP directories have no common state, or copies
/// of its values from a conversion.
bool lacks_config(const CheckpointReader& reader) {
  return reader.info().conventions.keys_are_paths && reader.info().common_places.size() == 1;
}

/// Returns whether an error says nothing about the checkpoint itself, because reading it failed.
bool says_nothing(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kUnavailable || code == ErrorCode::kAborted ||
         code == ErrorCode::kInternal;
}

/// Tries candidates, and remembers why each was passed over.
class LatestFinder {
 public:
  LatestFinder(Location root, const CompletenessCheck& check)
      : root_(std::move(root)), check_(check) {}

  LatestChoice find() {
    choose();
    return std::move(choice_);
  }

 private:
  void choose() {
    const std::optional<std::string> tracked = read_tracker(*root_.directory());
    std::vector<std::uint64_t> iterations = list_iterations(root_);
    std::string why_not_tracked;
    std::uint64_t oldest_unwanted = std::numeric_limits<std::uint64_t>::max();
    if (tracked) {
      const std::uint64_t iteration = parse_iteration_directory(*tracked).value_or(0);
      std::vector<std::uint64_t> newer = iterations;
      newer.erase(newer.begin(), std::ranges::upper_bound(newer, iteration));
      if (accepts(*tracked)) {
        if (!newer.empty()) {
          pass_over(str_format("{}: not used, because {} names an older one, {}",
                               describe_iterations(newer), tracker(), quote(*tracked)));
        }
        return take({*tracked, iteration}, tracker() + " names it");
      }
      why_not_tracked = choice_.passed_over.back();
      if (!(root_ / *tracked).is_directory() && !was_being_replaced(root_ / *tracked))
        stop(*tracked, why_not_tracked);
      oldest_unwanted = iteration + 1;
    }
    for (; !iterations.empty(); iterations.pop_back()) {
      const std::string directory = iteration_directory(iterations.back());
      if (directory == tracked || !accepts(directory)) continue;
      if (iterations.back() >= oldest_unwanted) stop(*tracked, why_not_tracked);
      return take({directory, iterations.back()}, "it is the newest complete iteration");
    }
    const bool has_release =
        tracked != kReleaseDirectory && (root_ / kReleaseDirectory).is_directory();
    if (has_release && accepts(kReleaseDirectory))
      take({kReleaseDirectory, 0}, "no iteration is complete");
  }

  void take(LatestCheckpoint checkpoint, std::string why) {
    choice_.checkpoint = std::move(checkpoint);
    choice_.why = std::move(why);
  }

  bool accepts(const std::string& directory) {
    const Location checkpoint = root_ / directory;
    const auto reason = checkpoint.is_directory() ? check_(directory) : "it does not exist";
    if (reason) pass_over(str_format("'{}' is not used: {}", directory, *reason));
    return !reason;
  }

  void pass_over(std::string why) { choice_.passed_over.push_back(std::move(why)); }

  std::string tracker() const { return tracker_file(*root_.directory()); }

  /// Refuses to resume elsewhere. An older checkpoint is a substitute if a crash or a damaged disk
  /// has destroyed the one that the tracker names. But a tracker that names nothing, or that
  /// somebody has set back to a checkpoint that cannot be loaded, expresses an intention.
  [[noreturn]] void stop(const std::string& tracked, const std::string& why) const {
    throw CheckpointError(
        ErrorCode::kIncomplete,
        str_format("{} names {}, and {}; write the iteration to resume from into the file, or "
                   "remove the file if it is to be the newest complete one; the root has {}",
                   tracker(), quote(tracked), why, describe_iterations(list_iterations(root_))),
        {.file = root_.display()});
  }

  const Location root_;
  const CompletenessCheck& check_;
  LatestChoice choice_;
};

}  // namespace

std::unique_ptr<CheckpointReader> open_in_root(const Location& checkpoint,
                                               const StrategySpec& strategy) {
  try {
    return open_checkpoint(checkpoint, {.strategy = strategy});
  } catch (const CheckpointError& error) {
    if (strategy.name == kAutoStrategy || error.code() != ErrorCode::kMismatch) throw;
  }
  return open_checkpoint(checkpoint);
}

std::optional<Unfinished> find_unfinished(const Location& checkpoint,
                                          const StrategySpec& strategy) {
  using Kind = Unfinished::Kind;
  bool opened = false;
  try {
    const auto reader = open_in_root(checkpoint, strategy);
    if (lacks_config(*reader)) {
      return Unfinished{Kind::kNoMetadata,
                        "metadata.json is missing: the save was interrupted before it finished"};
    }
    opened = true;
    reader->common_state();
    const DataFiles files = check_data_files(*reader);
    if (files.complete()) return std::nullopt;
    const Kind kind = files.missing.empty() ? Kind::kFileTruncated : Kind::kFileMissing;
    return Unfinished{kind, describe(files)};
  } catch (const CheckpointError& error) {
    // An error about the strategy's options is not about the checkpoint either.
    const bool is_of_policy =
        error.code() == ErrorCode::kInvalidArgument && strategy.name != kAutoStrategy;
    if (is_of_policy || says_nothing(error.code()) || error.code() == ErrorCode::kUnsupported)
      throw;
    const Kind incomplete = opened ? Kind::kFileMissing : Kind::kNoMetadata;
    const bool is_incomplete = error.code() == ErrorCode::kIncomplete;
    return Unfinished{is_incomplete ? incomplete : Kind::kDamaged, error.what()};
  }
}

std::optional<std::string> why_incomplete(const Location& checkpoint,
                                          const StrategySpec& strategy) {
  std::optional<Unfinished> unfinished = find_unfinished(checkpoint, strategy);
  if (!unfinished) return std::nullopt;
  return std::move(unfinished->why);
}

LatestChoice choose_latest(const Location& root, const StrategySpec& strategy) {
  return choose_latest(root, [&](const std::string& directory) {
    return why_incomplete(root / directory, strategy);
  });
}

LatestChoice choose_latest(const Location& root, const CompletenessCheck& check) {
  return LatestFinder(root, check).find();
}

std::optional<LatestCheckpoint> find_latest(const Location& root, const StrategySpec& strategy) {
  LatestChoice choice = choose_latest(root, strategy);
  if (!choice.checkpoint && !choice.passed_over.empty()) {
    std::string message =
        "there is no complete checkpoint to resume from (to start over, choose another root):";
    for (const std::string& why : choice.passed_over) message += "\n  " + why;
    throw CheckpointError(ErrorCode::kIncomplete, message, {.file = root.display()});
  }
  if (choice.checkpoint && !choice.passed_over.empty())
    choice.passed_over.push_back("resuming from " + quote(choice.checkpoint->directory));
  for (const std::string& why : choice.passed_over)
    log_warning(str_format("training root {}: {}", quote(root.display()), why));
  return choice.checkpoint;
}

}  // namespace dckpt
