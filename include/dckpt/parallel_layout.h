#pragma once

/// The part that each rank holds under tensor, pipeline, expert, data and context parallelism, with
/// Megatron-Core's numbering of ranks, positions and replicas.

#include "mapping/geometry/parallel_layout.h"
#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_bucket.h"
#include "mapping/state/parallel_shards.h"
