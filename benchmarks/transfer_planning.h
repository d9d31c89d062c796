#pragma once

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/results.h"
#include "transfer/transfer_plan.h"

namespace dckpt::bench {

/// A transfer whose planning is measured: the layouts of trainer and inference ranks, without data.
struct TransferWorkload {
  std::string name;
  std::string about;
  std::uint32_t holders = 1;  ///< ranks [0, holders) hold what the `wanters` ranks after them want
  std::uint32_t wanters = 1;
  std::function<std::vector<LocalShard>(std::uint32_t rank)> held;
  std::function<std::vector<LocalShard>(std::uint32_t rank)> wanted;  ///< from 0 on, too
};

std::vector<TransferWorkload> transfer_workloads();

/// Measures make_transfer_plan, and on rank 0 of a transfer also decoding and encoding. Returns the
/// seconds of the plan.
double measure_transfer_planning(const TransferWorkload& workload, Results& results);

}  // namespace dckpt::bench
