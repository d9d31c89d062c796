#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "configs/capabilities.h"
#include "configs/conventions.h"
#include "configs/policy.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// What each thread needs of load.staging to read past the page cache.
inline constexpr std::uint64_t kDirectStaging = std::uint64_t{8} << 20;

/// What options are used for.
enum class Call : std::uint8_t {
  kSave = 1,
  kLoad = 2,
  kLoadAll = 4,      ///< load_state_dict(): no state dict to fill
  kLoadTensors = 8,  ///< load_plain_tensors(): nor other ranks
  kConvert = 16,
  kKeep = 32,  ///< Checkpointer, once a checkpoint has been saved
};

/// A strategy, or the format that was found, as rules see it.
struct Backend {
  std::string name{};
  Capabilities capabilities{};
  Conventions conventions{};
};

/// One thing that options must not ask for. Policies, saves, loads and conversions are all checked
/// by the same table.
struct OptionRule {
  std::uint8_t calls = 0;  ///< a set of Call
  std::string_view field;  ///< the one to change: "save.planner.kind"
  /// Why, and what to do; {strategy}, {kind} and the like are filled in (message_of).
  std::string_view message;
  ErrorCode code = ErrorCode::kInvalidArgument;
  /// `backend` is null as long as nobody knows the strategy, as for a policy that is only parsed.
  /// Rules that need one are not broken then.
  bool (*is_broken)(const Policy& policy, const Backend* backend) = nullptr;
};

std::span<const OptionRule> option_rules() noexcept;

/// The rules that are broken for a call, each as "FIELD: message"; places are left empty.
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
