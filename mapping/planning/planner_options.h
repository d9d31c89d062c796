#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

/// The rules that a plan follows.
enum class PlannerKind : std::uint8_t {
  /// "mcore": main replicas of sharded tensors and objects; everything else is common state.
  kMegatron,
  /// "default": every leaf under its dotted path, planned by every rank that has it.
  kDcp,
  /// "standard": like kDcp, with placements from device mesh layouts.
  kHyperParallel,
};
inline constexpr EnumNames<PlannerKind, 3> kPlannerKindNames{
    {{PlannerKind::kMegatron, "mcore"},
     {PlannerKind::kDcp, "default"},
     {PlannerKind::kHyperParallel, "standard"}}};

/// The treatment of a chunk or object that several ranks plan.
enum class Dedup : std::uint8_t {
  kBalanced,    ///< "balanced": the rank with the fewest bytes so far writes it
  kLowestRank,  ///< "lowest_rank"
  kOff,         ///< "off": it is an error; with kHyperParallel each rank writes its own copy
};
inline constexpr EnumNames<Dedup, 3> kDedupNames{
    {{Dedup::kBalanced, "balanced"}, {Dedup::kLowestRank, "lowest_rank"}, {Dedup::kOff, "off"}}};

/// The form in which flattened ranges are stored.
enum class FlattenedForm : std::uint8_t {
  kBoxes,     ///< boxes of the tensor's own space: ordinary tensors for every reader
  kMegatron,  ///< the form that Megatron 0.8–0.15 write and load (see reformulation.h)
};

struct PlannerOptions {
  PlannerKind kind = PlannerKind::kMegatron;
  /// Empty: kBalanced, or kLowestRank with kHyperParallel.
  std::optional<Dedup> dedup{};
  bool cache = true;     ///< a save with the same structure as the previous one reuses its plan
  bool validate = true;  ///< check that the chunks of each tensor cover it exactly
  /// Each replica of a large tensor writes a part, instead of one replica writing all of it.
  bool split_replicas = false;

  Dedup effective_dedup() const noexcept {
    return dedup.value_or(kind == PlannerKind::kHyperParallel ? Dedup::kLowestRank
                                                              : Dedup::kBalanced);
  }

  friend bool operator==(const PlannerOptions& a, const PlannerOptions& b) noexcept {
    const auto tied = [](const PlannerOptions& o) {
      return std::tuple(o.kind, o.effective_dedup(), o.cache, o.validate, o.split_replicas);
    };
    return tied(a) == tied(b);
  }
};

std::string_view to_string(PlannerKind kind) noexcept;  ///< "mcore", "default", "standard"
[[nodiscard]] std::optional<PlannerKind> parse_planner_kind(std::string_view name) noexcept;
std::string_view to_string(Dedup dedup) noexcept;  ///< "balanced", "lowest_rank", "off"
[[nodiscard]] std::optional<Dedup> parse_dedup(std::string_view name) noexcept;

}  // namespace dckpt
