#include "operations/upkeep/diagnosis.h"

#include <algorithm>
#include <limits>

#include "dist_checkpointing/open/foreign_root.h"
#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/foreign_entries.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "dist_checkpointing/training_root/set_aside.h"
#include "dist_checkpointing/training_root/still_root.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "operations/inspect/inspect.h"
#include "operations/upkeep/may_go_on.h"
#include "strategies/storage/open_target.h"

namespace dckpt {
namespace {

using IterationState = IterationSummary::State;
using Owner = UnfinishedWork::State;

constexpr std::uint64_t kMaxTextBytes = 4096;  // of a tracker, and of a lock

/// Returns the content of a small file; empty if it cannot be read.
std::optional<std::string> text_of(const Storage& storage, const std::string& name) try {
  if (!storage.stat(name)) return std::nullopt;
  return std::string(as_text(read_file(*storage.open(name), kMaxTextBytes)));
} catch (const CheckpointError&) {
  return std::nullopt;
}

/// The bytes of an entry, and the time of its last change; 0 bytes of what has gone meanwhile.
struct Contents {
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;
};

Contents contents_of(Storage& storage, const FileInfo& entry) try {
  Contents found{0, entry.modified};
  if (entry.kind != FileInfo::Kind::kDirectory) return {entry.size, entry.modified};
  for (const FileSummary& file : list_files(*storage.subtree(entry.name))) {
    found.bytes += file.bytes;
    found.modified = std::max(found.modified, file.modified);
  }
  return found;
} catch (const CheckpointError&) {
  return {0, entry.modified};
}

class Doctor {
 public:
  Doctor(const Location& root, const DiagnoseOptions& options)
      : root_(root), storage_(root.directory()), options_(options) {}

  RootDiagnosis run() {
    found_.survey = survey_root(
        root_, {.newest = std::numeric_limits<std::size_t>::max(),
                .examination = options_.deep ? Examination::kAllBytes : Examination::kSound,
                .known = options_.known,
                .strategy = options_.strategy,
                .threads = options_.threads});
    found_.deep = options_.deep;
    find_leftovers();
    for (const IterationSummary& summary : found_.survey.iterations) examine_marks(summary);
    find_owner();
    require_root();
    found_.tracker_problem = tracker_problem();
    found_.bridge_problem = bridge_problem();
    found_.megatron = megatron_choice();
    return std::move(found_);
  }

 private:
  void find_owner() {
    const auto name = text_of(*storage_, kRootLock);
    if (!name) return;
    const Owner state = state_of_owner(name->substr(name->rfind(' ') + 1));
    if (!name->starts_with(kDoctor) || state == Owner::kRunning)
      found_.owner = RootOwner{*name, state};
  }

  void find_leftovers() {
    for (const UnfinishedWork& work : found_.survey.unfinished)
      add_leftover(work, contents_of(*storage_, {.name = work.name,
                                                 .kind = FileInfo::Kind::kDirectory,
                                                 .modified = work.modified}));
    for (const FileInfo& entry : storage_->list("")) {
      const bool is_name =
          entry.name == kReleaseDirectory || parse_iteration_directory(entry.name).has_value();
      const bool is_like_one = is_name || entry.name.starts_with("iter_");
      if (is_like_one && !(is_name && (root_ / entry.name).is_directory()))
        found_.not_counted.push_back(entry.name);
      const auto sibling = parse_hidden_sibling(entry.name);
      if (!sibling) continue;
      if (const auto aside = parse_set_aside(entry.name)) {
        found_.set_aside.push_back(
            {entry.name, aside->original, aside->number, contents_of(*storage_, entry).bytes});
      } else if (sibling->name == kTrackerFile && sibling->purpose == "tmp") {
        const Owner state = changed_lately(entry.modified) ? Owner::kElsewhere : Owner::kEnded;
        add_leftover({entry.name, 0, "tmp", state, entry.modified}, {entry.size, entry.modified});
      }
    }
  }

