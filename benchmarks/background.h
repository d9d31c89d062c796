#pragma once

#include <filesystem>
#include <string_view>

#include "benchmarks/results.h"
#include "configs/options.h"

namespace dckpt::bench {

/// Saves in the background, of the tensors of another workload.
struct BackgroundWorkload {
  std::string_view name;
  std::string_view tensors;  ///< the workload that has them
};
inline constexpr BackgroundWorkload kBackgroundWorkloads[] = {
    {"async-stall-2g", "io-2g"}, {"async-stall-many-small", "io-many-small"}};

/// Saves four times in the background. After each call, every tensor is overwritten as soon
/// as it may be, which must not change what is saved; then a loop that computes counts how much it
/// gets done until the checkpoint is complete. Returns the seconds of all that. The first save
/// counts apart; those of Snapshot::kLazy are a case of the workload, "NAME:lazy".
double measure_background(const BackgroundWorkload& background, Snapshot snapshot,
                          const std::filesystem::path& directory, Results& results);

}  // namespace dckpt::bench
