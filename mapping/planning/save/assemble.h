#pragma once

#include <cstdint>
#include <vector>

#include "mapping/planning/save/balance.h"
#include "mapping/planning/save/collect.h"
#include "mapping/planning/save/global_plan.h"

namespace dckpt {

struct AssembledPlan {
  static constexpr std::uint32_t kNotStored = UINT32_MAX;
  GlobalPlan plan;
  std::vector<std::uint32_t> stored;  ///< position of each key in the metadata
};

/// Makes each rank's items and the metadata of all from the chosen items. `with_paths`: also makes
/// the order of paths, which Megatron's metadata do not have.
AssembledPlan assemble(const CollectedItems& collected, const ChosenItems& chosen, bool with_paths);

/// Checks that the chunks of each tensor cover it exactly, and Megatron's rule that all objects of
/// a grid are saved. Returns the problems, with a table of the ranks and their boxes. `any_holder`:
/// see GlobalPlanOptions.
std::vector<std::string> check_coverage(const CollectedItems& collected,
                                        const AssembledPlan& assembled, bool any_holder);

}  // namespace dckpt
