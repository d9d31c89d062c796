#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "benchmarks/ranks.h"
#include "benchmarks/results.h"
#include "benchmarks/workloads.h"

namespace dckpt::bench {

/// The cost of one collective call on all ranks together.
struct Cost {
  double seconds = 0;  ///< from one barrier of all ranks to the next
  double cpu_seconds = 0;
  std::uint64_t extra_resident = 0;
  std::uint64_t read = 0;
  std::uint64_t fetched = 0;
};

/// Saves of a workload. Each goes to the same directory, emptied first, after everything else has
/// been written to the device.
class SaveMeasurement {
 public:
  /// Makes the state and saves it once, with fsync, recorded separately as save_first_s: this save
  /// makes a virtual machine allocate memory for the page cache.
  SaveMeasurement(const Workload& workload, const std::filesystem::path& directory, RankKind kind,
                  Results& results);
  /// Returns the seconds. Records save_s or save_fsync_s, the CPU time and the memory.
  double run(bool fsync);

 private:
  Cost save_once(bool fsync);

  const Workload& workload_;
  const std::filesystem::path& directory_;
  RankKind kind_;
  Results& results_;
  std::vector<std::unique_ptr<RankState>> ranks_;
};

/// Loads of the checkpoint of the last save, into tensors whose memory has been written to before.
class LoadMeasurement {
 public:
  LoadMeasurement(const Workload& workload, const std::filesystem::path& directory, RankKind kind,
                  Results& results);
  /// Records load_warm_s or load_cold_s (reshard_s or reshard_cold_s; load_parallel_… if replicas
  /// read once and exchange) and the CPU time. Warm loads also record the bytes requested and the
  /// memory.
  double run(bool cold, bool parallel = false);
  /// Throws std::runtime_error if the last load delivered anything else than was saved.
  void check() const;

 private:
  const Workload& workload_;
  const std::filesystem::path& directory_;
  RankKind kind_;
  Results& results_;
  std::vector<std::unique_ptr<RankState>> ranks_;
};

}  // namespace dckpt::bench
