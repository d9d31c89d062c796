#include "operations/convert/workers/pooled_copy.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/log.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/noted_copy.h"
#include "operations/convert/source/source_check.h"
#include "operations/convert/workers/pooled_publication.h"
#include "operations/convert/workers/worker_pool.h"
#include "operations/convert/workers/worker_survey.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/memory.h"

namespace dckpt {
namespace {

/// A worker without work looks for it again after the first of these times, then after twice as
/// long each time, up to the second.
constexpr std::chrono::milliseconds kShortestWait{10};
constexpr std::chrono::milliseconds kLongestWait{500};
constexpr std::chrono::seconds kPiecesEvery{1};
constexpr std::size_t kFewUnits = 64;
constexpr std::uint64_t kMaxNoteBytes = 4096;
constexpr const char* kSourcePrefix = "source/";  ///< of units that compare a file of the source

std::uint64_t size_of(const PlannedFile& file) {
  std::uint64_t bytes = 0;
  for (const std::size_t i : file.items) bytes += file.plan[i].nbytes;
  return bytes;
}

/// Finds the data files of a copy by saying of each that it is written already.
class UnitList final : public ItemSource {
 public:
  Bytes object(const WriteItem& /*item*/) override { return {}; }
  void tensor(const WriteItem& /*item*/, const std::function<void(ByteView)>& /*sink*/) override {}
  std::optional<std::vector<StorageInfo>> written(const PlannedFile& file) override {
    const std::lock_guard lock(mutex_);
    units_.push_back({file.name, size_of(file)});
    return std::vector<StorageInfo>(file.items.size());
  }
  std::vector<WorkUnit> take() { return std::exchange(units_, {}); }

 private:
  std::mutex mutex_;
  std::vector<WorkUnit> units_;
};

/// Returns the data files of each rank.
std::vector<std::vector<WorkUnit>> files_of(const PlannedCopy& copy) {
  UnitList list;
  std::vector<std::vector<WorkUnit>> files;
  const auto nowhere = memory_storage();
  for (std::size_t rank = 0; rank < copy.items.size(); ++rank) {
    copy.strategy->write_data(*nowhere, "", static_cast<int>(rank), copy.items[rank], list);
    files.push_back(list.take());
  }
  return files;
}

/// Returns the units in the order of their names.
std::vector<WorkUnit> units_of(const std::vector<std::vector<WorkUnit>>& files,
                               const IntegrityManifest& of_source) {
  std::vector<WorkUnit> units;
  for (const std::vector<WorkUnit>& of_rank : files)
    units.insert(units.end(), of_rank.begin(), of_rank.end());
  for (const IntegrityManifest::Entry& file : of_source.files)
    units.push_back({kSourcePrefix + file.name, file.size.value_or(0)});
  std::ranges::sort(units, {}, &WorkUnit::name);
  return units;
}

PooledJob pooled(const CopyJob& job, std::vector<WorkUnit> units) {
  return {.facts = shared_facts(job),
          .destination = job.destination.absolute(),
          .staging = to_string(HiddenSibling{job.destination.name(), "saving", kPoolToken}),
          .units = std::move(units)};
}

/// One worker of a pool.
class Worker {
 public:
  Worker(const CopyJob& job, const Location& pool, ConvertReport& report)
      : job_(job),
        report_(report),
        storage_(job.destination.storage()),
        of_source_(manifest_to_compare(job.reader, job.copy.contents, job.checks.source,
                                       job.checks.integrity)),
        files_(files_of(job.copy)),
        pool_(pool, pooled(job, units_of(files_, of_source_)), job.workers.lease),
        publication_(pool_, job.destination),
        check_(job.reader, job.checks.source, {}, job.watch),
        source_(job.reader, job.copy.contents, check_, *job.copy.target.format, job.memory,
                job.progress, bytes_of(job.copy.items), job.go_on),
        noted_(pool_, storage_, pool_.job().staging, worker_folder(pool_.token()),
               job.copy.target.save.integrity) {}

  /// Makes the staging directory of a pool that begins, where other pools find its name.
  void make_place(const Location& pool);
  void work();

 private:
  /// Feeds the strategy with the units that this worker can claim.
  class Units;

