#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operations/json/root_fields.h"
#include "operations/upkeep/fleet.h"
#include "operations/upkeep/treatment.h"

namespace dckpt {

/// A checkpoint of a root, as `doctor` shows it.
struct DiagnosedIteration {
  const IterationSummary* summary = nullptr;
  bool may_be_written = false;
};

constexpr auto json_record(const DiagnosedIteration*) {
  using D = DiagnosedIteration;
  using S = IterationSummary;
  return JsonRecord(
      "iteration", "A checkpoint of the root.",
      Field("directory", nested(&D::summary, &S::directory), "Its directory in the root."),
      Field("iteration", nested(&D::summary, &S::iteration), "Its iteration; null for release."),
      Field(
          "saved", [](const D& of) { return UtcTime{of.summary->saved}; },
          "Time of its newest file's last change, in UTC; null if unknown."),
      Field("bytes", nested(&D::summary, &S::bytes), "Bytes of its files."),
      Field("files", nested(&D::summary, &S::files), "Number of its files."),
      Field("verdict",
            in_words(kVerdictNames, [](const D& of) { return verdict_of(of.summary->state); }),
            "Its state in one word."),
      Field("state", in_words(kIterationStateNames, nested(&D::summary, &S::state)),
            "Its state as inspect says it."),
      Field("may_be_written", &D::may_be_written,
            "Whether a job is writing it, or may be: it is then left alone."),
      Field("why", nested(&D::summary, &S::why),
            "Why it is not complete, for people; empty if it is."),
      Field("resumed", nested(&D::summary, &S::resumed),
            "Whether a run that starts here takes it."),
      Field("tracked", nested(&D::summary, &S::tracked), "Whether the tracker names it."));
}

constexpr auto json_record(const Leftover*) {
  using L = Leftover;
  return JsonRecord(
      "leftover", "A hidden directory or file, or the mark of a job in a checkpoint.",
      JsonPart(&L::work), Field("bytes", &L::bytes, "Bytes of its files."),
      Field("comes_back", &L::comes_back,
            "Whether it is a complete checkpoint that --clean gives its name back."),
      Field("in_doubt", &L::in_doubt,
            "Whether --clean leaves it alone, since neither it nor what has its name is sound."),
      Field("is_old", &L::is_old,
            "Whether nothing in it has changed for 15 minutes: it then counts as wasted, whatever "
            "host it is of."));
}

constexpr auto json_record(const SetAside*) {
  return JsonRecord("set_aside", "Something with another name for a while.",
                    Field("name", &SetAside::name, "Its name in the root."),
                    Field("original", &SetAside::original, "Its name before."),
                    Field("bytes", &SetAside::bytes, "Bytes of its files."));
}

constexpr auto json_record(const MegatronChoice*) {
  return JsonRecord("megatron",
                    "The checkpoint that Megatron takes, which reads the tracker alone.",
                    Field("directory", &MegatronChoice::directory,
                          "Its directory; null if Megatron starts from scratch or stops."),
                    Field("why", &MegatronChoice::why, "Why, as a phrase for people."));
}

constexpr auto json_record(const RootOwner*) {
  return JsonRecord(
      "owner", "A job.",
      Field("name", &RootOwner::name, "Its host, process and start, as the lock has them."),
      Field("state", in_words(kWorkStateNames, &RootOwner::state),
            "What this host knows about the process: \"running\" and \"ended\" are "
            "certain."));
}

constexpr auto json_record(const TreatmentStep*) {
  using T = TreatmentStep;
  return JsonRecord(
      "step", "A change to the root.",
      Field("kind", in_words(kTreatmentStepNames, &T::kind),
            "What is done; \"remove\" is for leftovers, \"delete\" for checkpoints."),
      Field("name", &T::name, "What it is done to: a name in the root."),
      Field("to", &T::to, "Its new name, or what the tracker names then; empty for a removal."),
      Field("why", &T::why, "The reason, for people; may be empty."),
      Field("bytes", &T::bytes, "Bytes of the files concerned."),
      Field("undo", &T::undo,
            "The option of doctor that undoes it; empty if none does. A tracker that is written "
            "where there was none is to be removed."));
}

/// The tracker of a diagnosed root.
struct DiagnosedTracker {
  const RootDiagnosis* found = nullptr;
};

constexpr auto json_record(const DiagnosedTracker*) {
  using T = DiagnosedTracker;
  return JsonRecord(
      "tracker", "The tracker of the root.",
      Field(
          "file", [](const T& of) -> const auto& { return of.found->survey.tracker; },
          "Name of its file."),
      Field(
          "names", [](const T& of) -> const auto& { return of.found->survey.tracked; },
          "Directory that it names, there or not; null without a tracker or if it cannot be "
          "read."),
      Field("problem", nested(&T::found, &RootDiagnosis::tracker_problem),
            "What is wrong with it, for people; empty if nothing is."),
      Field("bridge_problem", nested(&T::found, &RootDiagnosis::bridge_problem),
            "Why Megatron-Bridge's own tracker, which it reads first, leads elsewhere, for people; "
            "empty if it does not."));
}

/// A report of `doctor` or `prune` on a root, by the name that it was given.
struct TreatedRoot {
  const std::string* root = nullptr;
  const TreatmentReport* report = nullptr;

