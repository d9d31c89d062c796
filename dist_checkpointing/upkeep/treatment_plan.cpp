#include "dist_checkpointing/upkeep/treatment_plan.h"

#include <algorithm>
#include <set>

#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/training_root/retention.h"
#include "dist_checkpointing/training_root/root_links.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/upkeep/may_go_on.h"
#include "dist_checkpointing/upkeep/set_aside.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

using Kind = TreatmentStep::Kind;
using Owner = UnfinishedWork::State;
using IterationState = IterationSummary::State;

/// Returns "2000" for "iter_0002000": what the tracker holds, and --restore takes.
std::string short_name(const std::string& directory) {
  const auto iteration = parse_iteration_directory(directory);
  return iteration ? std::to_string(*iteration) : directory;
}

std::string original_of(const UnfinishedWork& work) {
  return parse_hidden_sibling(work.name).value_or(HiddenSibling{}).name;
}

/// Returns why this can be removed.
const char* reason(const UnfinishedWork& work) {
  if (work.purpose == "saving") return "unfinished save";
  if (work.purpose == "replaced") return "was replaced by a save";
  if (work.purpose == "deleting") return "unfinished deletion";
  if (work.purpose == "interrupted") return "interrupted conversion, which --resume could continue";
  if (work.purpose == "tmp") return "unfinished write of the tracker";
  return work.purpose == "claim" ? "claim of a save that has ended"
                                 : "lock of a removal that has ended";
}

/// Returns why work that has not certainly ended stays.
const char* why_it_may_run(const UnfinishedWork& work) {
  if (work.purpose == "tmp") return "it is new";
  return is_of_pool(work.name)
             ? "it is of a pool of workers, whose hosts are not known here; give the conversion up "
               "with 'dckpt workers DIR --remove', or say --all-jobs-ended if you know that none "
               "is at work"
             : "its job may be running on another host; say --all-jobs-ended if you know that none "
               "is at work";
}

class Planner {
 public:
  Planner(const Location& root, const Treatment& treatment, TreatmentReport& report)
      : root_(root), treatment_(treatment), report_(report), found_(report.diagnosis) {}

  void plan() {
    if (treatment_.restore) restore(treatment_.restore->directory());
    if (treatment_.restore_tracker) restore(kTrackerFile);
    if (treatment_.quarantine) quarantine(treatment_.quarantine->directory());
    if (treatment_.clean) clean();
    if (treatment_.prune) prune(*treatment_.prune);
    if (treatment_.repair_tracker) repair_tracker();
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw CheckpointError(code, message, {.file = root_.display()});
  }

  /// Returns the newest of what has this original name; null if there is none.
  const SetAside* newest_aside(const std::string& original) const {
    const SetAside* newest = nullptr;
    for (const SetAside& aside : found_.set_aside) {
      if (aside.original == original && (newest == nullptr || aside.number > newest->number))
        newest = &aside;
    }
    return newest;
  }

  AsideName next_aside(const std::string& original) const {
    const SetAside* const newest = newest_aside(original);
    return {original, newest == nullptr ? 1 : newest->number + 1};
  }

  void restore(const std::string& original) {
    const SetAside* const aside = newest_aside(original);
    if (aside == nullptr) {
      std::vector<std::string> names;
      for (const SetAside& other : found_.set_aside) names.push_back(other.original);
      fail(ErrorCode::kIncomplete,
           str_format("there is no {} to restore; {}", quote(original),
                      names.empty() ? "nothing is set aside here"
                                    : "set aside are " + quoted_list(names)));
    }
    const bool is_tracker = original == kTrackerFile;
    const auto present = root_.directory()->stat(original);
    if (present && !(is_tracker && present->kind == FileInfo::Kind::kRegular)) {
      fail(ErrorCode::kAlreadyExists,
           str_format("{} is there again; set it aside before the other one is restored",
                      quote(original)));
    }
    report_.steps.push_back(
        {Kind::kBringBack, aside->name, original, present ? "the present tracker is replaced" : "",
         aside->bytes, is_tracker ? "--repair-tracker" : "--quarantine " + short_name(original)});
  }