  void require_place();
  void work_until_published();
  void tidy() noexcept;
  bool pass();
  void write_units(Units& units);
  void compare_source(Units& units);
  bool finds_records(const CheckpointError& error);
  void keep_known_records();
  void note_pieces();
  void publish();
  std::string folder() const {
    return join_name(pool_.job().staging, worker_folder(pool_.token()));
  }

  const CopyJob& job_;
  ConvertReport& report_;
  const std::shared_ptr<Storage> storage_;
  const IntegrityManifest of_source_;
  const std::vector<std::vector<WorkUnit>> files_;  ///< data files of each rank
  WorkerPool pool_;
  PooledPublication publication_;
  SourceCheck check_;
  CopySource source_;
  NotedCopy noted_;
  std::mutex mutex_;
  std::set<std::string> counted_;  ///< units that are part of the progress
  bool keeps_records_ = false;
  std::chrono::steady_clock::time_point pieces_noted_{};
};

class Worker::Units final : public ItemSource {
 public:
  explicit Units(Worker& worker) : worker_(worker) {}

  Bytes object(const WriteItem& item) override { return worker_.source_.object(item); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    worker_.source_.tensor(item, sink);
  }

  /// Claims the first of these units that nobody has. Returns whether there is one.
  bool claim_first(const std::vector<WorkUnit>& units) {
    return std::ranges::any_of(units,
                               [&](const WorkUnit& unit) { return claim(unit.name, unit.bytes); });
  }

  /// Places of units that others write do not matter here: the publisher reads them from the notes.
  std::optional<std::vector<StorageInfo>> written(const PlannedFile& file) override {
    if (is_claimed(file.name) || claim(file.name, size_of(file))) return std::nullopt;
    return std::vector<StorageInfo>(file.items.size());
  }

  void wrote(const PlannedFile& file, std::span<const StorageInfo> places) override {
    before_note();
    worker_.noted_.wrote(file.name, places, worker_.source_.checked(file));
    after_note(file.name);
  }

  /// Notes that a file of the source agrees with its manifest.
  void compared(const std::string& unit) {
    before_note();
    worker_.pool_.finish(unit, {});
    after_note(unit);
  }

  /// Returns whether this worker is to do the unit.
  bool claim(const std::string& unit, std::uint64_t bytes) {
    worker_.job_.go_on();
    if (worker_.pool_.was_busy(unit)) return false;
    if (worker_.pool_.find(unit)) {
      const std::lock_guard lock(worker_.mutex_);
      if (worker_.counted_.insert(unit).second) worker_.source_.count(bytes);
      return false;
    }
    std::optional<WorkerPool::Claim> claim = worker_.pool_.claim(unit);
    if (!claim) return false;
    const std::lock_guard lock(mutex_);
    claims_.emplace(unit, *std::move(claim));
    worked_ = true;
    return true;
  }

  bool worked() const { return worked_; }

 private:
  bool is_claimed(const std::string& unit) {
    const std::lock_guard lock(mutex_);
    return claims_.contains(unit);
  }

  void before_note() {
    worker_.check_.require_unchanged_since_last();
    worker_.note_pieces();
  }

  void after_note(const std::string& unit) {
    {
      const std::lock_guard lock(worker_.mutex_);
      worker_.counted_.insert(unit);
      ++worker_.report_.workers->units_here;
    }
    const std::lock_guard lock(mutex_);
    claims_.erase(unit);
  }

