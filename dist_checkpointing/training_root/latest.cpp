#include "dist_checkpointing/training_root/latest.h"

#include <algorithm>
#include <vector>

#include "dist_checkpointing/tracker.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

std::optional<std::string> why_files_incomplete(const CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  std::vector<std::uint64_t> needed(metadata.files.size(), 0);
  const auto need = [&](const StorageInfo& place) {
    needed[place.file] = std::max(needed[place.file], place.offset + place.length);
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    std::ranges::for_each(tensor.places, need);
  for (const BytesStorageMetadata& object : metadata.objects) need(object.place);
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const std::string name = quote(metadata.files[i]);
    const auto file = reader.storage().stat(metadata.files[i]);
    if (!file) return name + " is missing";
    if (file->kind != FileInfo::Kind::kRegular) return name + " is not a regular file";
    if (file->size < needed[i])
      return str_format("{} has {} bytes of {}: it is truncated", name, grouped(file->size),
                        grouped(needed[i]));
  }
  return std::nullopt;
}

/// Megatron writes metadata.json last, and a directory without it could pass for a plain DCP one;
/// but those have no common state.
bool lacks_config(const CheckpointReader& reader) {
  return reader.info().conventions.keys_are_paths && reader.info().common_place;
}

/// About the checkpoint itself: it could not be looked at, or not soundly.
bool says_nothing(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kUnavailable || code == ErrorCode::kAborted ||
         code == ErrorCode::kInternal;
}

/// Goes through candidates, and remembers why each was passed over.
class Search {
 public:
  Search(Location root, StrategySpec strategy)
      : root_(std::move(root)), strategy_(std::move(strategy)) {}

  LatestChoice run() {
    choose();
    return std::move(choice_);
  }

 private:
  void choose() {
    const std::optional<std::string> tracked = tracked_directory();
    std::vector<std::uint64_t> iterations = list_iterations(root_);
    if (tracked && accepts(*tracked)) {
      const std::uint64_t iteration = parse_iteration_directory(*tracked).value_or(0);
      iterations.erase(iterations.begin(), std::ranges::upper_bound(iterations, iteration));
      if (!iterations.empty()) {
        pass_over(str_format("{}: not used, because {} names an older one, {}",
                             describe_iterations(iterations), tracker(), quote(*tracked)));
      }
      return take({*tracked, iteration}, tracker() + " names it");
    }
    for (; !iterations.empty(); iterations.pop_back()) {
      const std::string directory = iteration_directory(iterations.back());
      if (directory != tracked && accepts(directory))
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
    const auto reason =
        checkpoint.is_directory() ? why_incomplete(checkpoint, strategy_) : "it does not exist";
    if (reason) pass_over(str_format("'{}' is not used: {}", directory, *reason));
    return !reason;
  }

  void pass_over(std::string why) { choice_.passed_over.push_back(std::move(why)); }

  std::string tracker() const { return tracker_file(*root_.directory()); }

  std::optional<std::string> tracked_directory() {
    try {
      return read_tracker(*root_.directory());
    } catch (const CheckpointError& error) {
      if (says_nothing(error.code())) throw;
      pass_over(error.what());
      return std::nullopt;
    }
  }

  const Location root_;
  const StrategySpec strategy_;
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

std::optional<std::string> why_incomplete(const Location& checkpoint,
                                          const StrategySpec& strategy) {
  try {
    const auto reader = open_in_root(checkpoint, strategy);
    if (lacks_config(*reader))
      return "metadata.json is missing: the save was interrupted before it finished";
    reader->common_state();
    return why_files_incomplete(*reader);
  } catch (const CheckpointError& error) {
    // What a strategy was told is not about the checkpoint either.
    const bool is_of_policy =
        error.code() == ErrorCode::kInvalidArgument && strategy.name != kAutoStrategy;
    if (is_of_policy || says_nothing(error.code()) || error.code() == ErrorCode::kUnsupported)
      throw;
    return error.what();
  }
}

LatestChoice choose_latest(const Location& root, const StrategySpec& strategy) {
  return Search(root, strategy).run();
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