  void quarantine(const std::string& directory) {
    const IterationSummary* const checkpoint = found_.find(directory);
    if (checkpoint == nullptr) {
      fail(ErrorCode::kIncomplete,
           str_format("there is no {} in this training root, which has {}{}", quote(directory),
                      describe_iterations(list_iterations(root_)),
                      newest_aside(directory) == nullptr
                          ? ""
                          : "; it is set aside already, and --restore brings it back"));
    }
    require_unused(*checkpoint);
    const Verdict verdict = verdict_of(checkpoint->state);
    std::string why(name_of(kVerdictNames, verdict));
    if (!checkpoint->why.empty()) why += ": " + checkpoint->why;
    report_.steps.push_back({Kind::kSetAside, directory, to_string(next_aside(directory)), why,
                             checkpoint->bytes, "--restore " + short_name(directory)});
    gone_ = RootLinks(*root_.directory()).links_to(directory);
    for (const std::string& link : gone_)
      report_.remarks.push_back(
          str_format("{} leads to {}, and will lead nowhere", quote(link), quote(directory)));
    gone_.push_back(directory);
    if (found_.survey.tracked && is_gone(*found_.survey.tracked) && !treatment_.repair_tracker) {
      report_.remarks.push_back(
          str_format("{} names {}: without it a run stops, unless --repair-tracker is given too",
                     found_.survey.tracker, quote(*found_.survey.tracked)));
    }
  }

  bool is_gone(const std::string& directory) const {
    return std::ranges::find(gone_, directory) != gone_.end();
  }

  /// Throws (aborted) if a job may be using a checkpoint.
  void require_unused(const IterationSummary& checkpoint) const {
    const std::string& directory = checkpoint.directory;
    const bool runs = std::ranges::any_of(found_.leftovers, [&](const Leftover& leftover) {
      return leftover.work.state == Owner::kRunning && parent_name(leftover.work.name) == directory;
    });
    if (runs || checkpoint.state == IterationState::kBeingSaved)
      fail(ErrorCode::kAborted,
           str_format("a running job is at work in {}: wait until it has ended", quote(directory)));
    if (found_.is_written(directory) && !treatment_.all_jobs_ended) {
      fail(
          ErrorCode::kAborted,
          str_format("a job may still be writing {}: it is not finished, and a job of another host "
                     "has claimed it, or it has changed within the last {} minutes; wait, or say "
                     "--all-jobs-ended if you know that no job is at work",
                     quote(directory), kSettled.count()));
    }
  }

  void clean() {
    std::set<std::string> seen;  // checkpoints with a step
    for (const Leftover& leftover : found_.leftovers) {
      const UnfinishedWork& work = leftover.work;
      if (treatment_.quarantine && parent_name(work.name) == treatment_.quarantine->directory())
        continue;  // it goes along
      if (work.state == Owner::kRunning) {
        report_.remarks.push_back(quote(work.name) + " stays: its job is running");
      } else if (work.state == Owner::kElsewhere && !treatment_.all_jobs_ended) {
        report_.remarks.push_back(quote(work.name) + " stays: " + why_it_may_run(work));
      } else if (is_claimed_by_others(work)) {
        report_.remarks.push_back(quote(work.name) + " stays: another job has a later claim");
      } else if (leftover.comes_back && seen.insert(original_of(work)).second) {
        report_.steps.push_back({Kind::kBringBack, work.name, original_of(work),
                                 "the save that was replacing it died", leftover.bytes});
      } else if (const IterationSummary* const checkpoint = unfinished_in_place(work)) {
        if (seen.insert(checkpoint->directory).second)
          report_.steps.push_back({Kind::kRemove, checkpoint->directory, "",
                                   "unfinished save of a job that has ended", checkpoint->bytes});
      } else {
        report_.steps.push_back({Kind::kRemove, work.name, "", reason(work), leftover.bytes});
      }
    }
  }

  /// Returns whether a claim lies in a directory that another owner has claimed, who counts claims.
  bool is_claimed_by_others(const UnfinishedWork& work) const {
    return work.purpose == "claim" &&
           std::ranges::any_of(found_.leftovers, [&](const Leftover& other) {
             return other.work.purpose == "claim" &&
                    parent_name(other.work.name) == parent_name(work.name) &&
                    (other.work.state == Owner::kRunning ||
                     (other.work.state == Owner::kElsewhere && !treatment_.all_jobs_ended));
           });
  }

  /// Returns the checkpoint that a save in place, which has ended, has left without its end.
  const IterationSummary* unfinished_in_place(const UnfinishedWork& work) const {
    if (work.purpose != "claim") return nullptr;
    const IterationSummary* const checkpoint = found_.find(parent_name(work.name));
    return checkpoint != nullptr && checkpoint->state == IterationState::kNoMetadata ? checkpoint
                                                                                     : nullptr;
  }

