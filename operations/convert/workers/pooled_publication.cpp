#include "operations/convert/workers/pooled_publication.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "operations/convert/conversion_journal.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

constexpr int kMaxAttempts = 10;

/// Moves the files of all units out of their workers' folders, and removes these.
void gather(Storage& storage, const std::string& staging,
            const std::map<std::string, FinishedUnit>& units) {
  std::set<std::string> folders;
  std::set<std::string> made;
  for (const auto& [name, unit] : units) {
    if (unit.path.empty()) continue;
    folders.insert(unit.path.substr(0, unit.path.find('/')));
    const std::string parent = parent_name(name);
    if (!parent.empty() && made.insert(parent).second)
      storage.make_directory(join_name(staging, parent));
    storage.rename(join_name(staging, unit.path), join_name(staging, name));
  }
  for (const std::string& folder : folders) storage.remove_all(join_name(staging, folder));
}

}  // namespace

std::string PooledPublication::hidden(const char* purpose, const std::string& token) const {
  return to_string(HiddenSibling{destination_.name(), purpose, token});
}

std::string PooledPublication::left() const {
  for (const std::string& token : pool_.publishers()) {
    for (const char* const purpose : {"saving", "interrupted"}) {
      std::string name = hidden(purpose, token);
      if (storage_.stat(name)) return name;
    }
  }
  if (storage_.stat(pool_.job().staging)) return pool_.job().staging;
  throw CheckpointError(ErrorCode::kIncomplete,
                        "the files that the workers have written are gone; remove the pool (dckpt "
                        "workers DIR --remove) and start again",
                        {.file = storage_.display_path(pool_.job().staging)});
}

std::vector<PublishedFile> PooledPublication::files_below(const std::string& directory,
                                                          const std::string& below) const {
  std::vector<PublishedFile> files;
  for (const FileInfo& entry :
       storage_.list(below.empty() ? directory : join_name(directory, below))) {
    const std::string name = join_name(below, entry.name);
    if (entry.kind == FileInfo::Kind::kDirectory) {
      for (PublishedFile& file : files_below(directory, name)) files.push_back(std::move(file));
    } else if (!is_journal(name)) {
      files.push_back({name, entry.size, entry.modified});
    }
  }
  return files;
}

bool PooledPublication::is_complete() {
  if (!destination_.is_directory()) return false;
  const auto is_there = [&](const PublishedFile& file) {
    const auto found = storage_.stat(join_name(destination_.name(), file.name));
    return found && PublishedFile{file.name, found->size, found->modified} == file;
  };
  const std::vector<Commitment> commitments = pool_.commitments();
  return std::ranges::any_of(commitments, [&](const Commitment& commitment) {
    return std::ranges::all_of(commitment.files, is_there);
  });
}

bool PooledPublication::all_there(const std::string& staging,
                                  const std::map<std::string, FinishedUnit>& units) {
  bool all = true;
  for (const auto& [name, unit] : units) {
    if (unit.path.empty()) continue;
    const auto found = storage_.stat(join_name(staging, unit.path));
    if (found && found->kind == FileInfo::Kind::kRegular && found->size == unit.file.size &&
        found->modified == unit.file.modified)
      continue;
    if (!storage_.stat(staging)) return false;  // another worker has taken it
    log_warning(str_format("{} is not as a worker has left it: it is written anew",
                           quote(storage_.display_path(join_name(staging, unit.path)))));
    pool_.forget(name);
    all = false;
  }
  return all;
}

/// Leaves the files where workers look for them. Returns false if another one has them by now.
bool PooledPublication::give_back() {
  for (const char* const purpose : {"saving", "interrupted"}) {
    const std::string mine = hidden(purpose, pool_.token());
    for (int attempt = 0; storage_.stat(mine); ++attempt) {
      try {
        storage_.remove_all(pool_.job().staging);  // made anew by a worker that came late
        storage_.rename(mine, pool_.job().staging);
        return true;
      } catch (const CheckpointError&) {
        if (attempt == kMaxAttempts) throw;  // a worker makes it again and again
      }
    }
  }
  return false;
}

bool PooledPublication::publish(const PlannedCopy& copy, CopySource& source,
                                const WriteSteps& steps,
                                const std::map<std::string, FinishedUnit>& units,
                                ConvertReport& report) {
  bool begun = false;
  try {
    Publication publication =
        begin_resumable(destination_, copy.target.save, left(), pool_.token(), false);
    begun = true;
    const std::string staging = publication.staging();
    for (const Commitment& commitment : pool_.commitments())
      undo_renames(storage_, staging, commitment.renamed);
    if (const auto noted = read_journals(*pool_.storage(), ""))
      undo_renames(storage_, staging, noted->renamed);
    if (all_there(staging, units)) {
      publish_from(std::move(publication), copy, source, steps, units, report);
      return true;
    }
  } catch (const CheckpointError& error) {
    if (begun ? give_back() || error.code() == ErrorCode::kCancelled
              : error.code() != ErrorCode::kAborted)
      throw;
    return false;
  }
  give_back();
  return false;
}

void PooledPublication::publish_from(Publication publication, const PlannedCopy& copy,
                                     CopySource& source, const WriteSteps& steps,
                                     const std::map<std::string, FinishedUnit>& units,
                                     ConvertReport& report) {
  const std::string staging = publication.staging();
  std::map<std::string, FinishedFile> by_path;
  std::map<std::string, FinishedFile> by_name;
  for (const auto& [name, unit] : units) {
    if (unit.path.empty()) continue;
    by_path.emplace(unit.path, unit.file);
    by_name.emplace(name, unit.file);
  }
  remove_others(storage_, staging, by_path);
  const SaveOptions& save = copy.target.save;
  ConversionJournal journal(destination_.storage(), staging, steps.facts, std::move(by_name),
                            save.integrity, save.io.fsync, {pool_.storage()});
  gather(*journal.storage(), staging, units);
  const auto check = [&] {
    steps.go_on();
    pool_.note_commitment({pool_.token(), files_below(staging, ""), journal.renamed()});
    journal.remove();
  };
  finish_copy(copy, source, std::move(publication), journal, steps, check, report);
  pool_.note_published();
}

}  // namespace dckpt
