#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"

namespace DCKPT_API dckpt {

/// The plans of all ranks, as a coordinator has them: most of them are bytes that a rank has sent,
/// which become items when they are requested, and are not kept. Refers to its constructor's
/// argument.
class LocalPlans {
 public:
  explicit LocalPlans(std::span<const SavePlan> plans) : plans_(plans) {}
  explicit LocalPlans(std::span<const ByteView> encoded) : plans_(encoded) {}

  /// The number of ranks.
  std::size_t size() const noexcept {
    return std::visit([](const auto& plans) { return plans.size(); }, plans_);
  }
  /// Throws CheckpointError: (invalid argument) if there is no such rank; (corrupt), naming the
  /// rank, if its bytes are damaged.
  SavePlan operator[](std::size_t rank) const;

 private:
  std::variant<std::span<const SavePlan>, std::span<const ByteView>> plans_;
};

/// Applies the built-in rules: leaves out duplicates, chooses writers, assembles and checks the
/// metadata. One rank's items are in memory at a time, besides some 50 bytes for each item of all
/// ranks.
[[nodiscard]] GlobalPlan create_default_global_save_plan(const LocalPlans& plans,
                                                         const GlobalPlanOptions& options = {});

/// Throws CheckpointError (mismatch), with all problems, if `plan` does not follow from these local
/// plans: every key is stored and covered exactly, and each chunk and object matches a rank's item,
/// once; with `redundant`, by any number of ranks. Takes O(n log n).
void validate_global_plan(const GlobalPlan& plan, const LocalPlans& plans, bool redundant = false);

}  // namespace dckpt
