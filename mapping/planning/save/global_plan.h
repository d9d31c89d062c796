#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/planner_options.h"
#include "mapping/planning/save/assigned_item.h"
#include "mapping/planning/save/collect.h"
#include "mapping/planning/save/local_plan.h"

namespace DCKPT_API dckpt {

/// A part that several ranks may write.
struct WriterChoice {
  std::string_view key{};  ///< key of a tensor, or of an object as it is stored
  std::uint64_t nbytes = 0;
  std::span<const int> ranks{};  ///< ranks that may write it, ascending
  int writer = 0;                ///< one of `ranks`
};

struct GlobalPlanOptions {
  /// Megatron's rule: exactly one holder of a part is its main replica, and parts without one are
  /// not stored. The other kinds accept any holder.
  PlannerKind kind = PlannerKind::kMegatron;
  Dedup dedup = Dedup::kBalanced;  ///< the choice among several possible writers of a part
  bool use_replicas = false;    ///< under Megatron's rule: any replica may write, not only the main
                                ///< one (fully parallel save)
  bool split_replicas = false;  ///< the possible writers of a tensor's part of at least kSplitBytes
                                ///< write a piece each
  bool validate = true;         ///< check that the chunks of each tensor cover it exactly
  /// Called once with all parts that several ranks may write and that are not split, in the order
  /// in which the built-in rule has chosen their writers. It may choose other writers among their
  /// ranks.
  std::function<void(std::span<WriterChoice>)> choose_writers{};

  /// True if a part is stored whether or not one of its holders is its main replica.
  bool any_holder() const noexcept { return kind != PlannerKind::kMegatron; }
  /// True if all holders of a part write it; the metadata names the copy of the last.
  bool redundant() const noexcept {
    return kind == PlannerKind::kHyperParallel && dedup == Dedup::kOff;
  }
};

inline constexpr std::uint64_t kSplitBytes = std::uint64_t{16} << 20;

struct GlobalPlan {
  std::vector<std::vector<AssignedItem>> items;  ///< per rank, in the order of its local plan
  /// Everything that will be stored, in the order of ranks, then of their items. Places are zero.
  Metadata metadata;
  /// The metadata entry of an item; per rank, in parallel to `items`.
  struct Slot {
    std::uint32_t entry = 0;  ///< position in tensors or objects
    std::uint32_t chunk = 0;  ///< number of the chunk of a tensor
    bool is_object = false;
  };
  std::vector<std::vector<Slot>> slots;
  std::vector<Slot> path_order{};  ///< the metadata's entries in the order of torch's planner_data
};

/// Decides which rank writes each part, and builds the metadata, in steps that pass values: collect
/// (by key), deduplicate (equal boxes), choose writers (balanced), assemble. Takes O(n log n) for n
/// items with about 50 bytes each. Duplicates are recognized by key and box.
///
/// Empty parts of a tensor that has elements are not stored under Megatron's rule. Under DCP's they
/// are, unless another part starts at the same offset (DCP's readers identify a chunk by its
/// offset).
///
/// With Dedup::kBalanced a part goes to the possible writer with the fewest bytes so far; objects
/// and empty chunks count as one byte. Parts come in the order in which they are first met (as in
/// DCP); under HyperParallel's rule, parts with one holder come first; with `use_replicas`, parts
/// with few possible writers come first, then large ones.
class GlobalPlanner {
 public:
  explicit GlobalPlanner(const GlobalPlanOptions& options)
      : options_(options), collector_(!options.any_holder()) {}

  /// Adds the plan of the next rank. Keeps no reference to it.
  void add(const SavePlan& plan) { collector_.add(plan); }

  /// Throws CheckpointError (mismatch) with every key on which ranks disagree (dtype, shape,
  /// flattened or not, a tensor on one rank and an object on another), every part outside its
  /// tensor, every forbidden duplicate, and every tensor whose chunks overlap or leave holes, each
  /// with a table of the ranks and their boxes.
  GlobalPlan finish() &&;

 private:
  GlobalPlanOptions options_;
  ItemCollector collector_;
};

GlobalPlan plan_global_save(std::span<const SavePlan> plans, const GlobalPlanOptions& options = {});

/// Returns the metadata of a plan that has been executed. For each rank, `places` are in the order
/// of its `items`, with file numbers relative to its `files`.
Metadata written_metadata(const GlobalPlan& plan, std::span<const std::vector<StorageInfo>> places,
                          std::span<const std::vector<std::string>> files);

}  // namespace dckpt
