#pragma once

#include <filesystem>
#include <string_view>

#include "benchmarks/results.h"

namespace dckpt::bench {

/// Measures collectives and a save of small tensors by 2 and by 4 processes over each network that
/// was built, in turns. Returns the seconds of all.
double measure_transports(const std::filesystem::path& directory, Results& results);
inline constexpr std::string_view kTransports = "transports";

}  // namespace dckpt::bench