  Worker& worker_;
  std::mutex mutex_;
  std::map<std::string, WorkerPool::Claim> claims_;
  bool worked_ = false;
};

void Worker::make_place(const Location& pool) {
  try {
    storage_->make_directory(pool_.job().staging);
    const auto note = storage_->create(join_name(pool_.job().staging, kPoolNote));
    note->append(as_bytes(pool.absolute()));
    note->close();
  } catch (const CheckpointError&) {  // another worker has begun as well, or even published
  }
}

void Worker::work() {
  report_.workers = PoolReport{.units = pool_.job().units.size()};
  try {
    work_until_published();
  } catch (const CheckpointError& error) {
    if (error.code() == ErrorCode::kCancelled || !pool_.is_published()) throw;
    log_warning(str_format("another worker has published the result; this one ended with: {}",
                           error.what()));
  }
  tidy();
  report_.files =
      static_cast<std::uint64_t>(std::ranges::count_if(pool_.job().units, [](const WorkUnit& unit) {
        return !unit.name.starts_with(kSourcePrefix);
      }));
  if (publication_.is_complete()) return;
  throw_error(
      ErrorCode::kIncomplete, {.file = job_.destination.display()},
      "these workers have published their result, but {}; to make it again, remove the "
      "pool (dckpt workers DIR --remove)",
      job_.destination.is_directory() ? "files of it are gone or have changed" : "it is gone");
}

void Worker::work_until_published() {
  if (!pool_.is_published()) require_place();
  std::chrono::milliseconds wait = kShortestWait;
  while (!pool_.is_published()) {
    job_.go_on();
    if (pass()) {
      wait = kShortestWait;
      continue;
    }
    if (pool_.all_done()) {
      if (const auto claim = pool_.claim_publication()) {
        publish();
        continue;
      }
    }
    std::this_thread::sleep_for(wait);
    wait = std::min({2 * wait, kLongestWait, job_.workers.lease / 8});
  }
}

/// Removes what this worker may have made while another one was publishing.
void Worker::tidy() noexcept {
  const std::string& staging = pool_.job().staging;
  try {
    const std::string folder = worker_folder(pool_.token());
    storage_->remove_all(join_name(job_.destination.name(), folder));
    storage_->remove_all(staging);
  } catch (const std::exception& error) {
    try {
      log_warning(str_format("the result is published, but {} could not be removed: {}",
                             quote(storage_->display_path(staging)), error.what()));
    } catch (...) {  // there is no memory for a message, and nothing else can be done
    }
  }
}

/// Checks early what publishing would find only at the end.
void Worker::require_place() {
  if (publication_.is_complete()) return;
  try {
    require_free_name(job_.destination, job_.copy.target.save.overwrite);
  } catch (const CheckpointError&) {
    if (publication_.is_complete()) return;  // meanwhile
    throw;
  }
  pool_.look();
  std::uint64_t written = 0;
  for (const WorkUnit& unit : pool_.job().units)
    if (pool_.find(unit.name)) written += unit.bytes;
  require_space(job_.destination, report_.disk_bytes - std::min(report_.disk_bytes, written));
}

/// Does every unit that nobody has. Returns whether there was any.
bool Worker::pass() {
  keep_known_records();
  Units units(*this);
  try {
    pool_.look();
    write_units(units);
    compare_source(units);
  } catch (const CheckpointError& error) {
    // Whoever publishes moves the folders of the others, who can only be late.
    if (error.code() != ErrorCode::kCancelled && (pool_.is_published() || pool_.all_done()))
      return false;
    if (finds_records(error)) return true;
    throw;
  }
  return units.worked();
}

void Worker::write_units(Units& units) {
  const std::size_t ranks = job_.copy.items.size();
  // Workers begin at different ranks, so that they seldom want the same.
  const std::size_t first = fingerprint_of(as_bytes(pool_.token())).low % ranks;
  const WriteTarget target{noted_.storage(), folder(), false};
  parallel_for(ranks, job_.memory.io.threads, [&](std::size_t i) {
    const std::size_t rank = (first + i) % ranks;
    if (!units.claim_first(files_[rank])) return;  // before anything is planned for the rank
    storage_->make_directory(folder());            // not while another worker publishes
    write_items(target, *job_.copy.strategy, static_cast<int>(rank), job_.copy.items[rank], units);
  });
}

void Worker::compare_source(Units& units) {
  parallel_for(of_source_.files.size(), job_.memory.io.threads, [&](std::size_t i) {
    const IntegrityManifest::Entry& file = of_source_.files[i];
    const std::string unit = kSourcePrefix + file.name;
    if (!units.claim(unit, 0)) return;
    compare_digests(job_.reader.storage(), IntegrityManifest{{file}}, 0, 1, 1);
    units.compared(unit);
  });
}

/// Returns whether the error was about records that are to be copied as they are.
bool Worker::finds_records(const CheckpointError& error) {
  if (error.code() != ErrorCode::kUnsupported || !job_.keeps_records || keeps_records_)
    return false;
  keeps_records_ = keep_records(job_.copy, job_.reader);
  if (keeps_records_) pool_.note_records();
  return keeps_records_;
}

void Worker::keep_known_records() {
  if (!keeps_records_ && job_.keeps_records && pool_.has_records())
    keeps_records_ = keep_records(job_.copy, job_.reader);
}

/// Notes the parts of records that have been read, for whoever publishes: often before the last
/// units, else once in a while.
void Worker::note_pieces() {
  if (!job_.checks.source) return;
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (pool_.open_units() > kFewUnits && now - pieces_noted_ < kPiecesEvery) return;
    pieces_noted_ = now;
  }
  pool_.note_pieces(check_.records().incomplete());
}

void Worker::publish() {
  if (publication_.is_complete()) {
    remove_dead_attempts(job_.destination);  // what that worker was about to remove
    return pool_.note_published();
  }
  keep_known_records();
  for (const auto& [from, pieces] : pool_.pieces_of_others()) check_.records().take(pieces, from);
  CopySource source(job_.reader, job_.copy.contents, check_, *job_.copy.target.format, job_.memory,
                    {}, 0, job_.go_on);
  const auto check_source = [&] { check_.check_rest(job_.readers, job_.go_on); };
  report_.workers->published_here = publication_.publish(job_, source, check_source, report_);
}

/// Throws CheckpointError (aborted) if the workers of another pool are writing the destination, and
/// warns of what others have left there.
void require_only_pool(const Location& destination) {
  const Storage& storage = *destination.storage();
  for (const std::string& directory : pool_directories(destination)) {
    const std::optional<Location> other = pool_of(storage, directory);
    if (other) require_idle(destination, *other);
    log_warning(
        str_format("{} is of another pool of workers{}, which seems to have died; remove it "
                   "when it is not needed{}",
                   quote(storage.display_path(directory)),
                   other ? str_format(", {}", quote(other->display())) : "",
                   other ? " (dckpt workers DIR --remove)" : ""));
  }
}

}  // namespace

