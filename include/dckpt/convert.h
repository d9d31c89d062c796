#pragma once

/// Rewrites checkpoints: convert(), also by several workers, and remove_sharded_tensors().

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_policy.h"
#include "dist_checkpointing/rewrite/remove_sharded_tensors.h"
#include "dist_checkpointing/rewrite/workers/worker_survey.h"
