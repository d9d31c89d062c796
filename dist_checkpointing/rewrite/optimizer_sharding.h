#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// How Megatron's distributed optimizer finds its state in a checkpoint (its
/// param_state_sharding_type). The first two hold, for each tensor of the model, main parameters
/// and moments under keys that are made of the model's.
enum class OptimizerSharding : std::uint8_t {
  kFullyReshardable,        ///< tensors of the model's shapes: Megatron-Core 0.15 and newer
  kFullyShardedModelSpace,  ///< flattened ranges of them: Megatron-Core 0.8 to 0.15
  kDpReshardable  ///< buckets of gradient buffers, for one layout of the model: 0.15 and newer
};
inline constexpr EnumNames<OptimizerSharding, 3> kOptimizerShardingNames{{
    {OptimizerSharding::kFullyReshardable, "fully_reshardable"},
    {OptimizerSharding::kFullyShardedModelSpace, "fully_sharded_model_space"},
    {OptimizerSharding::kDpReshardable, "dp_reshardable"},
}};

/// Arguments of a run, under Megatron's names: "data_parallel_size". Flags are true, or 1.
using RunArguments = std::map<std::string, Value>;

}  // namespace dckpt
