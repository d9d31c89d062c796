#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "migration/optimizer/optimizer_sharding.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Returns the checkpoint with the keys and the common state from which `wanted` is resumed: main
/// parameters are called `param` or `fp32_param`, a prefix "chained_0." is removed, and the
/// optimizer's param_state_sharding_type, content_metadata and parameter groups say what that
/// release expects. State in buckets (dp_reshardable, fully_sharded_bucket_space,
/// dp_zero_gather_scatter) gets such keys, too: see optimizer_buckets.h. Tensors have the model's
/// shapes; the writer flattens them where needed. The findings say what was changed. `read` holds
/// the options for reading bucket values. `go_on` throws to stop. Throws CheckpointError:
/// (unsupported) for a checkpoint without a distributed optimizer; (mismatch) for state that does
/// not have the shape of its model tensor. Throws as open_gathered_state() and find_in_buckets(),
/// too.
View with_optimizer_sharding(std::unique_ptr<CheckpointReader> source, OptimizerSharding wanted,
                             const ReadOptions& read = {}, const std::function<void()>& go_on = {});

}  // namespace dckpt
