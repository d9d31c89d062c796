#pragma once

#include <filesystem>
#include <string_view>

#include "benchmarks/results.h"
#include "configs/policy/options.h"

namespace dckpt::bench {

/// Background saves of the tensors of another workload.
struct BackgroundWorkload {
  std::string_view name;
  std::string_view tensors;  ///< name of the workload
};
inline constexpr BackgroundWorkload kBackgroundWorkloads[] = {
    {"async-stall-2g", "io-2g"}, {"async-stall-many-small", "io-many-small"}};

/// Saves four times in the background. After each call, overwrites every tensor as soon as that is
/// allowed, which must not change what is saved, then measures how much work a compute loop gets
/// done until the checkpoint is complete. Returns the seconds of all that. The first save is
/// recorded separately; saves with Snapshot::kLazy are a case of the workload, "NAME:lazy".
double measure_background(const BackgroundWorkload& background, Snapshot snapshot,
                          const std::filesystem::path& directory, Results& results);

}  // namespace dckpt::bench
