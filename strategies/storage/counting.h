#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "mapping/base/phase_clock.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Counts of a counting storage. Any thread may read them at any time.
struct StorageCounters {
  std::atomic<std::uint64_t> bytes_read{0};
  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> prefetches{0};
  std::atomic<std::uint64_t> files_opened{0};
  std::atomic<std::uint64_t> bytes_written{0};
  std::atomic<std::uint64_t> appends{0};
  std::atomic<std::uint64_t> syncs{0};  ///< of files and of directories
  std::atomic<std::uint64_t> files_created{0};
  std::atomic<std::uint64_t> direct_files{0};  ///< created past the page cache
  std::atomic<std::uint64_t> directory_changes{
      0};                                 ///< directories made, renames, exchanges, removals
  std::atomic<std::uint64_t> lookups{0};  ///< calls of list() and stat()
};

/// Passes everything through to `storage` and counts the calls that succeeded. `phases` may be
/// null; otherwise it measures Phase::kSync and excludes the storage's time from Phase::kCopy.
std::shared_ptr<Storage> counting_storage(std::shared_ptr<Storage> storage,
                                          std::shared_ptr<StorageCounters> counters,
                                          PhaseClock* phases = nullptr);

}  // namespace dckpt