  void add_leftover(const UnfinishedWork& work, const Contents& contents) {
    const auto sibling = parse_hidden_sibling(work.name);
    const LeftoverFate fate = sibling ? fate_of_leftover(*sibling) : LeftoverFate::kRemove;
    found_.leftovers.push_back({work, contents.bytes, fate == LeftoverFate::kBringBack,
                                fate == LeftoverFate::kStay, !changed_lately(contents.modified)});
  }

  LeftoverFate fate_of_leftover(const HiddenSibling& sibling) const try {
    return fate_of(*storage_, sibling, options_.strategy);
  } catch (const CheckpointError&) {
    return LeftoverFate::kStay;  // it cannot be examined
  }

  /// Lists the marks in a checkpoint, and finds out whether a job may still be writing it.
  void examine_marks(const IterationSummary& summary) {
    if (summary.state == IterationState::kUnreadable) return;
    for (const UnfinishedWork& mark : list_marks(root_, summary.directory))
      add_leftover(mark, {0, mark.modified});
    // The metadata come last. Without metadata.json, even those that are there may be unfinished.
    const bool has_no_end = summary.state == IterationState::kNoMetadata ||
                            (summary.state == IterationState::kDamaged &&
                             !(root_ / summary.directory / "metadata.json").stat());
    if (has_no_end && may_go_on(root_, summary.directory, summary.saved))
      found_.may_be_written.insert(summary.directory);
  }

  void require_root() const {
    const bool is_root = !found_.survey.iterations.empty() || !found_.leftovers.empty() ||
                         !found_.set_aside.empty() || storage_->stat(kRootLock) ||
                         storage_->stat(found_.survey.tracker);
    const std::vector<FileInfo> entries = storage_->list("");
    if (is_root || entries.empty()) return;
    const std::vector<std::string> markers = marker_files();
    const bool is_checkpoint = std::ranges::any_of(
        markers, [&](const std::string& marker) { return storage_->stat(marker).has_value(); });
    std::string what = is_checkpoint ? "it is a checkpoint; name the directory above it"
                                     : describe_foreign_root(root_);
    if (what.empty())
      what = str_format("it has {}, but no iteration and no {}",
                        counted(entries.size(), "entry", "entries"), kTrackerFile);
    throw_error(ErrorCode::kInvalidArgument, {.file = root_.display()},
                "it is not a training root: " + what);
  }

  std::string tracker_problem() const {
    const RootSurvey& survey = found_.survey;
    if (!survey.tracked) {
      try {
        (void)read_tracker(*storage_);
      } catch (const CheckpointError& error) {
        return error.message();
      }
      return "";
    }
    const IterationSummary* const tracked = found_.find(*survey.tracked);
    const std::string names = str_format("{} names {}", survey.tracker, quote(*survey.tracked));
    if (tracked == nullptr) return names + ", which does not exist";
    if (tracked->state == IterationState::kComplete) return "";
    return str_format("{}, which is {}: {}", names,
                      name_of(kVerdictNames, verdict_of(tracked->state)), tracked->why);
  }

  std::string bridge_problem() const {
    if (!storage_->stat(kBridgeTrackerFile) || !storage_->stat(kTrackerFile)) return "";
    std::string names;
    try {
      names = read_bridge_tracker(*storage_).value_or("");
    } catch (const CheckpointError& error) {
      return error.message();
    }
    if (!found_.survey.tracked || names == *found_.survey.tracked) return "";
    return str_format("{} names {}, and Megatron-Bridge reads it before {}, which names {}",
                      kBridgeTrackerFile, quote(names), kTrackerFile,
                      quote(*found_.survey.tracked));
  }

  MegatronChoice megatron_choice() const {
    const std::string tracker = kTrackerFile;
    std::string text;
    try {
      const auto file = storage_->stat_target(tracker);
      if (!file || file->kind != FileInfo::Kind::kRegular)
        return {.why = "there is no file " + tracker};
      text = as_text(read_file(*open_target(*storage_, tracker), kMaxTextBytes));
    } catch (const CheckpointError& error) {
      return {.why = str_format("it depends on {}, which was not read: {}", tracker, error.what())};
    }
    constexpr const char* kBlank = " \t\r\n\f\v";
    text.erase(0, std::min(text.find_first_not_of(kBlank), text.size()));
    text.erase(text.find_last_not_of(kBlank) + 1);
    const auto name = parse_iteration_name(text);
    if (!name || (text != kReleaseDirectory && !parse_u64(text)))
      return {.why = str_format("it stops at {}, which holds {}", tracker, quote(text, 60))};
    const std::string directory = name->directory();
    const IterationSummary* const taken = found_.find(directory);
    if (taken == nullptr)
      return {.why = quote(directory) + " does not exist, and it stops", .reads_tracker = true};
    if (taken->state == IterationState::kComplete) return {directory, tracker + " names it", true};
    return {directory,
            str_format("{} names it; it is {}", tracker,
                       name_of(kVerdictNames, verdict_of(taken->state))),
            true};
  }

