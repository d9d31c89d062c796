#include "dist_checkpointing/training_root/latest.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/still_root.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"

namespace dckpt {
namespace {

/// Number of the newest iterations that are examined for an advice.
constexpr std::ptrdiff_t kMostAdvised = 16;

/// Tries candidates, and remembers why each was passed over.
class LatestFinder {
 public:
  LatestFinder(Location root, const RootKnowledge& knowledge)
      : root_(std::move(root)), knowledge_(knowledge) {}

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
          pass_over(str_format("{}: not used, because {} names {}{}", describe_iterations(newer),
                               tracker(), *tracked == kReleaseDirectory ? "" : "an older one, ",
                               quote(*tracked)));
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
    const auto reason =
        checkpoint.is_directory() ? knowledge_.why_incomplete(directory) : "it does not exist";
    if (reason) pass_over(str_format("'{}' is not used: {}", directory, *reason));
    return !reason;
  }

  void pass_over(std::string why) { choice_.passed_over.push_back(std::move(why)); }

  std::string tracker() const { return tracker_file(*root_.directory()); }

  /// Refuses to resume elsewhere. An older checkpoint is a substitute if a crash or a damaged disk
  /// has destroyed the one that the tracker names. But a tracker that names nothing, or that
  /// somebody has set back to a checkpoint that cannot be loaded, expresses an intention.
  [[noreturn]] void stop(const std::string& tracked, const std::string& why) const {
    const std::vector<std::uint64_t> iterations = list_iterations(root_);
    throw_error(ErrorCode::kIncomplete, {.file = root_.display()},
                "{} names {}, and {}; {}; the root has {}", tracker(), quote(tracked), why,
                advice(iterations), describe_iterations(iterations));
  }

  /// Says what to do, and points only to what is sound.
  std::string advice(const std::vector<std::uint64_t>& iterations) const {
    std::optional<std::uint64_t> complete, sound;  // the newest
    const auto count = std::min(std::ssize(iterations), kMostAdvised);
    for (auto next = iterations.rbegin(); !sound && next != iterations.rbegin() + count; ++next) {
      const std::string directory = iteration_directory(*next);
      try {
        if (knowledge_.why_incomplete(directory)) continue;
        if (!complete) complete = *next;
        if (knowledge_.is_sound(directory)) sound = *next;
      } catch (const CheckpointError&) {  // it cannot be examined, and is not what to point to
      }
    }
    const std::string write = "write the iteration to resume from into the file";
    if (sound && sound == complete)
      return write + ", or remove the file if it is to be the newest complete one";
    return sound ? str_format("{}; {} is the newest sound one", write, *sound)
                 : str_format("{}; none of the newest is sound", write);
  }

  const Location root_;
  const RootKnowledge& knowledge_;
  LatestChoice choice_;
};

}  // namespace

LatestChoice choose_latest(const Location& root, const StrategySpec& strategy) {
  const RootKnowledge knowledge{
      .why_incomplete =
          [&](const std::string& directory) { return why_incomplete(root / directory, strategy); },
      .is_sound =
          [&](const std::string& directory) {
            return !find_unsound(root / directory, strategy).has_value();
          }};
  return look_at_still_root(
      root, [&] { return choose_latest(root, knowledge); },
      [](const LatestChoice& choice) { return choice.passed_over.empty(); });
}

LatestChoice choose_latest(const Location& root, const RootKnowledge& knowledge) {
  return LatestFinder(root, knowledge).find();
}

std::optional<LatestCheckpoint> find_latest(const Location& root, const StrategySpec& strategy) {
  LatestChoice choice = choose_latest(root, strategy);
  if (!choice.checkpoint && !choice.passed_over.empty()) {
    std::string message =
        "there is no complete checkpoint to resume from (to start over, choose another root):";
    for (const std::string& why : choice.passed_over) message += "\n  " + why;
    throw_error(ErrorCode::kIncomplete, {.file = root.display()}, message);
  }
  if (choice.checkpoint && !choice.passed_over.empty())
    choice.passed_over.push_back("resuming from " + quote(choice.checkpoint->directory));
  for (const std::string& why : choice.passed_over)
    log_warning(str_format("training root {}: {}", quote(root.display()), why));
  return choice.checkpoint;
}

}  // namespace dckpt
