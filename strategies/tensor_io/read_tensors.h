#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "mapping/base/io_engine.h"
#include "mapping/base/phase_clock.h"
#include "mapping/base/progress.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/reader.h"
#include "strategies/tensor_io/record_checks.h"

namespace dckpt {

struct ReadOptions {
  /// More are used for a storage that serves more requests at once (StorageCapabilities).
  int threads = 2;
  /// kAuto assumes that nobody else reads the same bytes. Reading past the page cache needs 8 MiB
  /// of `staging` for each thread.
  ReadEngine engine = ReadEngine::kBuffered;
  /// Upper bound of temporary memory over all threads, in bytes, except for the heads and tails of
  /// archives. The number of threads is reduced if this leaves less than 256 KiB for each.
  std::uint64_t staging = std::uint64_t{64} << 20;
  /// Other ranks may need, and read, the bytes between the requested ones: over-reading is then
  /// capped at 5 % of the requested bytes. Otherwise gaps are read wherever that saves requests.
  bool shared = false;
  /// Compare elements with their recorded CRC-32 if the whole record is read. If off, nothing is
  /// compared.
  bool verify = true;
  /// Destinations may have another dtype that can_cast() converts to; the elements are converted
  /// between the staging memory and the destination.
  bool cast = false;
  /// Collects records that are read in several calls or by several ranks, and tells what was not
  /// compared. Null: the records of this call.
  RecordChecks* checks = nullptr;
  /// Opens a data file in place of the reader's storage.
  std::function<std::unique_ptr<ReadableFile>(const std::string& file)> open{};
  /// Counts the delivered bytes. May be null.
  ProgressCounter* progress = nullptr;
  /// Called from any thread with the stored bytes of each piece that has been put into a
  /// destination, except by a parallel read or a copy to a device.
  std::function<void(std::uint32_t destination, std::uint64_t bytes)> delivered{};
  /// Measures Phase::kRead and Phase::kExchange of a load in which ranks share the reading. May be
  /// null.
  PhaseClock* phases = nullptr;
};

/// Counts of one read, for reports.
struct ReadStats {
  std::uint64_t bytes_wanted = 0;  ///< delivered into destinations
  std::uint64_t bytes_read = 0;    ///< requested from files, including
  std::uint64_t bytes_direct = 0;  ///< … those past the page cache
  std::uint64_t bytes_mapped = 0;  ///< … and those copied out of mapped files
  /// Delivered bytes that were not compared with a checksum, because none is recorded or only a
  /// part of the record was read. 0 with ReadOptions::checks.
  std::uint64_t bytes_unchecked = 0;

  ReadStats& operator+=(const ReadStats& more) {
    bytes_wanted += more.bytes_wanted;
    bytes_read += more.bytes_read;
    bytes_direct += more.bytes_direct;
    bytes_mapped += more.bytes_mapped;
    bytes_unchecked += more.bytes_unchecked;
    return *this;
  }
};

/// Fills the destinations (CPU tensors in the layout that the plan assumes) from the checkpoint.
/// Reads only the wanted byte ranges, straight into place where they are contiguous. Throws
/// CheckpointError, including (corrupt) for elements that do not match their recorded checksum,
/// which leaves the destinations partly filled.
ReadStats read_tensors(const CheckpointReader& reader, std::span<const ReadItem> items,
                       std::span<const Tensor> destinations, const ReadOptions& options = {});

/// Throws CheckpointError (invalid argument) unless all destinations of the items are CPU tensors
/// with data and of the stored dtype. `cast` also allows a dtype that the stored one can be
/// converted to, and `on_devices` memory of a device.
void check_destinations(const CheckpointReader& reader, std::span<const ReadItem> items,
                        std::span<const Tensor> destinations, bool cast = false,
                        bool on_devices = false);

/// Returns one box of a stored tensor, given in its global shape, as a new tensor.
Tensor read_box(const CheckpointReader& reader, std::size_t tensor, const Box& box,
                const ReadOptions& options = {});

}  // namespace dckpt
