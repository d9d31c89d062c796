#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"
#include "strategies/torch_dist/save_strategy.h"

// Megatron-FSDP's checkpoints (fsdp_dtensor) hold a model's parts under other keys than torch_dist:
//
//                          torch_dist                          fsdp_dtensor
//   weight                 K, with axes for layers, experts    model.module.K, a tensor for each
//   gated linear_fc1       K                                   its halves K_w and K_v
//   expert e               …experts.experts.linear_fc1.weight  …experts.linear_fc1.weight{e}, or
//                                                              …experts.local_experts.{e}.…
//   main parameters        optimizer.state.param.K             they are the weights
//   other state X          optimizer.state.X.K                 optimizer.state.WRAPPERS.K.X
//   an option O of a       optimizer.optimizer.param_groups    optimizer.param_to_group_meta.
//   parameter group        in the common state                 WRAPPERS.K.O
//   other common state     the common state                    objects under their paths
//   RNG states             rng_state/shard_p.t_P.T             rng_state.(p, t).0.…
//
//   norm of a local layer  …self_attention.linear_qkv.         …input_layernorm.weight, and
//                          layer_norm_weight                   …pre_mlp_layernorm.weight
//
// WRAPPERS are the modules around the model: "module.module", and one more around a model in half
// precision. Other objects keep their keys, under which Megatron-FSDP does not look for them.

namespace dckpt {

/// Returns a checkpoint with Megatron-Core's keys in Megatron-FSDP's form. Without a number of
/// wrappers, the dtype of the model decides, taken from its args or else its weights. The findings
/// list what Megatron-FSDP does not find again. Throws CheckpointError: (unsupported) for optimizer
/// state that does not have the model's shapes, and for layouts with experts or halves as separate
/// tensors; (mismatch) for parameters that fit no group, or several.
View to_megatron_fsdp(std::unique_ptr<CheckpointReader> source, const FsdpSaveOptions& options);

/// Returns weights and fully reshardable optimizer state under Megatron-Core's keys. Weights that
/// are the optimizer's main parameters get the model's dtype according to its args. Throws
/// CheckpointError (mismatch) if layers, experts or halves of a tensor are missing.
View from_megatron_fsdp(std::unique_ptr<CheckpointReader> source);

}  // namespace dckpt
