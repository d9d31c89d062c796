#include "operations/upkeep/treatment_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "dist_checkpointing/training_root/retention.h"
#include "dist_checkpointing/training_root/root_links.h"
#include "dist_checkpointing/training_root/set_aside.h"
#include "dist_checkpointing/training_root/soundness.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "operations/upkeep/may_go_on.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

using StepKind = TreatmentStep::Kind;
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

  /// Each step is planned for the root as the steps before it leave it.
  void plan() {
    note_owners();
    if (treatment_.restore) restore(treatment_.restore->directory());
    if (treatment_.restore_tracker) {
      const bool is_bridge = newest_aside(kBridgeTrackerFile) != nullptr;
      if (!is_bridge || newest_aside(kTrackerFile) != nullptr) restore(kTrackerFile);
      if (is_bridge) restore(kBridgeTrackerFile);
    }
    if (treatment_.quarantine) quarantine(treatment_.quarantine->directory());
    if (treatment_.clean) clean();
    if (treatment_.repair_tracker || is_gone(found_.survey.tracked)) repair_tracker();
    if (treatment_.prune) prune(*treatment_.prune);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw_error(code, {.file = root_.display()}, message);
  }

  /// Notes which checkpoints jobs that may be alive have marked.
  void note_owners() {
    for (const Leftover& leftover : found_.leftovers) {
      const UnfinishedWork& work = leftover.work;
      const std::string directory = parent_name(work.name);
      if (directory.empty() || work.state == Owner::kEnded) continue;
      in_use_.insert(directory);
      if (work.state == Owner::kRunning) in_use_here_.insert(directory);
      if (work.purpose == "claim" && (work.state == Owner::kRunning || !treatment_.all_jobs_ended))
        claimed_.insert(directory);
    }
  }

  /// Returns whether the steps so far leave a sound checkpoint there.
  bool is_sound(const std::string& directory) const {
    if (back_.contains(directory)) return true;
    const IterationSummary* const found = found_.find(directory);
    return found != nullptr && found->state == IterationState::kComplete && !is_gone(directory);
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
    const bool is_tracker = original == kTrackerFile || original == kBridgeTrackerFile;
    const auto present = root_.directory()->stat(original);
    if (present && !(is_tracker && present->kind == FileInfo::Kind::kRegular)) {
      fail(ErrorCode::kAlreadyExists,
           str_format("{} is there again; set it aside before the other one is restored",
                      quote(original)));
    }
    report_.steps.push_back(
        {StepKind::kBringBack, aside->name, original,
         present ? "the present tracker is replaced" : "", aside->bytes,
         is_tracker ? "--repair-tracker" : "--quarantine " + short_name(original)});
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
    report_.steps.push_back({StepKind::kSetAside, directory,
                             to_string(next_aside(*root_.directory(), directory)), why,
                             checkpoint->bytes, "--restore " + short_name(directory)});
    gone_.insert(directory);
    for (const std::string& link : RootLinks(root_).links_to(directory)) {
      gone_.insert(link);
      report_.remarks.push_back(
          str_format("{} leads to {}, and will lead nowhere", quote(link), quote(directory)));
    }
  }

  bool is_gone(const std::optional<std::string>& directory) const {
    return directory && gone_.contains(*directory) && !back_.contains(*directory);
  }

  /// Throws (aborted) if a job may be using a checkpoint.
  void require_unused(const IterationSummary& checkpoint) const {
    const std::string& directory = checkpoint.directory;
    if (in_use_here_.contains(directory) || checkpoint.state == IterationState::kBeingSaved)
      fail(ErrorCode::kAborted,
           str_format("a running job is at work in {}: wait until it has ended", quote(directory)));
    if (found_.is_written(directory) && !treatment_.all_jobs_ended) {
      fail(ErrorCode::kAborted,
           str_format("{} may still be written: it is unfinished, and either another host has "
                      "claimed it or it changed within the last {} minutes. Wait, or pass "
                      "--all-jobs-ended if no job is running",
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
      } else if (leftover.in_doubt) {
        report_.remarks.push_back(
            str_format("{} stays: neither it nor {} is sound; look at them with 'dckpt verify'",
                       quote(work.name), quote(original_of(work))));
      } else if (leftover.comes_back && found_.is_written(original_of(work))) {
        report_.remarks.push_back(str_format("{} stays: a job may be writing {}", quote(work.name),
                                             quote(original_of(work))));
      } else if (leftover.comes_back && seen.insert(original_of(work)).second) {
        bring_back(leftover);
      } else if (leftover.comes_back) {
        report_.remarks.push_back(str_format("{} stays: another checkpoint comes back as {}",
                                             quote(work.name), quote(original_of(work))));
      } else if (const IterationSummary* const checkpoint = unfinished_in_place(work)) {
        if (seen.insert(checkpoint->directory).second)
          report_.steps.push_back({StepKind::kRemove, checkpoint->directory, "",
                                   "unfinished save of a job that has ended", checkpoint->bytes});
      } else {
        report_.steps.push_back({StepKind::kRemove, work.name, "", reason(work), leftover.bytes});
      }
    }
  }

  /// Brings back what a save was replacing. Whatever has its name is not sound, and is set aside.
  void bring_back(const Leftover& leftover) {
    const std::string original = original_of(leftover.work);
    std::string why = "the save that was replacing it died";
    const IterationSummary* const successor = found_.find(original);
    if (successor != nullptr && !gone_.contains(original)) {
      report_.steps.push_back({StepKind::kSetAside, original,
                               to_string(next_aside(*root_.directory(), original)),
                               "not sound: " + successor->why, successor->bytes});
      why = "it is sound, and what has replaced it is not";
    }
    report_.steps.push_back(
        {StepKind::kBringBack, leftover.work.name, original, why, leftover.bytes});
    back_.emplace(original, leftover.work.name);
  }

  /// Returns whether a claim lies in a directory that another owner has claimed, who counts claims.
  bool is_claimed_by_others(const UnfinishedWork& work) const {
    return work.purpose == "claim" && claimed_.contains(parent_name(work.name));
  }

  /// Returns the checkpoint that a save in place, which has ended, has left without its end.
  const IterationSummary* unfinished_in_place(const UnfinishedWork& work) const {
    if (work.purpose != "claim") return nullptr;
    const IterationSummary* const checkpoint = found_.find(parent_name(work.name));
    return checkpoint != nullptr && checkpoint->state == IterationState::kNoMetadata ? checkpoint
                                                                                     : nullptr;
  }

  void prune(const Retention& retention) {
    if (retention.keep_last == 0) {
      fail(ErrorCode::kInvalidArgument,
           "the retention keeps everything: say how many of the newest checkpoints stay "
           "(--keep-last N, or retention.keep_last of the policy)");
    }
    const std::string resumes = resumed();
    const std::uint64_t saved = parse_iteration_directory(resumes).value_or(0);
    std::set<std::uint64_t> all;
    for (const IterationSummary& checkpoint : found_.survey.iterations)
      if (checkpoint.iteration && !is_gone(checkpoint.directory)) all.insert(*checkpoint.iteration);
    for (const auto& [directory, place] : back_)
      if (const auto iteration = parse_iteration_directory(directory)) all.insert(*iteration);
    const std::vector<std::uint64_t> iterations(all.begin(), all.end());
    const auto counts = [&](std::uint64_t iteration) {
      return is_sound(iteration_directory(iteration));
    };
    if (!is_sound(resumes)) {
      const IterationSummary* const unsound = found_.find(resumes);
      report_.remarks.push_back(str_format(
          "{}, from which a run would resume, does not count, because it is not sound: {}",
          quote(resumes), unsound == nullptr ? "it is gone" : unsound->why));
    }
    const RootLinks links(root_);
    for (const std::uint64_t old :
         iterations_to_delete(iterations, saved, retention, {&saved, 1}, links.once_each(counts))) {
      const std::string name = iteration_directory(old);
      const IterationSummary* const found = found_.find(name);
      if (back_.contains(name) || found == nullptr)
        report_.remarks.push_back(quote(name) + " stays: it has just come back");
      else if (const auto why = links.why_kept(name))
        report_.remarks.push_back(quote(name) + " stays: " + *why);
      else if (found_.is_written(name) || in_use_.contains(name))
        report_.remarks.push_back(quote(name) + " stays: a job may be at work in it");
      else
        report_.steps.push_back({StepKind::kDelete, name, "", "", found->bytes});
    }
  }

  /// Returns the directory from which a run would resume after the steps so far.
  std::string resumed() const {
    if (tracker_names_) return *tracker_names_;
    const auto& resumed = found_.survey.resume.checkpoint;
    if (!resumed || is_gone(resumed->directory)) {
      const auto& reasons = found_.survey.resume.passed_over;
      fail(ErrorCode::kIncomplete, "a run would not resume here, so nothing is removed" +
                                       (reasons.empty() ? "" : ": " + reasons.back()));
    }
    return resumed->directory;
  }

  void repair_tracker() {
    const auto& tracked = found_.survey.tracked;
    const bool is_there = root_.directory()->stat(kTrackerFile).has_value();
    const auto write = [&](const std::string& directory, const std::string& why) {
      report_.steps.push_back({StepKind::kWriteTracker, kTrackerFile, short_name(directory), why, 0,
                               is_there ? "--restore tracker" : ""});
      tracker_names_ = directory;
    };
    // A run does not read a tracker that is a link; Megatron does.
    const auto& linked = found_.megatron.directory;
    if (tracked && is_sound(*tracked)) {
      tracker_names_ = *tracked;
      if (is_there && !found_.megatron.reads_tracker)
        write(*tracked, "Megatron does not read its present form");
      else
        report_.remarks.push_back(
            str_format("{} names {}, which {}, and stays as it is", found_.survey.tracker,
                       quote(*tracked), back_.contains(*tracked) ? "comes back" : "is complete"));
    } else if (!tracked && linked && is_sound(*linked)) {
      write(*linked, found_.tracker_problem);
    } else if (const std::optional<std::string> best = newest_sound()) {
      write(*best, is_gone(tracked)                 ? "it names what is set aside"
                   : found_.tracker_problem.empty() ? "there is none"
                                                    : found_.tracker_problem);
    } else {
      fail(ErrorCode::kIncomplete,
           (treatment_.repair_tracker
                ? "there is no complete checkpoint that the tracker could name"
                : str_format("{} names {}, and there is no other complete checkpoint that it could "
                             "name",
                             found_.survey.tracker, quote(*tracked))) +
               "; to start over, choose another root");
    }
    repair_bridge_tracker(*tracker_names_);
  }

  /// Lets Megatron-Bridge, which reads its own tracker first, resume from the same checkpoint.
  void repair_bridge_tracker(const std::string& directory) {
    const std::shared_ptr<Storage> storage = root_.directory();
    if (!storage->stat(kBridgeTrackerFile)) return;
    std::optional<std::string> named;
    try {
      named = read_bridge_tracker(*storage);
    } catch (const CheckpointError&) {  // it is replaced
    }
    if (named == directory) return;
    const std::string why =
        named ? "it names " + quote(*named) + ", and Megatron-Bridge reads it first"
              : "it names no iteration, and Megatron-Bridge reads it first";
    const auto back = back_.find(directory);
    const std::string place = back == back_.end() ? directory : back->second;
    if (storage->stat(join_name(place, kBridgeStateFile)))
      report_.steps.push_back({StepKind::kWriteTracker, kBridgeTrackerFile, short_name(directory),
                               why, 0, "--restore tracker"});
    else
      report_.steps.push_back({StepKind::kSetAside, kBridgeTrackerFile,
                               to_string(next_aside(*root_.directory(), kBridgeTrackerFile)),
                               str_format("{}; {} has no {} to take its place", why,
                                          quote(directory), kBridgeStateFile),
                               0, "--restore tracker"});
  }

  /// Returns the newest checkpoint that the diagnosis has found sound, or that is and comes back;
  /// `release` is the oldest.
  std::optional<std::string> newest_sound() {
    std::vector<std::string> names;
    for (const IterationSummary& checkpoint : found_.survey.iterations)
      if (is_sound(checkpoint.directory)) names.push_back(checkpoint.directory);
    for (const auto& [directory, place] : back_)
      if (is_sound_in_depth(place)) names.push_back(directory);
    const auto newest = std::ranges::max_element(names, {}, parse_iteration_directory);
    return newest == names.end() ? std::nullopt : std::optional(*newest);
  }

  /// The survey has examined a checkpoint that comes back without its bytes.
  bool is_sound_in_depth(const std::string& place) const {
    const DiagnoseOptions& options = treatment_.diagnose;
    return !found_.deep || !find_unsound(root_ / place, options.strategy,
                                         {.deep = true, .threads = options.threads});
  }

  const Location& root_;
  const Treatment& treatment_;
  TreatmentReport& report_;
  const RootDiagnosis& found_;
  std::set<std::string> gone_{};  // the directory to be set aside, and links that lead to it
  std::map<std::string, std::string> back_{};   // names that come back, and where they are now
  std::optional<std::string> tracker_names_{};  // directory, once the tracker has been planned
  std::set<std::string> in_use_{};              // directories with marks of jobs not known to
  std::set<std::string> in_use_here_{};         // have ended; of jobs that run on this host
  std::set<std::string> claimed_{};             // directories with claims that stay
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
