#include "operations/convert/workers/worker_pool.h"

#include <algorithm>
#include <array>
#include <exception>

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/warn_if_possible.h"
#include "mapping/base/wire_fields.h"
#include "operations/convert/conversion_facts.h"
#include "strategies/storage/hidden_sibling.h"

// The files in the directory of a pool. U is the number of a unit, G counts from 1, T is the token
// of a worker.
//
//     id/              holds a directory that is named by a random number, the end of the name of
//                      the staging directory
//     job              facts, units, and the staging directory. They follow from the conversion and
//                      the id, so that all workers would write the same bytes: whoever finds none
//                      writes it
//     U.claim-G        a lease, with the token of its owner, the time of the claim, and the period
//                      of the lease: its owner works on the unit. G + 1 may be claimed if the lease
//                      has expired, if its owner is a process of this host that has ended, or if
//                      it was killed before it wrote its token, for which it has a quarter of a
//                      period. Claims are created exclusively and never taken away from an owner,
//                      so that none is ever removed under a new owner's hands
//     .notes-T-G       the notes of a worker (pool_notes.h): units that are done, with the path and
//                      the places of the finished file; files that are not as they were noted;
//                      renames, before they are carried out; and the files that the owner of the
//                      publication is about to make visible. Nobody else writes them, so a worker
//                      that was stopped may do so late
//     publish.claim-G  the same lease for the publication. Its owner has renamed the staging
//                      directory S to that of its own token. The file `.pool` in S, which names
//                      this directory, returns to the first name of S before the commitment, and
//                      stays there until the checkpoint is visible
//     T.pieces         the parts of the source's records that the worker has read, which have no
//                      checksum of their own: the publisher compares whole records
//     records          the copy contains records as they are stored
//     published        the destination is complete
//
// A worker writes into a folder of its own in S. Two workers on one unit, as when one was stopped
// until its lease had expired, therefore never write the same file: each would write the same
// bytes, and either note will do. A worker that died after
//
//     its claim          leaves a claim that expires, and part of a file that nobody refers to
//     noting a unit      leaves a claim that nobody looks at
//     renaming S         leaves S under its token; the next publisher renames that to its own
//     renaming files     leaves each under one of two names that are known: those of units move
//                        from the worker's folder to the name of the unit, other renames are noted
//     its commitment     either leaves the checkpoint visible, which the sizes and times of its
//                        files tell, or S as before: it is finished again
//
// A conversion by one process is a pool of one worker, without a directory of its own: its notes
// are in S, beside the files, which it writes under their names at once. S is the claim: whoever
// resumes renames it to its own token, and two cannot. The notes are removed before S becomes
// visible. A process that died after
//
//     noting a unit      leaves S with a file that is kept if it still has its digest
//     renaming files     leaves S, in which renames are undone first
//     removing its notes leaves S, from which nothing can be resumed: the next job removes it
//
// Leases and ages are judged by the clock of the storage alone.

