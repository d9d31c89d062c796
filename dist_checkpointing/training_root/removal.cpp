// Possible leftovers in a training root after a crash, by the protocol of
// strategies/storage/publish_by_rename.cpp and by that of delete_checkpoint:
//
//     .N.saving-TOKEN       an unfinished save, or the previous      remove; files that no save has
//                           content of N, exchanged with it          written move to N
//     .N.interrupted-TOKEN  finished files of a failed conversion    remove
//     .N.replaced-TOKEN     the previous content of N:
//                             N exists: the save had finished        the same
//                             N is missing: the save died between    rename back to N if it is
//                             two renames                            complete, else remove
//     both of these, if N   the only sound copy of N               set N aside, rename back to N
//     is not sound
//     .N.deleting-TOKEN     a checkpoint that had been deleted,      remove
//                           whole or in part
//     .TRACKER.tmp-TOKEN    a tracker that was never renamed         remove
//                           into place
//
// N is the directory of an iteration. A token identifies the process; leftovers of running
// processes of this host stay. Workers of a pool have folders `.work-TOKEN` in the directory, which
// is then theirs as well: they go on with what its owner has left. The steps of deleting N are:
//
//      step                                       a crash after it leaves
//   1  rename N to D = `.N.deleting-TOKEN`        N, or D complete but hidden
//   2  sync the root                              D: N cannot come back half removed
//   3  remove D                                   some of D
//
// A storage without rename has no such names. Unfinished saves are directories without their marker
// (strategies/storage/publish_in_place.cpp); deleting N removes the markers first, so that a crash
// leaves an incomplete N.

#include "dist_checkpointing/training_root/removal.h"

#include <algorithm>
#include <functional>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/foreign_entries.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "dist_checkpointing/training_root/set_aside.h"
#include "dist_checkpointing/training_root/soundness.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/publication.h"

