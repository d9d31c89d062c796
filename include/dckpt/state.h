#pragma once

/// The state of a rank: the StateDict tree with ShardedTensors, ShardedObjects and factories, and
/// functions that make them from layouts and optimizers.

#include "mapping/geometry/layout.h"
#include "mapping/geometry/tensor_map.h"
#include "mapping/state/callback_tensor.h"
#include "mapping/state/flatten.h"
#include "mapping/state/layout_shards.h"
#include "mapping/state/optimizer.h"
#include "mapping/state/optimizer_slots.h"
#include "mapping/state/record.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/value.h"
