#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

// Keys of the state of Megatron's optimizers: "[chained_C.]optimizer.state.NAME.MODEL_KEY" where it
// has the shapes of the model, and keys of buckets where it has the order of a gradient buffer.

namespace dckpt {

/// Returns whether a tensor belongs to the optimizer, according to Megatron's and FSDP's names:
/// "optimizer.…", "chained_0.optimizer.…", "optim.…", "mp_rank_00/distrib_optim.…".
bool is_optimizer_key(std::string_view key);
bool holds_optimizer(const Metadata& metadata);

inline constexpr std::string_view kOptimizerState = "optimizer.state.";
/// The parts of "optimizer.state.NAME.MODEL_KEY", with or without "chained_0." before it; all empty
/// for other keys.
struct OptimizerStateKey {
  std::string_view name;       ///< "exp_avg", "fp32_param", …
  std::string_view model_key;  ///< key of the model's tensor to which it belongs
};
OptimizerStateKey parse_optimizer_state_key(std::string_view key);
/// Returns the key for an optimizer that is not one of a chain.
std::string optimizer_state_key(std::string_view name, std::string_view model_key);

/// Takes "chained_C." off the front, and returns C; empty for an optimizer that is not one of a
/// chain.
std::optional<std::int64_t> take_chain(std::string_view& key);

/// Returns the names of the state tensors, in alphabetical order: "exp_avg", "exp_avg_sq",
/// "fp32_param".
std::vector<std::string> optimizer_states(const Metadata& metadata);

inline constexpr std::string_view kModelSpace = "fully_sharded_model_space";
inline constexpr std::string_view kBucketSpace = "fully_sharded_bucket_space";
/// Returns the way in which Megatron's distributed optimizer has cut its state
/// ("fully_reshardable", "fully_sharded_model_space", …); empty if the common state does not say
/// so.
std::string optimizer_sharding(const Value& common);

}  // namespace dckpt
