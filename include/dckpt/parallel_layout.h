#pragma once

/// What each rank holds under tensor, pipeline, expert, data and context parallelism, as
/// Megatron-Core counts ranks, positions and replicas.

#include "mapping/geometry/parallel_layout.h"
#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_bucket.h"
#include "mapping/state/parallel_shards.h"