  const RootDiagnosis& found() const { return report->diagnosis; }
};

constexpr auto json_record(const TreatedRoot*) {
  using T = TreatedRoot;
  using D = RootDiagnosis;
  using R = TreatmentReport;
  return JsonRecord(
      "", "",
      Field(
          "root", [](const T& of) { return *of.root; }, "The root, as it was given."),
      Field("ok", nested(&T::found, &D::ok),
            "Whether the trackers have no problem and every checkpoint is complete or may still be "
            "written."),
      Field("deep", nested(&T::found, &D::deep),
            "Whether complete checkpoints were verified with all bytes (--deep), not only with the "
            "heads of their chunks."),
      Field(
          "iterations",
          [](const T& of) {
            std::vector<DiagnosedIteration> listed;
            for (const IterationSummary& summary : of.found().survey.iterations)
              listed.push_back({&summary, of.found().is_written(summary.directory)});
            return listed;
          },
          "Every checkpoint: release first, then the iterations in their order."),
      Field("tracker", [](const T& of) { return DiagnosedTracker{&of.found()}; }),
      Field("resume", nested(&T::report, &R::resume), "What a run takes that starts here now."),
      Field("megatron", nested(&T::found, &D::megatron)),
      Field("owner", nested(&T::found, &D::owner),
            "The job that has or had the lock of the root; null if none ever had, or if doctor or "
            "prune had it last."),
      Field("leftovers", nested(&T::found, &D::leftovers),
            "What jobs have left, or are at work on."),
      Field("set_aside", nested(&T::found, &D::set_aside),
            "What doctor has set aside and --restore brings back."),
      Field("not_counted", nested(&T::found, &D::not_counted),
            "Names that begin as those of iterations do, but are spelled otherwise or lead to no "
            "directory."),
      Field("wasted_bytes", nested(&T::found, &D::wasted_bytes),
            "Bytes of leftovers that are dead, or old and of other hosts, of incomplete and "
            "damaged checkpoints, and of what is set aside."),
      Field("applied", nested(&T::report, &R::applied), "Whether the steps were done (--apply)."),
      Field("steps", nested(&T::report, &R::steps), "What was done, or would be, in its order."),
      Field("remarks", nested(&T::report, &R::remarks),
            "What stays as it is and why, as messages for people."));
}

constexpr auto json_record(const FleetResult*) {
  using F = FleetResult;
  return JsonRecord(
      "", "",
      Field("path", &F::path,
            "Path of the checkpoint, or the line of the list if it leads to none."),
      Field("status", in_words(kFleetStatusNames, &F::status),
            "\"unchanged\" repeats the result of the state file; a checkpoint that is "
            "\"being-saved\" was not verified."),
      Field("ok", &F::ok, "Whether no problem was found."),
      Field("deep", &F::deep,
            "Whether all bytes were read, now or when the result was remembered."),
      Field("format", &F::format,
            "Name of the format; empty if the checkpoint could not be opened."),
      Field("bytes", &F::bytes, "Stored bytes of chunks and objects."),
      Field("problems", &F::problems, "Number of problems; dckpt verify PATH lists them."),
      Field(
          "problem", [](const F& of) { return of.ok() ? std::nullopt : std::optional(of.problem); },
          "The first problem, for people; null if there is none."),
      Field("refused", &F::refused,
            "Code of the error with which it could not be opened or read; null if it could."));
}

}  // namespace dckpt
