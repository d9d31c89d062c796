#pragma once

#include <cstdint>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

/// The form of state from which Megatron's distributed optimizer resumes (its
/// param_state_sharding_type). Both forms hold main parameters and moments for each tensor of the
/// model, under keys derived from the model's.
enum class OptimizerSharding : std::uint8_t {
  kFullyReshardable,       ///< tensors of the model's shapes: Megatron-Core 0.15 and newer
  kFullyShardedModelSpace  ///< flattened ranges of these tensors: Megatron-Core 0.8 to 0.15
};
inline constexpr EnumNames<OptimizerSharding, 2> kOptimizerShardingNames{{
    {OptimizerSharding::kFullyReshardable, "fully_reshardable"},
    {OptimizerSharding::kFullyShardedModelSpace, "fully_sharded_model_space"},
}};

}  // namespace dckpt
