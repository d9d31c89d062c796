#include "operations/inspect/root_survey.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/retention.h"
#include "dist_checkpointing/training_root/root_links.h"
#include "dist_checkpointing/training_root/still_root.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"
#include "operations/inspect/inspect.h"

namespace dckpt {
namespace {

using State = IterationSummary::State;

State state_of(Unfinished::Kind kind) {
  switch (kind) {
    case Unfinished::Kind::kNoMetadata: return State::kNoMetadata;
    case Unfinished::Kind::kFileMissing: return State::kFileMissing;
    case Unfinished::Kind::kFileTruncated: return State::kFileTruncated;
    case Unfinished::Kind::kDamaged:
    case Unfinished::Kind::kUnsound: break;
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
    if (options_.known == nullptr) return;
    for (const IterationSummary& known : options_.known->iterations)
      known_.emplace(known.directory, &known);
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
    const auto at_once = static_cast<int>(
        std::clamp<std::size_t>(count, 1, static_cast<std::size_t>(std::max(options_.threads, 1))));
    threads_each_ = options_.threads / at_once;
    parallel_for(count, options_.threads, [&](std::size_t i) { examine(first + i); });
    threads_each_ = options_.threads;
  }

  /// Examines a checkpoint, once.
  void examine(std::size_t i) {
    IterationSummary& summary = survey_.iterations[i];
    if (summary.state != State::kNotExamined) return;
    const Location checkpoint = root_ / summary.directory;
    try {
      add_files(checkpoint, summary);
      if (const IterationSummary* const known = known_as(summary)) {
        std::tie(summary.state, summary.why, summary.loads) =
            std::tie(known->state, known->why, known->loads);
        return;
      }
      const auto wrong = judge(checkpoint, options_.examination);
      summary.state = wrong ? state_of(wrong->kind) : State::kComplete;
      summary.loads = !wrong || wrong->kind == Unfinished::Kind::kUnsound;
      if (wrong) summary.why = wrong->why;
      if (!summary.loads &&
          std::ranges::any_of(list_marks(root_, summary.directory), is_running_save))
        summary.state = State::kBeingSaved;
    } catch (const CheckpointError& error) {
      summary.state = State::kUnreadable;
      summary.why = error.what();
      errors_[i] = error;
    }
  }

  std::optional<Unfinished> judge(const Location& checkpoint, Examination examination) const {
    if (examination == Examination::kFinished)
      return find_unfinished(checkpoint, options_.strategy);
    return find_unsound(checkpoint, options_.strategy,
                        {.deep = examination == Examination::kAllBytes, .threads = threads_each_});
  }

  /// Returns what SurveyOptions::known says of a checkpoint that loads.
  const IterationSummary* known_as(const IterationSummary& summary) const {
    const auto known = known_.find(summary.directory);
    if (known == known_.end() || known->second->saved != summary.saved ||
        known->second->bytes != summary.bytes || known->second->files != summary.files ||
        !known->second->loads)
      return nullptr;
    return known->second;
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
    const RootKnowledge knowledge{
        .why_incomplete = [&](const std::string& directory) -> std::optional<std::string> {
          const auto found = index_.find(directory);
          if (found == index_.end()) return "it does not exist";
          examine(found->second);
          if (errors_[found->second]) throw *errors_[found->second];
          const IterationSummary& summary = survey_.iterations[found->second];
          if (summary.loads) return std::nullopt;
          return summary.why;
        },
        .is_sound = [&](const std::string& directory) { return is_sound(index_.at(directory)); }};
    try {
      survey_.resume = choose_latest(root_, knowledge);
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
    const auto counts = [&](std::uint64_t iteration) {
      return iteration == next || is_sound(index_.at(iteration_directory(iteration)));
    };
    const RootLinks links(root_);
    for (const std::uint64_t old :
         iterations_to_delete(iterations, next, retention, {&loaded, 1}, links.once_each(counts))) {
      const std::string name = iteration_directory(old);
      if (!links.why_kept(name)) survey_.iterations[index_.at(name)].removed_by_policy = true;
    }
  }

  /// Returns whether Checkpointer counts a checkpoint among those that are kept.
  bool is_sound(std::size_t i) {
    examine(i);
    const IterationSummary& summary = survey_.iterations[i];
    if (!summary.loads || options_.examination != Examination::kFinished)
      return summary.state == State::kComplete;
    try {
      return !judge(root_ / summary.directory, Examination::kSound);
    } catch (const CheckpointError&) {
      return false;
    }
  }

  const Location& root_;
  const SurveyOptions& options_;
  int threads_each_ = 1;  // of a checkpoint that is examined
  RootSurvey survey_;
  std::unordered_map<std::string, std::size_t> index_;  // by directory
  std::vector<std::optional<CheckpointError>> errors_;  // parallel to survey_.iterations
  std::unordered_map<std::string_view, const IterationSummary*> known_;
};

}  // namespace

RootSurvey survey_root(const Location& root, const SurveyOptions& options) try {
  const auto is_fine = [](const RootSurvey& survey) {
    return survey.resume.passed_over.empty() &&
           std::ranges::all_of(survey.iterations, [](const IterationSummary& summary) {
             return summary.loads || summary.state == State::kNotExamined;
           });
  };
  RootSurvey last;
  SurveyOptions again = options;
  const auto look = [&] {
    last = Surveyor(root, again).run();
    again.known = &last;
    return last;
  };
  RootSurvey survey = look_at_still_root(root, look, is_fine);
  // A job that goes on removing checkpoints is faster than the last look.
  std::erase_if(survey.iterations, [&](const IterationSummary& summary) {
    return !summary.loads && summary.state != State::kNotExamined &&
           !(root / summary.directory).is_directory();
  });
  return survey;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
