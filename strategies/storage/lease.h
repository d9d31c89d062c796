#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "strategies/storage/storage.h"

// Internal to publishing; not installed.
namespace dckpt {

/// Returns the time by the clock of a storage, as FileInfo::modified, for which it makes and
/// removes the file `probe`. 0 if the storage has no times.
std::int64_t storage_time(Storage& storage, const std::string& probe);

/// A file that names the owner of something in a storage without locks. The owner writes it again
/// four times in each period, so that a file that is older than a period, by the clock of the
/// storage, has lost its owner. Clocks of hosts are never compared.
class Lease {
 public:
  using Period = std::chrono::milliseconds;

  /// Creates the file and begins to renew it. Returns null if the file exists. Throws
  /// CheckpointError (io). `sync` makes the file durable first.
  [[nodiscard]] static std::unique_ptr<Lease> take(std::shared_ptr<Storage> storage,
                                                   std::string name, std::string owner,
                                                   Period period, bool sync);

  /// Returns the age of the lease `name` by storage_time(). Empty if the storage has no times, or
  /// if the lease is gone.
  static std::optional<Period> age(Storage& storage, const std::string& name,
                                   const std::string& probe);

  /// Stops renewing; the file stays.
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Returns false once no renewal has succeeded for a period, as when the process was stopped or
  /// its machine suspended: another owner may have taken over, so a later renewal does not count
  /// either. Safe to call from several threads.
  bool is_current() const;
  /// Stops renewing, and removes the file.
  void release();

 private:
  /// Goes on while the machine is suspended, unlike std::chrono::steady_clock.
  struct Clock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<Clock>;
    static constexpr bool is_steady = true;
    static time_point now() noexcept;
  };

  Lease(std::shared_ptr<Storage> storage, std::string name, std::string owner, Period period);
  void renew(const std::stop_token& stop);
  bool has_lapsed_by(Clock::time_point time) const { return time - renewed_ >= period_; }
  void end_renewing();

  const std::shared_ptr<Storage> storage_;
  const std::string name_;
  const std::string owner_;
  const Period period_;
  mutable std::mutex mutex_;
  std::condition_variable_any stopped_;
  Clock::time_point renewed_;  ///< the begin of the last renewal that succeeded
  std::jthread thread_;
};

}  // namespace dckpt
