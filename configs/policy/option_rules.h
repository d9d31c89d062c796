#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "configs/policy/capabilities.h"
#include "configs/policy/conventions.h"
#include "configs/policy/policy.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The part of load.staging that each thread needs to read past the page cache.
inline constexpr std::uint64_t kDirectStaging = std::uint64_t{8} << 20;

/// The call that options are used for.
enum class Call : std::uint8_t {
  kSave = 1,
  kLoad = 2,
  kLoadAll = 4,      ///< load_state_dict(): no state dict to fill
  kLoadTensors = 8,  ///< load_plain_tensors(): no other ranks either
  kConvert = 16,
  kKeep = 32,  ///< Checkpointer, once a checkpoint has been saved
};

/// A strategy, or the format that was found, in the form that rules need.
struct Backend {
  std::string name{};
  Capabilities capabilities{};
  Conventions conventions{};
};

/// A request that options must not make. Policies, saves, loads and conversions are all checked by
/// the same table.
struct OptionRule {
  std::uint8_t calls = 0;  ///< a set of Call
  std::string_view field;  ///< the field to change: "save.planner.kind"
  /// The reason and the remedy, in which {strategy}, {kind} and the like are filled in
  /// (message_of).
  std::string_view message;
  /// `backend` is null as long as the strategy is not known, as for a policy that is only parsed.
  /// Rules that need one are then not broken.
  bool (*is_broken)(const Policy& policy, const Backend* backend) = nullptr;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

std::span<const OptionRule> option_rules() noexcept;

/// A rule that is broken for a call, with its text "FIELD: message".
struct BrokenRule {
  const OptionRule* rule;
  std::string message;
};
[[nodiscard]] std::vector<BrokenRule> broken_rules(Call call, const Policy& policy,
                                                   const Backend* backend);

/// Throws CheckpointError with the messages of all broken rules: unsupported if all of them are,
/// else invalid argument.
void require_rules(Call call, const Policy& policy, const Backend* backend);

}  // namespace dckpt
