#pragma once

#include <vector>

#include "benchmarks/planning.h"
#include "benchmarks/results.h"
#include "mapping/base/bytes.h"

namespace dckpt::bench {

/// Registered planners beside the built-in one, in turns, the best of five; `encoded`: the plans of
/// all ranks.
void measure_planners(const PlanWorkload& workload, const std::vector<Bytes>& encoded,
                      Results& results);

}  // namespace dckpt::bench
