#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "operations/inspect/root_survey.h"
#include "operations/json/json_record.h"

namespace dckpt {

constexpr auto json_record(const LatestChoice*) {
  return JsonRecord(
      "resume", "The checkpoint that a run resumes from.",
      Field(
          "directory",
          [](const LatestChoice& choice) {
            return choice.checkpoint ? std::optional(choice.checkpoint->directory) : std::nullopt;
          },
          "Its directory in the training root; null if there is none to resume from."),
      Field("why", &LatestChoice::why, "Why this one is chosen, as a phrase for people."),
      Field("passed_over", &LatestChoice::passed_over,
            "Checkpoints that were skipped and why, as messages for people."));
}

inline constexpr std::array<std::string_view, 7> kWorkPurposes{
    "saving", "replaced", "deleting", "interrupted", "claim", "lock", "tmp"};

constexpr auto json_record(const UnfinishedWork*) {
  return JsonRecord(
      "unfinished", "A hidden directory or file of a save, conversion or deletion.",
      Field("name", &UnfinishedWork::name, "Its name in the root."),
      Field("iteration", &UnfinishedWork::iteration,
            "The iteration that it belongs to; 0 for release and for the tracker."),
      Field("purpose", in_words(kWorkPurposes, &UnfinishedWork::purpose),
            "Hidden directories: saving, replaced, deleting, interrupted. Marks: claim, lock. A "
            "tracker that was never renamed into place: tmp."),
      Field("state", in_words(kWorkStateNames, &UnfinishedWork::state),
            "What this host knows about the process: \"running\" and \"ended\" are certain; a pool "
            "of workers does not name its hosts."),
      Field(
          "saved", [](const UnfinishedWork& work) { return UtcTime{work.modified}; },
          "Time of its last change, in UTC; null if unknown."));
}

/// A checkpoint of a root, as `inspect` shows it.
struct ListedIteration {
  const IterationSummary* summary = nullptr;
  bool with_retention = false;
};

constexpr auto json_record(const ListedIteration*) {
  using L = ListedIteration;
  using S = IterationSummary;
  const auto if_examined = [](const auto member) {
    return [member](const L& of) {
      const bool examined = of.summary->state != S::State::kNotExamined;
      return examined ? std::optional(of.summary->*member) : std::nullopt;
    };
  };
  return JsonRecord(
      "iteration", "A checkpoint of the training root.",
      Field("directory", nested(&L::summary, &S::directory),
            "Directory in the training root: release, or iter_ and the iteration."),
      Field("iteration", nested(&L::summary, &S::iteration),
            "Number of the iteration; null for `release`."),
      Field(
          "saved", [](const L& of) { return UtcTime{of.summary->saved}; },
          "When its newest file changed, in UTC; null if unknown."),
      Field("bytes", if_examined(&S::bytes), "Bytes of its files; null if it was not examined."),
      Field("files", if_examined(&S::files), "Number of its files; null if it was not examined."),
      Field("state", in_words(kIterationStateNames, nested(&L::summary, &S::state)),
            "Whether a run could resume from it."),
      Field("why", nested(&L::summary, &S::why),
            "Why it is not complete, for people; empty if it is."),
      Field("resumed", nested(&L::summary, &S::resumed),
            "Whether a run that starts here resumes from it."),
      Field("tracked", nested(&L::summary, &S::tracked), "Whether the tracker file names it."),
      Field(
          "removed_by_policy",
          [](const L& of) {
            return of.with_retention ? std::optional(of.summary->removed_by_policy) : std::nullopt;
          },
          "Whether the policy's retention removes it when a run that resumes here saves next; null "
          "without --policy."));
}

/// The fields that `inspect` adds for a checkpoint of a training root.
struct ListedRoot {
  const RootSurvey* survey = nullptr;
  bool with_retention = false;
};

constexpr auto json_record(const ListedRoot*) {
  using L = ListedRoot;
  return JsonRecord(
      "", "A training root.", Field("resume", nested(&L::survey, &RootSurvey::resume)),
      Field(
          "iterations",
          [](const L& root) {
            std::vector<ListedIteration> listed;
            for (const IterationSummary& summary : root.survey->iterations)
              listed.push_back({&summary, root.with_retention});
            return listed;
          },
          "Checkpoints of the training root: `release` first, then ascending iterations."),
      Field("unfinished", nested(&L::survey, &RootSurvey::unfinished),
            "Hidden directories of saves and deletions that have not ended."));
}

}  // namespace dckpt
