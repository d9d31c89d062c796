#pragma once

#include <filesystem>
#include <string_view>

#include "benchmarks/results.h"

namespace dckpt::bench {

/// Measures conversions that workers share: 256 MiB by one worker and by four, each of which reads
/// 100 MB/s at most, and what a unit of work costs beside its bytes (512 files of 4 KiB, with and
/// without a pool). Returns the seconds of all.
double measure_pool(const std::filesystem::path& directory, Results& results);
inline constexpr std::string_view kPool = "pool-256m";

/// Measures how long a worker plans a copy of 10 TB for 256 ranks before it begins, its memory, and
/// what it costs to look for work when others have all of it. The files of the source are holes.
/// Returns the seconds of planning.
double measure_large_pool(const std::filesystem::path& directory, Results& results);
inline constexpr std::string_view kLargePool = "pool-10t";

}  // namespace dckpt::bench