namespace dckpt {
namespace {

constexpr const char* kRecordsFile = "records";
constexpr const char* kPiecesSuffix = ".pieces";
constexpr const char* kIdDirectory = "id";
constexpr std::uint64_t kMaxOwnerBytes = 4096;
constexpr std::size_t kMaxGenerations = 1'000'000;

PooledJob parse_job(ByteView content, const std::string& file) try {
  auto job = read_message<PooledJob>(content, file);
  name_components(job.staging);
  return job;
} catch (const CheckpointError& error) {
  throw_error(ErrorCode::kCorrupt, {.file = file},
              "this file of a pool of workers is damaged ({}); stop the "
              "workers, remove the pool (dckpt workers DIR --remove), and "
              "start them again",
              error.message());
}

}  // namespace

std::string claim_prefix(std::size_t unit) {
  return str_format("{}.claim-", unit);
}

bool is_pool_file(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kNames{kJobFile, kRecordsFile, kIdDirectory,
                                                          kPublishedFile};
  return std::ranges::find(kNames, name) != kNames.end() || is_notes(name) ||
         name.find(".claim-") != std::string_view::npos || name.ends_with(kPiecesSuffix) ||
         name.starts_with(kProbePrefix) || parse_hidden_sibling(name);
}

std::vector<std::string> publishers_in(const Storage& pool) {
  std::vector<std::string> tokens;
  for (std::size_t generation = 1;; ++generation) {
    const std::string name = kClaimOfPublication + std::to_string(generation);
    if (!pool.stat(name)) break;
    tokens.push_back(parse_claim(read_file(*pool.open(name), kMaxOwnerBytes)).token);
  }
  std::ranges::reverse(tokens);
  return tokens;
}

ClaimText parse_claim(ByteView content) {
  const std::vector<std::string> words = split(as_text(content), ' ');
  if (words.size() != 3) return {};
  return {words[0], static_cast<std::int64_t>(parse_u64(words[1]).value_or(0) & INT64_MAX),
          Lease::Period(parse_u64(words[2]).value_or(0) & INT64_MAX)};
}

void refuse_earlier_pool(const Location& directory) {
  if (!directory.is_directory()) return;
  const std::shared_ptr<Storage> storage = directory.directory();
  if (storage->stat(kJobFile) || !storage->stat("job.json")) return;
  throw_error(
      ErrorCode::kUnsupported, {.file = directory.display()},
      "an earlier build of dckpt has made this pool of workers, which only that build reads; "
      "complete the conversion or remove the pool with it, or remove this directory and the hidden "
      "one beside the destination by hand");
}

PooledJob read_job(const Location& directory) {
  const std::shared_ptr<Storage> storage = directory.directory();
  refuse_earlier_pool(directory);
  if (!directory.is_directory() || !storage->stat(kJobFile))
    throw_error(ErrorCode::kInvalidArgument, {.file = directory.display()},
                "no workers have begun here: there is no file 'job'; give the directory "
                "that convert --workers was given");
  return parse_job(read_file(*storage->open(kJobFile), kMaxPoolFileBytes),
                   storage->display_path(kJobFile));
}

WorkerPool::Claim::~Claim() {
  if (!lease_ || !lease_->is_current()) return;
  try {
    lease_->release();
  } catch (const std::exception& error) {
    warn_if_possible([&] {
      return str_format("a claim cannot be given back, so it has to expire: {}", error.what());
    });
  }
}

WorkerPool::WorkerPool(const Location& directory, PooledJob job, Lease::Period lease)
    : storage_(directory.directory()),
      job_(std::move(job)),
      period_(lease),
      shared_(true),
      sync_(true),
      token_(staging_token()) {
  if (!storage_->capabilities().rename)
    throw_error(ErrorCode::kUnsupported, {.file = directory.display()},
                "this storage cannot rename files, so workers cannot agree in it; give "
                "--workers a directory of a file system");
  for (std::size_t i = 0; i < job_.units.size(); ++i) numbers_.emplace(job_.units[i].name, i);
  begin_or_join(directory);
}

WorkerPool::WorkerPool(std::shared_ptr<Storage> storage, const ConversionFacts& facts, bool sync)
    : storage_(std::move(storage)),
      period_(0),
      shared_(false),
      sync_(sync),
      token_(staging_token()) {
  read_notes(*storage_, storage_->list(""), notes_);
  note({.facts = facts});
}

void WorkerPool::begin_or_join(const Location& directory) {
  if (!storage_->stat(kJobFile)) {
    refuse_earlier_pool(directory);
    const auto is_foreign = [](const FileInfo& entry) {
      return !parse_hidden_sibling(entry.name) && entry.name != kIdDirectory;
    };
    if (directory.is_directory() && std::ranges::any_of(storage_->list(""), is_foreign) &&
        !storage_->stat(kJobFile))
      throw_error(ErrorCode::kInvalidArgument, {.file = directory.display()},
                  "the directory for workers is not empty and has no file 'job'; give them "
                  "a new directory");
    job_.staging += identifier();
    storage_->put(kJobFile, message_of(job_));
  }
  PooledJob found = read_job(directory);
  if (found.facts != job_.facts)
    throw_error(ErrorCode::kMismatch, {.file = directory.display()},
                "the workers here do another job; start all with the same "
                "arguments and release, or give this one another directory. "
                "What differs:{}",
                differences(found.facts, job_.facts));
  job_.staging = std::move(found.staging);
  if (now() == 0)
    throw_error(ErrorCode::kUnsupported, {.file = directory.display()},
                "this storage has no times, so nobody could tell that a worker has died; "
                "give --workers a directory of a file system");
}

/// Returns the identifier of the pool, on which the workers agree that begin at the same time: the
/// name of a directory in one that appears whole, and that only one of them can make.
std::string WorkerPool::identifier() {
  if (!storage_->stat(kIdDirectory)) {
    std::string number = random_id();
    std::erase(number, '-');
    const std::string mine = hidden_sibling(kIdDirectory, "tmp", token_);
    storage_->make_directory(join_name(mine, number));
    try {
      storage_->rename(mine, kIdDirectory);
    } catch (const CheckpointError&) {
      if (!storage_->stat(kIdDirectory)) throw;
    }
    storage_->remove_all(mine);
  }
  const std::vector<FileInfo> names = storage_->list(kIdDirectory);
  if (names.size() == 1) return names.front().name;
  throw_error(ErrorCode::kCorrupt, {.file = storage_->display_path(kIdDirectory)},
              "this directory of a pool of workers is damaged; remove the pool (dckpt "
              "workers DIR --remove) and start the workers again");
}

std::int64_t WorkerPool::now() {
  const std::lock_guard lock(mutex_);
  const auto since = std::chrono::steady_clock::now() - asked_;
  if (now_ != 0 && since < period_ / 8) return now_;
  now_ = storage_time(*storage_, kProbePrefix + token_);
  asked_ = std::chrono::steady_clock::now();
  return now_;
}

bool WorkerPool::is_expired(const std::string& claim) {
  const auto found = storage_->stat(claim);
  return found && is_expired(claim, found->modified);  // else it was given back just now
}

bool WorkerPool::is_expired(const std::string& claim, std::int64_t modified) {
  if (now() - modified > std::chrono::nanoseconds(period_).count()) return true;
  SeenClaim seen;
  {
    const std::lock_guard lock(mutex_);
    seen = seen_[claim];
  }
  if (seen.modified != modified) {
    try {
      seen = {modified, parse_claim(read_file(*storage_->open(claim), kMaxOwnerBytes)).token};
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kCorrupt) return false;  // given back, or renewed just now
      seen = {modified, ""};
    }
    if (seen.token.empty()) return now() - modified > std::chrono::nanoseconds(writing()).count();
    const std::lock_guard lock(mutex_);
    seen_[claim] = seen;
  }
  return made_by_ended_process(seen.token);
}

