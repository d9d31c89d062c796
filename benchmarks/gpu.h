#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/results.h"
#include "benchmarks/workloads.h"

namespace dckpt::bench {

/// A workload of one rank, measured once with its tensors in GPU memory and once in CPU memory.
struct GpuCase {
  std::string name;  ///< "gpu-" or "host-", the workload's name, then what differs from the
                     ///< defaults
  const Workload* workload = nullptr;
  bool in_gpu_memory = true;
  int files = 1;    ///< number of files per save
  int threads = 2;  ///< threads of saves and loads
};

/// Returns true if CUDA finds a GPU. If so, tensors in its memory can be saved from then on.
bool can_use_gpu();

std::vector<Workload> gpu_workloads();
std::vector<GpuCase> gpu_cases(const std::vector<Workload>& workloads);

/// Saves and loads of one case, which share its tensors and the staging memory.
class GpuMeasurement {
 public:
  GpuMeasurement(const GpuCase& measured, const std::filesystem::path& directory, Results& results);
  ~GpuMeasurement();
  GpuMeasurement(const GpuMeasurement&) = delete;
  GpuMeasurement& operator=(const GpuMeasurement&) = delete;

  /// Saves once in each way (in the foreground, eager and lazy in the background), each with fsync,
  /// and loads each checkpoint and compares all bytes. Every tensor is overwritten as soon as a
  /// background save allows it. Returns the seconds of all that. Throws std::runtime_error if a
  /// load delivers anything else than was saved.
  double run();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace dckpt::bench