  void prune(const Retention& retention) {
    const auto& resumed = found_.survey.resume.checkpoint;
    if (retention.keep_last == 0) {
      fail(ErrorCode::kInvalidArgument,
           "the retention keeps everything: say how many of the newest checkpoints stay "
           "(--keep-last N, or retention.keep_last of the policy)");
    }
    if (!resumed) {
      const auto& reasons = found_.survey.resume.passed_over;
      fail(ErrorCode::kIncomplete, "a run would not resume here, so nothing is removed" +
                                       (reasons.empty() ? "" : ": " + reasons.back()));
    }
    std::vector<std::uint64_t> iterations;
    for (const IterationSummary& checkpoint : found_.survey.iterations)
      if (checkpoint.iteration) iterations.push_back(*checkpoint.iteration);
    const std::uint64_t saved = resumed->iteration;
    const auto is_complete = [&](std::uint64_t iteration) {
      return found_.find(iteration_directory(iteration))->state == IterationState::kComplete;
    };
    const RootLinks links(*root_.directory());
    for (const std::uint64_t old : iterations_to_delete(iterations, saved, retention, {&saved, 1},
                                                        links.once_each(saved, is_complete))) {
      const std::string name = iteration_directory(old);
      if (const auto why = links.why_kept(name))
        report_.remarks.push_back(quote(name) + " stays: " + *why);
      else if (is_in_use(name))
        report_.remarks.push_back(quote(name) + " stays: a job may be at work in it");
      else
        report_.steps.push_back({Kind::kDelete, name, "", "", found_.find(name)->bytes});
    }
  }

  bool is_in_use(const std::string& directory) const {
    return found_.is_written(directory) ||
           std::ranges::any_of(found_.leftovers, [&](const Leftover& leftover) {
             return parent_name(leftover.work.name) == directory &&
                    leftover.work.state != Owner::kEnded;
           });
  }

  void repair_tracker() {
    const auto& tracked = found_.survey.tracked;
    const bool is_there = root_.directory()->stat(kTrackerFile).has_value();
    const auto write = [&](const std::string& directory, const std::string& why) {
      report_.steps.push_back({Kind::kWriteTracker, kTrackerFile, short_name(directory), why, 0,
                               is_there ? "--restore tracker" : ""});
    };
    if (tracked && found_.tracker_problem.empty() && !is_gone(*tracked)) {
      if (is_there && !found_.megatron.directory)
        return write(*tracked, "Megatron does not read its present form");
      report_.remarks.push_back(str_format("{} names {}, which is complete, and stays as it is",
                                           found_.survey.tracker, quote(*tracked)));
      return;
    }
    // A run does not read a tracker that is a link; Megatron does.
    const auto& linked = found_.megatron.directory;
    if (!tracked && linked && !is_gone(*linked) &&
        found_.find(*linked)->state == IterationState::kComplete)
      return write(*linked, found_.tracker_problem);
    const std::optional<std::string> best = newest_sound();
    if (!best) {
      fail(ErrorCode::kIncomplete,
           "there is no complete checkpoint that the tracker could name; to start over, choose "
           "another root");
    }
    write(*best, tracked && is_gone(*tracked)     ? "it names what is set aside"
                 : found_.tracker_problem.empty() ? "there is none"
                                                  : found_.tracker_problem);
  }

  /// Returns the newest complete checkpoint that verify() accepts; `release` is the oldest.
  std::optional<std::string> newest_sound() {
    for (auto checkpoint = found_.survey.iterations.rbegin();
         checkpoint != found_.survey.iterations.rend(); ++checkpoint) {
      const std::string& directory = checkpoint->directory;
      if (checkpoint->state != IterationState::kComplete || is_gone(directory)) continue;
      if (found_.deep) return directory;  // the diagnosis has verified it
      const DiagnoseOptions& options = treatment_.diagnose;
      try {
        const VerifyReport report = verify(*open_in_root(root_ / directory, options.strategy),
                                           {.threads = options.threads});
        if (report.ok()) return directory;
        report_.remarks.push_back(str_format("the tracker will not name {}: {}", quote(directory),
                                             report.problems.front().what()));
      } catch (const CheckpointError& error) {
        report_.remarks.push_back(
            str_format("the tracker will not name {}: {}", quote(directory), error.what()));
      }
    }
    return std::nullopt;
  }

  const Location& root_;
  const Treatment& treatment_;
  TreatmentReport& report_;
  const RootDiagnosis& found_;
  std::vector<std::string> gone_;  // the directory to be set aside, and links that lead to it
};

}  // namespace

TreatmentReport plan_treatment(const Location& root, const Treatment& treatment,
                               const DiagnoseOptions& options) {
  TreatmentReport report{.diagnosis = diagnose_root(root, options)};
  report.resume = report.diagnosis.survey.resume;
  Planner(root, treatment, report).plan();
  return report;
}

}  // namespace dckpt