  const Location& root_;
  const std::shared_ptr<Storage> storage_;
  const DiagnoseOptions& options_;
  RootDiagnosis found_;
};

}  // namespace

Verdict verdict_of(IterationSummary::State state) {
  switch (state) {
    case IterationState::kComplete: return Verdict::kComplete;
    case IterationState::kNoMetadata:
    case IterationState::kFileMissing: return Verdict::kIncomplete;
    case IterationState::kFileTruncated:
    case IterationState::kDamaged: return Verdict::kDamaged;
    case IterationState::kBeingSaved: return Verdict::kBeingSaved;
    case IterationState::kUnreadable:
    case IterationState::kNotExamined: break;
  }
  return Verdict::kUnreadable;
}

const IterationSummary* RootDiagnosis::find(std::string_view directory) const {
  const auto iteration = parse_iteration_directory(directory);
  if (!iteration && directory != kReleaseDirectory) return nullptr;
  // `release`, which has no iteration, comes first.
  const auto found =
      std::ranges::lower_bound(survey.iterations, iteration, {}, &IterationSummary::iteration);
  const bool is_there = found != survey.iterations.end() && found->directory == directory;
  return is_there ? &*found : nullptr;
}

bool RootDiagnosis::is_written(std::string_view directory) const {
  const IterationSummary* const found = find(directory);
  return may_be_written.contains(directory) ||
         (found != nullptr && found->state == IterationState::kBeingSaved);
}

bool RootDiagnosis::is_waste(const Leftover& leftover) {
  const bool has_ended = leftover.work.state == Owner::kEnded ||
                         (leftover.work.state == Owner::kElsewhere && leftover.is_old);
  return has_ended && !leftover.comes_back && !leftover.in_doubt;
}

std::uint64_t RootDiagnosis::wasted_bytes() const {
  std::uint64_t bytes = 0;
  for (const Leftover& leftover : leftovers)
    if (is_waste(leftover)) bytes += leftover.bytes;
  for (const SetAside& aside : set_aside) bytes += aside.bytes;
  for (const IterationSummary& summary : survey.iterations) {
    const Verdict verdict = verdict_of(summary.state);
    const bool useless = verdict == Verdict::kIncomplete || verdict == Verdict::kDamaged;
    if (useless && !is_written(summary.directory)) bytes += summary.bytes;
  }
  return bytes;
}

bool RootDiagnosis::ok() const {
  return tracker_problem.empty() && bridge_problem.empty() &&
         std::ranges::all_of(survey.iterations, [&](const IterationSummary& summary) {
           return summary.state == IterationState::kComplete || is_written(summary.directory);
         });
}

RootDiagnosis diagnose_root(const Location& root, const DiagnoseOptions& options) try {
  const auto found = root.stat();
  if (!found) {
    throw_error(ErrorCode::kIo, {.file = root.display()}, "Training root {} does not exist",
                quote(root.display()));
  }
  if (found->kind != FileInfo::Kind::kDirectory) {
    throw_error(ErrorCode::kInvalidArgument, {.file = root.display()},
                "it is a file, not a training root");
  }
  RootDiagnosis last;
  DiagnoseOptions again = options;
  const auto look = [&] {
    last = Doctor(root, again).run();
    again.known = &last.survey;
    return last;
  };
  return look_at_still_root(root, look, [](const RootDiagnosis& diagnosis) {
    return diagnosis.ok() && diagnosis.survey.resume.passed_over.empty();
  });
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
