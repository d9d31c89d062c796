#pragma once

/// What a rank holds: the StateDict tree with ShardedTensors, ShardedObjects and factories, and
/// what makes them of layouts and optimizers.

#include "mapping/geometry/layout.h"
#include "mapping/geometry/tensor_map.h"
#include "mapping/state/flatten.h"
#include "mapping/state/layout_shards.h"
#include "mapping/state/optimizer.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/value.h"
