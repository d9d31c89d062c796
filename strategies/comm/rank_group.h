#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "strategies/comm/point_to_point.h"

namespace dckpt {

/// Some ranks of a job, seen by one of them.
struct RankGroup {
  std::shared_ptr<Transport> transport;
  std::vector<int> members;  ///< their ranks in the job, in the order of the group
  int rank = 0;              ///< position of this rank in the group
  std::chrono::milliseconds timeout{};

  int size() const noexcept { return static_cast<int>(members.size()); }
  int job_rank(int rank_here) const noexcept {
    return members[static_cast<std::size_t>(rank_here)];
  }
};

}  // namespace dckpt
