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

#include "operations/convert/conversion_journal.h"
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

/// The work that the workers of a pool share. All of them plan the same.
struct PooledJob {
  ConversionFacts facts;
  std::string destination;  ///< as Location::absolute()
  /// The directory beside the destination with the files of all workers. Each pool has a name of
  /// its own: a worker that is late may remove it, whatever another pool does.
  std::string staging;
  std::vector<WorkUnit> units;
};

/// A unit that is done, with its file.
struct FinishedUnit {
  std::string path;  ///< in PooledJob::staging; empty for a unit without a file
  FinishedFile file{};
};

/// A file that is about to become visible, as it is found again afterwards.
struct PublishedFile {
  std::string name;  ///< in the checkpoint
  std::uint64_t size = 0;
  std::int64_t modified = 0;
  friend bool operator==(const PublishedFile&, const PublishedFile&) = default;
};

/// The note of a worker that is about to make the checkpoint visible.
struct Commitment {
  std::string token;                 ///< of the worker
  std::vector<PublishedFile> files;  ///< all files but the marker
  NamePairs renamed;                 ///< in the staging directory so far
};

/// Returns the tokens of the workers that have claimed the publication, the latest first.
std::vector<std::string> publishers_in(const Storage& pool);

/// The directory in which the workers of one job agree who does what. Processes on any hosts may
/// join, leave, die, or be stopped for any time; see worker_pool.cpp for the protocol. Safe to use
/// from several threads.
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

  const std::string& token() const noexcept { return token_; }
  const PooledJob& job() const noexcept { return job_; }
  /// The directory of the pool, for a journal of the publication.
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }

  /// Lists what all workers have noted.
  void look();
  /// Returns whether another worker had the unit at the last look(). Almost without requests, so
  /// that a worker can wait for hundreds of units.
  bool was_busy(const std::string& unit);
  /// Claims a unit. Returns nothing if it is done, or if another worker has it.
  std::optional<Claim> claim(const std::string& unit);
  bool is_done(const std::string& unit);
  /// Notes, durably, that a unit is done.
  void finish(const std::string& unit, const FinishedUnit& finished);
  /// Takes back that a unit is done, as its file is gone.
  void forget(const std::string& unit);
  /// Returns how many units are not known to be done.
  std::size_t open_units();
  /// Returns the units that are done if all are.
  std::optional<std::map<std::string, FinishedUnit>> all_done();

  /// Claims the publication, which all units precede.
  std::optional<Claim> claim_publication();
  /// As publishers_in().
  std::vector<std::string> publishers() { return publishers_in(*storage_); }
  void note_commitment(const Commitment& commitment);
  /// Returns the notes of all publishers.
  std::vector<Commitment> commitments();
  void note_published();
  bool is_published();

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

  const std::shared_ptr<Storage> storage_;
  PooledJob job_;
  const Lease::Period period_;
  const std::string token_;
  std::map<std::string, std::size_t> numbers_;  ///< of units, by name
  std::mutex mutex_;
  std::map<std::string, FinishedUnit> done_;    ///< those seen so far
  std::map<std::string, std::int64_t> listed_;  ///< when files were modified, at the last look()
  std::map<std::string, SeenClaim> seen_;       ///< by name
  std::int64_t now_ = 0;                        ///< by the clock of the storage
  std::chrono::steady_clock::time_point asked_{};
};

/// Reads the job of a pool. Throws CheckpointError (invalid argument) if `directory` is none,
/// (corrupt) for a damaged one.
PooledJob read_job(const Location& directory);

/// Names in a pool's directory: of the file that says that a unit is done, of a claim of it or of
/// the publication, and of the file that says that the job is.
std::string done_name(std::size_t unit);
std::string claim_prefix(std::size_t unit);
inline constexpr const char* kJobFile = "job.json";
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

/// Returns the finished unit that the content of a file done_name() describes.
FinishedUnit parse_done(ByteView content, const std::string& name);
/// Returns what WorkerPool::note_commitment() has written. Both throw CheckpointError (corrupt).
Commitment parse_commitment(ByteView content, const std::string& file);

}  // namespace dckpt