namespace dckpt {
namespace {

constexpr const char* kDeleting = "deleting";
constexpr const char* kInterrupted = "interrupted";
constexpr const char* kReplaced = "replaced";
constexpr const char* kSaving = "saving";
constexpr std::uint64_t kMaxTokenBytes = 4096;

using UnfinishedState = UnfinishedWork::State;

/// Returns whether anyone may still write into a hidden directory: its owner, or a worker with a
/// folder in it. An interrupted conversion has no owner.
UnfinishedState state_of(Storage& root, const HiddenSibling& sibling) try {
  UnfinishedState state =
      sibling.purpose == kInterrupted ? UnfinishedState::kEnded : state_of_owner(sibling.token);
  const std::string name = to_string(sibling);
  const auto found = root.stat(name);
  if (state == UnfinishedState::kRunning || !found || found->kind != FileInfo::Kind::kDirectory)
    return state;
  for (const FileInfo& entry : root.list(name)) {
    const std::string_view worker = worker_of_folder(entry.name);
    if (worker.empty()) continue;
    const UnfinishedState other = state_of_owner(worker);
    if (other == UnfinishedState::kRunning) return other;
    state = std::max(state, other);
  }
  return state;
} catch (const CheckpointError&) {
  return UnfinishedState::kElsewhere;  // it has gone, or cannot be examined
}

bool is_of_checkpoint(const HiddenSibling& sibling) {
  return sibling.purpose == kSaving || sibling.purpose == kReplaced ||
         sibling.purpose == kDeleting || sibling.purpose == kInterrupted;
}

bool is_leftover(Storage& root, const HiddenSibling& sibling) {
  if (sibling.name == kTrackerFile)
    return sibling.purpose == "tmp" && !made_by_running_process(sibling.token);
  return parse_iteration_directory(sibling.name) && is_of_checkpoint(sibling) &&
         state_of(root, sibling) != UnfinishedState::kRunning;
}

/// Returns whether a job whose process is not visible here has locked the directory as its training
/// root. Asks the lock itself: the words in it outlive their job.
bool is_root_of_others(Storage& directory) {
  const std::string words = lock_words(directory);
  if (words.empty() || made_by_running_process(words.substr(words.rfind(' ') + 1))) return false;
  try {
    (void)directory.lock(kRootLock, words);
    return false;
  } catch (const CheckpointError& error) {
    return error.code() == ErrorCode::kAborted;
  }
}

/// Returns whether the processes of an attempt, on this host, have ended.
bool is_dead_attempt(Storage& directory, const HiddenSibling& sibling) {
  return is_of_checkpoint(sibling) && sibling.purpose != kDeleting &&
         state_of(directory, sibling) == UnfinishedState::kEnded;
}

std::optional<std::uint64_t> iteration_of(const std::string& directory) {
  return directory == kReleaseDirectory ? 0 : parse_iteration_directory(directory);
}

/// Returns whether a checkpoint is complete; false also if this cannot be determined.
bool is_complete(const Location& checkpoint, const StrategySpec& strategy) {
  try {
    return !find_unfinished(checkpoint, strategy);
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace

void delete_checkpoint(Storage& root, const std::string& name, std::uint64_t id) {
  const auto entry = root.stat(name);
  if (!entry || entry->kind != FileInfo::Kind::kDirectory) {
    throw_error(ErrorCode::kInvalidArgument, {.file = root.display_path(name)},
                "refusing to delete: it is not a directory");
  }
  if (!root.capabilities().rename) {
    for (const std::string& marker : marker_files()) root.remove_all(join_name(name, marker));
    root.remove_all(name);
    return;
  }
  const std::string hidden = to_string(HiddenSibling{name, kDeleting, staging_token()});
  root.rename(name, hidden);  // 1
  if (const auto moved = root.stat(hidden); id != 0 && moved && moved->id != id) {
    root.rename(hidden, name);
    throw_error(ErrorCode::kAborted, {.file = root.display_path(name)},
                "another job has saved it anew in the meantime, so it stays");
  }
  root.sync_directory("");  // 2
  root.remove_all(hidden);  // 3
}

LeftoverFate fate_of(Storage& root, const HiddenSibling& leftover, const StrategySpec& strategy) {
  using Kind = Unfinished::Kind;
  const bool was_replaced = leftover.purpose == kReplaced;
  const auto at = [&](const std::string& name) { return Location(root.shared_from_this(), name); };
  const Location left = at(to_string(leftover));
  if ((!was_replaced && leftover.purpose != kSaving) || !left.is_directory())
    return LeftoverFate::kRemove;
  const bool has_successor = root.stat(leftover.name).has_value();
  const auto unsound = find_unsound(left, strategy);
  const bool is_part =
      unsound && (unsound->kind == Kind::kNoMetadata || unsound->kind == Kind::kFileMissing);
  const bool is_unfinished = !was_replaced && (unsound || !has_successor);
  if (is_part || is_unfinished) return LeftoverFate::kRemove;
  if (has_successor && !find_unsound(at(leftover.name), strategy)) return LeftoverFate::kRemove;
  const bool is_only = !has_successor && unsound && unsound->kind == Kind::kUnsound;
  return unsound && !is_only ? LeftoverFate::kStay : LeftoverFate::kBringBack;
}

void remove_leftover(Storage& directory, const HiddenSibling& sibling,
                     const StrategySpec& strategy) {
  const std::string name = to_string(sibling);
  const std::string in = str_format("training root {}", quote(directory.display_path("")));
  switch (fate_of(directory, sibling, strategy)) {
    case LeftoverFate::kStay:
      return log_warning(str_format(
          "{}: {} stays, because neither it nor {} is sound; look at them with 'dckpt verify', and "
          "remove what is not needed",
          in, quote(name), quote(sibling.name)));
    case LeftoverFate::kBringBack: {
      std::string why = "the save that was replacing it died";
      if (directory.stat(sibling.name)) {
        const std::string aside = to_string(next_aside(directory, sibling.name));
        directory.rename(sibling.name, aside);
        why = str_format("what has replaced it is not sound, and is now {}", quote(aside));
      }
      directory.rename(name, sibling.name);
      directory.sync_directory("");
      return log_warning(str_format("{}: restored {}: {}", in, quote(sibling.name), why));
    }
    case LeftoverFate::kRemove: break;
  }
  const bool may_be_replaced = sibling.purpose == kSaving || sibling.purpose == kReplaced;
  const Location left(directory.shared_from_this(), name);
  if (may_be_replaced && directory.stat(sibling.name) && left.is_directory() &&
      is_complete(left, strategy))
    move_entries(directory, foreign_entries(left), name, sibling.name);
  directory.remove_all(name);
  log_info(str_format("{}: removed {}, left by a save or deletion that died", in, quote(name)));
}

void remove_dead_attempts(const Location& target, std::string_view except) {
  Storage& directory = *target.storage();
  try {
    if (!directory.stat_target("")) return;
    std::optional<bool> is_of_others;
    for (const FileInfo& entry : directory.list("")) {
      const auto sibling = parse_hidden_sibling(entry.name);
      if (!sibling || sibling->name != target.name() || entry.name == except ||
          !is_dead_attempt(directory, *sibling))
        continue;
      if (!is_of_others) is_of_others = is_root_of_others(directory);
      if (*is_of_others) {
        log_warning(quote(directory.display_path(entry.name)) +
                    " seems to be left by a save that died; it stays, since a job that is not "
                    "visible here has this training root");
        continue;
      }
      remove_leftover(directory, *sibling, OpenOptions().strategy);
      if (!directory.stat(entry.name))
        log_warning(quote(directory.display_path(entry.name)) +
                    " was left by a save that died: it is removed, or back under its name");
    }
  } catch (const std::exception& error) {
    log_warning(str_format("leftovers of dead saves beside {} could not be removed: {}",
                           quote(target.display()), error.what()));
  }
}

namespace {

/// Returns the hidden directories beside `target` that belong to it and are `wanted`.
std::vector<std::string> directories_beside(
    const Location& target, const std::function<bool(const HiddenSibling&)>& wanted) {
  std::vector<std::string> names;
  if (!target.storage()->stat_target("")) return names;
  for (const FileInfo& entry : target.storage()->list("")) {
    const auto sibling = parse_hidden_sibling(entry.name);
    if (entry.kind == FileInfo::Kind::kDirectory && sibling && sibling->name == target.name() &&
        wanted(*sibling))
      names.push_back(entry.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> unfinished_attempts(const Location& target) {
  return directories_beside(target, [&](const HiddenSibling& sibling) {
    return sibling.purpose != kReplaced && is_dead_attempt(*target.storage(), sibling);
  });
}

std::vector<std::string> attempts_elsewhere(const Location& target) {
  return directories_beside(target, [&](const HiddenSibling& sibling) {
    return sibling.purpose == kSaving &&
           state_of(*target.storage(), sibling) == UnfinishedState::kElsewhere;
  });
}

bool was_being_replaced(const Location& target) {
  const std::vector<FileInfo> entries = target.storage()->list("");
  return std::ranges::any_of(entries, [&](const FileInfo& entry) {
    const auto sibling = parse_hidden_sibling(entry.name);
    return sibling && sibling->name == target.name() && sibling->purpose == kReplaced;
  });
}

std::vector<UnfinishedWork> list_unfinished_work(const Location& root) {
  std::vector<UnfinishedWork> found;
  const std::shared_ptr<Storage> storage = root.directory();
  for (const FileInfo& entry : storage->list("")) {
    const auto sibling = parse_hidden_sibling(entry.name);
    if (!sibling || entry.kind != FileInfo::Kind::kDirectory) continue;
    const auto iteration = iteration_of(sibling->name);
    if (!iteration || !is_of_checkpoint(*sibling)) continue;
    found.push_back(
        {entry.name, *iteration, sibling->purpose, state_of(*storage, *sibling), entry.modified});
  }
  std::ranges::stable_sort(found, {}, &UnfinishedWork::iteration);
  return found;
}

std::vector<UnfinishedWork> list_marks(const Location& root, const std::string& directory) {
  std::vector<UnfinishedWork> marks;
  const std::shared_ptr<Storage> storage = (root / directory).directory();
  for (const FileInfo& entry : storage->list("")) {
    const bool is_claim = entry.name.starts_with(kClaimPrefix);
    if (entry.kind != FileInfo::Kind::kRegular || (!is_claim && entry.name != kRemovalLock))
      continue;
    Bytes content;
    try {
      content = read_file(*storage->open(entry.name), kMaxTokenBytes);
    } catch (const CheckpointError&) {
      if (!storage->stat(entry.name)) continue;  // its job has just ended
    }
    std::string_view token = as_text(content);
    if (token.starts_with(kJob)) token.remove_prefix(kJob.size());
    marks.push_back({join_name(directory, entry.name), iteration_of(directory).value_or(0),
                     is_claim ? "claim" : "lock", state_of_owner(token), entry.modified});
  }
  return marks;
}

UnfinishedWork::State state_of_owner(std::string_view token) {
  return made_by_ended_process(token)     ? UnfinishedState::kEnded
         : made_by_running_process(token) ? UnfinishedState::kRunning
                                          : UnfinishedState::kElsewhere;
}

void remove_leftovers(const Location& root, const StrategySpec& strategy) {
  const std::shared_ptr<Storage> directory = root.directory();
  for (const FileInfo& entry : directory->list("")) {
    const auto sibling = parse_hidden_sibling(entry.name);
    try {
      if (sibling && is_leftover(*directory, *sibling))
        remove_leftover(*directory, *sibling, strategy);
    } catch (const std::exception& error) {
      log_warning(
          str_format("training root {}: leftovers of a killed save could not be removed: {}",
                     quote(root.display()), error.what()));
    }
  }
}

}  // namespace dckpt
