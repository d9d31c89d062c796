#pragma once

#include <memory>

#include "strategies/contract/reader.h"

namespace dckpt {

/// Returns `source` with gathered optimizer state opened. Under Megatron's sharding type
/// dp_zero_gather_scatter one rank gathers the optimizer's state of its data parallel group and
/// stores it as one object, "[chained_C.]optimizer.distributed.dp_group_idx_I.param_state", with
/// tensors in it: its gradient buffers, without the padding at the end of buckets. In the returned
/// reader these are tensors named "…dp_group_idx_I.gbuf_idx_G.dtype_(D).NAME", which are read where
/// they are, in pieces, and the objects are gone. Returns `source` itself if it has none. Throws
/// CheckpointError: (corrupt) for an object that is not as Megatron writes it, (unsupported) for
/// one that is compressed.
std::unique_ptr<CheckpointReader> open_gathered_state(std::unique_ptr<CheckpointReader> source);

}  // namespace dckpt
