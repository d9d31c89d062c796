#pragma once

#include <filesystem>
#include <string_view>

#include "benchmarks/results.h"

namespace dckpt::bench {

/// Measures how long it takes to inspect a checkpoint of 64 GiB and to verify its structure. It
/// takes almost no space, as its tensors are holes in the files: 512 tensors in 64 ranks' chunks of
/// 2 MiB. Returns the seconds of both.
double measure_sparse(const std::filesystem::path& directory, Results& results);
inline constexpr std::string_view kSparse = "sparse-64g";

}  // namespace dckpt::bench