ConversionFacts shared_facts(const CopyJob& job) {
  const auto yes_or_no = [](bool value) { return value ? "yes" : "no"; };
  ConversionFacts facts = job.facts;
  facts.emplace_back("destination", quote(job.destination.absolute()));
  facts.emplace_back("source compared with its checksums", yes_or_no(job.checks.source));
  facts.emplace_back("source compared with integrity.json", yes_or_no(job.checks.integrity));
  facts.emplace_back("destination replaced", yes_or_no(job.copy.target.save.overwrite));
  return facts;
}

std::vector<std::string> pool_directories(const Location& destination) {
  std::vector<std::string> names;
  if (!destination.storage()->stat_target("")) return names;
  for (const FileInfo& entry : destination.storage()->list("")) {
    const auto sibling = parse_hidden_sibling(entry.name);
    if (sibling && sibling->name == destination.name() && is_of_pool(entry.name))
      names.push_back(entry.name);
  }
  return names;
}

std::optional<Location> pool_of(const Storage& storage, const std::string& directory) {
  try {
    const auto note = storage.open(join_name(directory, kPoolNote));
    return Location(std::string(as_text(ByteView(read_file(*note, kMaxNoteBytes)))));
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

void require_idle(const Location& destination, const Location& pool) {
  const std::optional<SurveyedWorker> worker = worker_at_work(pool);
  if (!worker) return;
  throw_error(ErrorCode::kAborted, {.file = destination.display()},
              "the workers of {} are writing this destination, process {} of host {} among "
              "them; join them (--workers {}), or stop them first",
              quote(pool.display()), worker->process, quote(worker->host), pool.display());
}

void remove_pool(const Location& pool, bool published) {
  try {
    if (!pool.stat()) return;
    published ? pool.storage()->remove_all(pool.name()) : remove_workers(pool);
  } catch (const CheckpointError& error) {
    log_warning(str_format("what the ranks have left in {} could not be removed: {}",
                           quote(pool.display()), error.what()));
  }
}

void share_copy(const CopyJob& job, const Location& pool, ConvertReport& report) {
  const auto is_begun = [&] { return pool.is_directory() && pool.directory()->stat(kJobFile); };
  const bool begins = !is_begun();
  try {
    // A job that cannot be done would be in the way of the one that is asked for next.
    if (begins) {
      require_only_pool(job.destination);
      require_free_name(job.destination, job.copy.target.save.overwrite);
      require_space(job.destination, report.disk_bytes);
    }
  } catch (const CheckpointError&) {
    if (!is_begun()) throw;  // else other workers have been faster, and may even have published
  }
  Worker worker(job, pool, report);
  if (begins) worker.make_place(pool);
  worker.work();
}

}  // namespace dckpt