void WorkerPool::look() {
  std::vector<FileInfo> entries = storage_->list("");
  const std::lock_guard lock(mutex_);
  read_notes(*storage_, entries, notes_);
  listed_.clear();
  for (FileInfo& entry : entries) listed_.emplace(std::move(entry.name), entry.modified);
}

bool WorkerPool::was_busy(const std::string& unit) {
  const std::size_t number = numbers_.at(unit);
  const std::string prefix = claim_prefix(number);
  std::vector<std::pair<std::string, std::int64_t>> claims;
  {
    const std::lock_guard lock(mutex_);
    if (notes_.done.contains(unit)) return false;
    for (auto file = listed_.lower_bound(prefix);
         file != listed_.end() && file->first.starts_with(prefix); ++file)
      claims.push_back(*file);
  }
  return std::ranges::any_of(
      claims, [&](const auto& claim) { return !is_expired(claim.first, claim.second); });
}

std::optional<WorkerPool::Claim> WorkerPool::claim_first_free(const std::string& prefix) {
  for (std::size_t generation = 1; generation < kMaxGenerations; ++generation) {
    const std::string name = prefix + std::to_string(generation);
    const std::string text = str_format("{} {} {}", token_, now(), period_.count());
    const auto begun = std::chrono::steady_clock::now();
    if (auto lease = Lease::take(storage_, name, text, period_, false)) {
      Claim claim(std::move(lease));
      if (std::chrono::steady_clock::now() - begun < writing()) return claim;
      return std::nullopt;  // others may have found it without a token
    }
    if (!is_expired(name)) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<WorkerPool::Claim> WorkerPool::claim(const std::string& unit) {
  std::optional<Claim> claim = claim_first_free(claim_prefix(numbers_.at(unit)));
  if (!claim) return std::nullopt;
  look();
  if (find(unit)) return std::nullopt;  // its last owner has finished it meanwhile
  return claim;
}

std::optional<FinishedUnit> WorkerPool::find(const std::string& unit) const {
  const std::lock_guard lock(mutex_);
  const auto found = notes_.done.find(unit);
  return found == notes_.done.end() ? std::nullopt : std::optional(found->second);
}

/// Appends to the notes of this worker. After an error nobody reads what follows in the same file,
/// so that the next note begins another one.
void WorkerPool::note(PoolNote note) {
  {
    const std::lock_guard writing(noting_);
    if (!file_) {
      const std::string name = notes_name(token_, ++files_);
      {
        const std::lock_guard lock(mutex_);
        notes_.read[name] = UINT64_MAX;  // everything in it is known here
      }
      file_ = storage_->create(name);
    }
    try {
      file_->append(note_record(message_of(note)));
      if (sync_) file_->sync();
    } catch (...) {
      file_.reset();
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  notes_.add(std::move(note));
}

void WorkerPool::finish(const std::string& unit, FinishedUnit finished) {
  if (shared_) {
    look();
    if (find(unit)) return;  // by another worker, after the claim of this one had expired
    finished.at = now();
  }
  note({.done = {{unit, std::move(finished)}}});
}

void WorkerPool::forget(const std::string& unit) {
  if (const auto gone = find(unit)) note({.gone = {{unit, *gone}}});
}

std::size_t WorkerPool::open_units() const {
  const std::lock_guard lock(mutex_);
  return job_.units.size() - std::min(job_.units.size(), notes_.done.size());
}

bool WorkerPool::all_done() {
  look();
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(job_.units,
                             [&](const WorkUnit& unit) { return notes_.done.contains(unit.name); });
}

std::map<std::string, FinishedUnit> WorkerPool::done() const {
  const std::lock_guard lock(mutex_);
  return notes_.done;
}

void WorkerPool::note_rename(const std::string& from, const std::string& to) {
  note({.renamed = {{from, to}}});
}

NamePairs WorkerPool::renamed() {
  look();
  const std::lock_guard lock(mutex_);
  return notes_.renamed;
}

void WorkerPool::note_pieces(ByteView pieces) {
  storage_->put(token_ + kPiecesSuffix, pieces);
}

std::vector<std::pair<std::string, Bytes>> WorkerPool::pieces_of_others() {
  std::vector<std::pair<std::string, Bytes>> pieces;
  for (const FileInfo& entry : storage_->list("")) {
    if (!entry.name.ends_with(kPiecesSuffix) || entry.name == token_ + kPiecesSuffix) continue;
    pieces.emplace_back(storage_->display_path(entry.name),
                        read_file(*storage_->open(entry.name), kMaxPoolFileBytes));
  }
  return pieces;
}

std::optional<WorkerPool::Claim> WorkerPool::claim_publication() {
  return claim_first_free(kClaimOfPublication);
}

void WorkerPool::note_commitment(std::vector<PublishedFile> files) {
  note({.commitment = std::move(files)});
}

std::vector<std::vector<PublishedFile>> WorkerPool::commitments() {
  look();
  const std::lock_guard lock(mutex_);
  return notes_.commitments;
}

void WorkerPool::note_published() {
  storage_->put(kPublishedFile, as_bytes(token_));
}

bool WorkerPool::is_published() {
  return storage_->stat(kPublishedFile).has_value();
}

void WorkerPool::remove_notes() {
  const std::lock_guard writing(noting_);
  if (file_) file_->close();
  file_.reset();
  const std::lock_guard lock(mutex_);
  for (const auto& [name, read] : notes_.read) storage_->remove_all(name);
}

void WorkerPool::note_records() {
  storage_->put(kRecordsFile, {});
}

bool WorkerPool::has_records() {
  return storage_->stat(kRecordsFile).has_value();
}

}  // namespace dckpt
