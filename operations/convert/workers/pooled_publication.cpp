#include "operations/convert/workers/pooled_publication.h"

#include <algorithm>
#include <utility>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "operations/convert/noted_copy.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

constexpr int kMaxAttempts = 10;

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
  throw_error(ErrorCode::kIncomplete, {.file = storage_.display_path(pool_.job().staging)},
              "the files that the workers have written are gone; remove the pool (dckpt "
              "workers DIR --remove) and start again");
}

std::vector<PublishedFile> PooledPublication::files_below(const std::string& directory,
                                                          const std::string& below) const {
  std::vector<PublishedFile> files;
  for (const FileInfo& entry :
       storage_.list(below.empty() ? directory : join_name(directory, below))) {
    const std::string name = join_name(below, entry.name);
    if (entry.kind == FileInfo::Kind::kDirectory) {
      for (PublishedFile& file : files_below(directory, name)) files.push_back(std::move(file));
    } else {
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
  return std::ranges::any_of(pool_.commitments(), [&](const std::vector<PublishedFile>& files) {
    return std::ranges::all_of(files, is_there);
  });
}

/// Moves the note that names the pool, so that whoever resumes finds it until the result is
/// visible.
void PooledPublication::move_note(const std::string& from, const std::string& to) {
  const std::string note = join_name(from, kPoolNote);
  if (!storage_.stat(note)) return;
  storage_.make_directory(to);
  storage_.rename(note, join_name(to, kPoolNote));
}

/// Leaves the files where workers look for them. Returns false if another one has them by now.
bool PooledPublication::give_back() {
  for (const char* const purpose : {"saving", "interrupted"}) {
    const std::string mine = hidden(purpose, pool_.token());
    for (int attempt = 0; storage_.stat(mine); ++attempt) {
      try {
        move_note(pool_.job().staging, mine);
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

bool PooledPublication::publish(const CopyJob& job, CopySource& source,
                                const std::function<void()>& check_source, ConvertReport& report) {
  const SaveOptions& save = job.copy.target.save;
  bool begun = false;
  try {
    Publication publication = begin_resumable(destination_, save, left(), pool_.token(), false);
    begun = true;
    const std::string staging = publication.staging();
    NotedCopy noted(pool_, destination_.storage(), staging, "", save.integrity);
    if (noted.take_over(NotedCopy::Comparison::kTime, job.memory.io.threads)) {
      const auto check = [&] {
        move_note(staging, pool_.job().staging);
        pool_.note_commitment(files_below(staging, ""));
      };
      finish_copy(job, source, std::move(publication), noted,
                  {.check_source = check_source, .discards = false, .check = check}, report);
      pool_.note_published();
      return true;
    }
  } catch (const CheckpointError& error) {
    const bool gave_back = give_back();  // also what was taken before it failed to begin
    if (begun ? gave_back || error.code() == ErrorCode::kCancelled
              : error.code() != ErrorCode::kAborted)
      throw;
    return false;
  }
  give_back();
  return false;
}

}  // namespace dckpt
