#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operations/convert/workers/pool_notes.h"
#include "strategies/storage/lease.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Larger files of a pool are refused.
constexpr std::uint64_t kMaxPoolFileBytes = std::uint64_t{256} << 20;

/// A part of a job that one worker does at a time: a data file to write, or a file of the source to
/// compare with its manifest.
struct WorkUnit {
  std::string name;
  std::uint64_t bytes = 0;
};
constexpr auto fields(const WorkUnit*) {
  return std::tuple(Field(&WorkUnit::name), Field(&WorkUnit::bytes));
}

/// The work that the workers of a pool share. All of them plan the same.
struct PooledJob {
  ConversionFacts facts;
  std::string destination;  ///< as Location::absolute()
  /// The directory beside the destination with the files of all workers. Each pool has a name of
  /// its own: a worker that is late may remove it, whatever another pool does.
  std::string staging;
  std::vector<WorkUnit> units;
};
constexpr auto fields(const PooledJob*) {
  using J = PooledJob;
  return std::tuple(Field(&J::facts), Field(&J::destination), Field(&J::staging), Field(&J::units));
}

/// Returns the tokens of the workers that have claimed the publication, the latest first.
std::vector<std::string> publishers_in(const Storage& pool);

/// The directory in which the workers of one job agree who does what. Processes on any hosts may
/// join, leave, die, or be stopped for any time; see worker_pool.cpp for the protocol. A pool of
/// one worker has no claims and waits for nobody. Safe to use from several threads.
class WorkerPool {
 public:
  /// A claim of a unit, which ends with the object.
  class Claim {
   public:
    Claim(std::unique_ptr<Lease> lease) : lease_(std::move(lease)) {}
    Claim(Claim&&) noexcept = default;
    Claim& operator=(Claim&&) = delete;
    /// Gives the unit back, unless another worker may have taken it over already.
    ~Claim();

   private:
    std::unique_ptr<Lease> lease_;
  };

  /// Joins the job in `directory`, or begins it. `job.staging` gets the identifier of the pool as
  /// its end. Throws CheckpointError: (mismatch) if another job is there, with the differences;
  /// (unsupported) for a storage that cannot rename or has no times.
  WorkerPool(const Location& directory, PooledJob job, Lease::Period lease);

  /// Begins the pool of a single worker, or continues the one whose notes are in `storage`. With
  /// `sync`, notes are durable.
  WorkerPool(std::shared_ptr<Storage> storage, const ConversionFacts& facts, bool sync);

  const std::string& token() const noexcept { return token_; }
  const PooledJob& job() const noexcept { return job_; }

  /// Lists and reads what all workers have noted.
  void look();
  /// Returns whether another worker had the unit at the last look(). Almost without requests, so
  /// that a worker can wait for hundreds of units.
  bool was_busy(const std::string& unit);
  /// Claims a unit. Returns nothing if it is done, or if another worker has it.
  std::optional<Claim> claim(const std::string& unit);
  /// Returns a unit that was done at the last look(); empty if it was not.
  std::optional<FinishedUnit> find(const std::string& unit) const;
  /// Notes that a unit is done.
  void finish(const std::string& unit, FinishedUnit finished);
  /// Takes back that a unit is done, as its file is not as it was noted.
  void forget(const std::string& unit);
  /// Returns how many units were not done at the last look().
  std::size_t open_units() const;
  /// Returns whether all units are done.
  bool all_done();
  /// Returns the units that were done at the last look().
  std::map<std::string, FinishedUnit> done() const;

  /// Notes a rename in the directory of the copy that is about to be carried out.
  void note_rename(const std::string& from, const std::string& to);
  /// Returns the renames that all workers have noted.
  NamePairs renamed();

  /// Claims the publication, which all units precede.
  std::optional<Claim> claim_publication();
  /// As publishers_in().
  std::vector<std::string> publishers() { return publishers_in(*storage_); }
  /// Notes the files that are about to become visible, all but the marker.
  void note_commitment(std::vector<PublishedFile> files);
  /// Returns what all publishers have noted.
  std::vector<std::vector<PublishedFile>> commitments();
  void note_published();
  bool is_published();
  /// Removes all notes, which nobody needs any more.
  void remove_notes();

  /// The parts of the source's records that this worker has read (RecordChecks::incomplete()), and
  /// those of others with their file.
  void note_pieces(ByteView pieces);
  std::vector<std::pair<std::string, Bytes>> pieces_of_others();

  /// A fact that one worker finds out and all must know: the copy contains records as they are.
  void note_records();
  bool has_records();

 private:
  struct SeenClaim {
    std::int64_t modified = 0;
    std::string token;
  };

  std::optional<Claim> claim_first_free(const std::string& prefix);
  bool is_expired(const std::string& claim);
  bool is_expired(const std::string& claim, std::int64_t modified);
  std::int64_t now();
  /// The time within which the owner of a claim writes its token into it.
  Lease::Period writing() const { return period_ / 4; }
  void begin_or_join(const Location& directory);
  std::string identifier();
  void note(PoolNote note);

  const std::shared_ptr<Storage> storage_;
  PooledJob job_;
  const Lease::Period period_;
  const bool shared_;
  const bool sync_;
  const std::string token_;
  std::map<std::string, std::size_t> numbers_;  ///< of units, by name
  std::mutex noting_;
  std::unique_ptr<WritableFile> file_;  ///< of own notes; empty before the first one
  int files_ = 0;
  mutable std::mutex mutex_;
  PoolNotes notes_;
  std::map<std::string, std::int64_t> listed_;  ///< when files were modified, at the last look()
  std::map<std::string, SeenClaim> seen_;       ///< by name
  std::int64_t now_ = 0;                        ///< by the clock of the storage
  std::chrono::steady_clock::time_point asked_{};
};

/// Throws CheckpointError (unsupported) for a pool whose notes have the form of earlier builds.
void refuse_earlier_pool(const Location& directory);

/// Reads the job of a pool. Throws CheckpointError (invalid argument) if `directory` is none,
/// (corrupt) for a damaged one.
PooledJob read_job(const Location& directory);

/// Names in a pool's directory: of a claim of a unit or of the publication, of the job, and of the
/// file that says that it is published.
std::string claim_prefix(std::size_t unit);
inline constexpr const char* kJobFile = "job";
inline constexpr const char* kClaimOfPublication = "publish.claim-";
inline constexpr const char* kPublishedFile = "published";

inline constexpr const char* kProbePrefix = "now-";  // of files for storage_time()

/// Returns whether a pool makes files of this name.
bool is_pool_file(std::string_view name);

/// The content of a claim; no token if it is incomplete, as while it is written.
struct ClaimText {
  std::string token;
  std::int64_t since = 0;  ///< as FileInfo::modified
  Lease::Period period{};
};
ClaimText parse_claim(ByteView content);

}  // namespace dckpt
