#pragma once

#include <filesystem>
#include <string_view>

#include "benchmarks/results.h"

namespace dckpt::bench {

/// A checkpoint of 64 GiB that takes almost no space, as its tensors are holes in the files:
/// 512 tensors in 64 ranks' chunks of 2 MiB. Measures how long it takes to look at it, and to check
/// its structure. Returns the seconds of both.
double measure_sparse(const std::filesystem::path& directory, Results& results);
inline constexpr std::string_view kSparse = "sparse-64g";

}  // namespace dckpt::bench
