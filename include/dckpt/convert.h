#pragma once

/// Rewrites checkpoints: convert() and remove_sharded_tensors().

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_policy.h"
#include "dist_checkpointing/rewrite/remove_sharded_tensors.h"
