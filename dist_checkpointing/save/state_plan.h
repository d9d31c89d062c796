#pragma once

#include <memory>
#include <span>
#include <variant>

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// The plan of one rank's state: it tells what a save would store, without other ranks and without
/// files. It shares the state's tensors, and one thread at a time may use it.
///
///   const StatePlan plan(state, "run/iter_0001000", policy.save);
///   const Metadata metadata = plan.global_plan({{plan.items()}}).metadata;
class StatePlan {
 public:
  /// Describes and plans the state of one of several ranks as save() does, by the planner that
  /// `options` select. Nothing is written to `location`. Throws CheckpointError.
  StatePlan(const StateDict& state, const Location& location, const SaveOptions& options = {},
            int rank = 0, int ranks = 1);
  ~StatePlan();
  StatePlan(StatePlan&&) noexcept;
  StatePlan& operator=(StatePlan&&) noexcept;

  /// The leaves of the state, without data, and what the planner adds.
  std::span<const LocalShard> shards() const noexcept;
  /// The items that the rank offers.
  const SavePlan& items() const noexcept;

  /// Returns what rank 0 makes of the plans of all ranks: who writes which item, and the metadata,
  /// whose places are empty. Throws CheckpointError (mismatch) if they do not form a checkpoint.
  [[nodiscard]] GlobalPlan global_plan(std::span<const SavePlan> plans);

  /// Returns what is stored for an item of this rank: the elements of a tensor, contiguous in CPU
  /// memory, or the bytes of an object.
  [[nodiscard]] std::variant<Tensor, Bytes> resolve_data(const WriteItem& item);

 private:
  struct Planned;
  std::unique_ptr<Planned> planned_;
};

}  // namespace dckpt
