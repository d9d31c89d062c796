#pragma once

#include <vector>

#include "benchmarks/planning.h"
#include "benchmarks/results.h"
#include "mapping/base/bytes.h"

namespace dckpt::bench {

/// Compares registered planners with the built-in one, in turns, taking the best of five. `encoded`
/// are the plans of all ranks.
void measure_planners(const PlanWorkload& workload, const std::vector<Bytes>& encoded,
                      Results& results);

}  // namespace dckpt::bench
