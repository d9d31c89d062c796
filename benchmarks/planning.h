#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/results.h"
#include "mapping/planning/save/local_plan.h"

namespace dckpt::bench {

/// A job whose planning is measured: no data, no files, all ranks in this process.
struct PlanWorkload {
  std::string name;
  std::string about;
  std::uint32_t ranks = 1;
  PlannerKind kind = PlannerKind::kMegatron;
  std::function<std::vector<LocalShard>(std::uint32_t rank)> shards;  ///< shards of a rank
};

std::vector<PlanWorkload> plan_workloads();
/// A model of 713 billion parameters with its optimizer, 10 TB on 1024 ranks.
PlanWorkload ten_terabytes();

/// Measures the first save of a job (local plans, gathering, global plan, encoding and decoding of
/// the metadata), the second (nothing has changed), and one rank's load plan. Returns the seconds
/// of the first save.
double measure_planning(const PlanWorkload& workload, Results& results);

/// Measures the overlap check of one tensor cut into a grid, for every case of overlap-check-2d.
/// Returns the seconds of all cases.
double measure_overlap_check(Results& results);
inline constexpr std::string_view kOverlapCheck = "overlap-check-2d";

}  // namespace dckpt::bench
