#include "dist_checkpointing/inspect/root_survey.h"

#include <algorithm>
#include <unordered_map>

#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/tracker.h"
#include "dist_checkpointing/training_root/retention.h"
#include "dist_checkpointing/training_root/root_links.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"

namespace dckpt {
namespace {

using State = IterationSummary::State;

State state_of(Unfinished::Kind kind) {
  switch (kind) {
    case Unfinished::Kind::kNoMetadata: return State::kNoMetadata;
    case Unfinished::Kind::kFileMissing: return State::kFileMissing;
    case Unfinished::Kind::kFileTruncated: return State::kFileTruncated;
    case Unfinished::Kind::kDamaged: break;
  }
  return State::kDamaged;
}

bool is_running_save(const UnfinishedWork& mark) {
  return mark.purpose == "claim" && mark.state == UnfinishedWork::State::kRunning;
}

class Surveyor {
 public:
  Surveyor(const Location& root, const SurveyOptions& options) : root_(root), options_(options) {}

  RootSurvey run() {
    list();
    find_tracked();
    examine_newest();
    choose_resume();
    if (options_.retention) apply_retention(*options_.retention);
    return std::move(survey_);
  }

 private:
  void list() {
    const std::shared_ptr<Storage> storage = root_.directory();
    for (const FileInfo& entry : storage->list("")) {
      const auto iteration = parse_iteration_directory(entry.name);
      if (!iteration && entry.name != kReleaseDirectory) continue;
      const auto target =
          entry.kind == FileInfo::Kind::kOther ? storage->stat_target(entry.name) : entry;
      if (!target || target->kind != FileInfo::Kind::kDirectory) continue;
      survey_.iterations.push_back(
          {.directory = entry.name, .iteration = iteration, .saved = target->modified});
    }
    std::ranges::sort(survey_.iterations, {}, &IterationSummary::iteration);
    for (std::size_t i = 0; i < survey_.iterations.size(); ++i)
      index_.emplace(survey_.iterations[i].directory, i);
    errors_.resize(survey_.iterations.size());
    survey_.unfinished = list_unfinished_work(root_);
  }

  void find_tracked() {
    survey_.tracker = tracker_file(*root_.directory());
    try {
      survey_.tracked = read_tracker(*root_.directory());
    } catch (const CheckpointError&) {  // choose_latest() adds it to `passed_over`
    }
    if (!survey_.tracked) return;
    if (const auto found = index_.find(*survey_.tracked); found != index_.end())
      survey_.iterations[found->second].tracked = true;
  }

  void examine_newest() {
    const std::size_t count = std::min(options_.newest, survey_.iterations.size());
    const std::size_t first = survey_.iterations.size() - count;
    parallel_for(count, options_.threads, [&](std::size_t i) { examine(first + i); });
  }

  /// Examines a checkpoint, once.
  void examine(std::size_t i) {
    IterationSummary& summary = survey_.iterations[i];
    if (summary.state != State::kNotExamined) return;
    const Location checkpoint = root_ / summary.directory;
    try {
      add_files(checkpoint, summary);
      const auto unfinished = find_unfinished(checkpoint, options_.strategy);
      summary.state = unfinished ? state_of(unfinished->kind) : State::kComplete;
      if (unfinished) summary.why = unfinished->why;
      if (unfinished && std::ranges::any_of(list_marks(root_, summary.directory), is_running_save))
        summary.state = State::kBeingSaved;
    } catch (const CheckpointError& error) {
      summary.state = State::kUnreadable;
      summary.why = error.what();
      errors_[i] = error;
    }
  }

  static void add_files(const Location& checkpoint, IterationSummary& summary) {
    std::int64_t newest = 0;
    for (const FileSummary& file : list_files(*checkpoint.directory())) {
      ++summary.files;
      summary.bytes += file.bytes;
      newest = std::max(newest, file.modified);
    }
    if (newest != 0) summary.saved = newest;
  }

  void choose_resume() {
    const auto check = [&](const std::string& directory) -> std::optional<std::string> {
      const auto found = index_.find(directory);
      if (found == index_.end()) return "it does not exist";
      examine(found->second);
      if (errors_[found->second]) throw *errors_[found->second];
      const IterationSummary& summary = survey_.iterations[found->second];
      if (summary.state == State::kComplete) return std::nullopt;
      return summary.why;
    };
    try {
      survey_.resume = choose_latest(root_, check);
    } catch (const CheckpointError& error) {
      survey_.resume.passed_over.push_back(error.what());
    }
    if (!survey_.resume.checkpoint) return;
    if (const auto found = index_.find(survey_.resume.checkpoint->directory); found != index_.end())
      survey_.iterations[found->second].resumed = true;
  }

  /// Marks the checkpoints that Checkpointer deletes after its next save. It keeps the checkpoint
  /// that it has loaded, those newer than that save, and links with what they lead to.
  void apply_retention(const Retention& retention) {
    const auto resumed = std::ranges::find_if(survey_.iterations, &IterationSummary::resumed);
    if (resumed == survey_.iterations.end() || !resumed->iteration) return;
    const std::uint64_t loaded = *resumed->iteration;
    std::vector<std::uint64_t> iterations;
    for (const IterationSummary& summary : survey_.iterations) {
      if (summary.iteration && *summary.iteration <= loaded)
        iterations.push_back(*summary.iteration);
    }
    const std::uint64_t next = loaded + 1;
    iterations.push_back(next);
    const auto is_complete = [&](std::uint64_t iteration) {
      const std::size_t i = index_.at(iteration_directory(iteration));
      examine(i);
      return survey_.iterations[i].state == State::kComplete;
    };
    const RootLinks links(*root_.directory());
    for (const std::uint64_t old : iterations_to_delete(iterations, next, retention, {&loaded, 1},
                                                        links.once_each(next, is_complete))) {
      const std::string name = iteration_directory(old);
      if (!links.why_kept(name)) survey_.iterations[index_.at(name)].removed_by_policy = true;
    }
  }

  const Location& root_;
  const SurveyOptions& options_;
  RootSurvey survey_;
  std::unordered_map<std::string, std::size_t> index_;  // by directory
  std::vector<std::optional<CheckpointError>> errors_;  // parallel to survey_.iterations
};

}  // namespace

RootSurvey survey_root(const Location& root, const SurveyOptions& options) try {
  return Surveyor(root, options).run();
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
