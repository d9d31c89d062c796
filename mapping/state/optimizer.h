#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "mapping/base/api.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// Sharding of an optimizer's state, derived from that of the model: each state tensor of a
/// parameter is sharded as the parameter is.

/// Maps the number of a parameter in the optimizer to a ShardedTensor or factory of the model.
using ShardedParams = std::map<std::int64_t, Value>;

/// Finds the model's sharded leaf of each parameter, in the optimizer's numbering: the leaf whose
/// data is the same memory. Parameters that are not in the model's tree are missing from the
/// result; for a parameter given twice the first number counts. Tensors without elements have no
/// memory and are not found.
ShardedParams map_sharded_params(const Value& model_state, std::span<const Tensor> params);

/// Shards the state tensor `data` of a parameter like the parameter, under the key PREFIX.KEY; a
/// factory gives a factory. Throws CheckpointError (invalid argument) if its shape is not the
/// parameter's local shape.
Value make_sharded_optimizer_tensor(const Value& model_param, Tensor data, std::string_view prefix);

/// Turns a torch optimizer's state dict into a sharded one: `state[number][name]` becomes sharded
/// under the key "optimizer.state.NAME.KEY", names in `exclude` are left out, and each
/// param_group's `params` become local (they are not saved). Throws CheckpointError (invalid
/// argument) if a number that has state is not in `params`.
void shard_optimizer_state(Value& optimizer_state, const ShardedParams& params,
                           const std::set<std::string>& exclude = {});

}  // namespace dckpt
