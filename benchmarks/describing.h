#pragma once

#include "benchmarks/results.h"

namespace dckpt::bench {

inline constexpr const char* kDescribing = "describe-10k";

/// Measures what a rank takes to describe 10 000 tensors with the helpers for parallel layouts and
/// optimizers, before a save plans anything. Returns the seconds of the slowest form.
double measure_describing(Results& results);

}  // namespace dckpt::bench
