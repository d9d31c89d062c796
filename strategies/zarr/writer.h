#pragma once

#include <string>

#include "configs/policy/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Writes a rank's plan as Megatron's zarr backend does: a file for every chunk, "KEY/0.1.0", and
/// for every object, "KEY/shard_0.1_1.8.pt". Throws CheckpointError (unsupported), before anything
/// is written, for dtypes that numpy lacks, keys that cannot be directory names, and chunks that do
/// not divide their tensor, since those of an array have one size.
WrittenItems write_zarr_items(Storage& storage, const std::string& directory, int rank,
                              const SavePlan& plan, ItemSource& source, const WriteOptions& io);

/// Writes the arrays' descriptions (.zarray), then common.pt. Throws CheckpointError (unsupported)
/// for chunks that do not form a regular grid.
void write_zarr_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                      const CommonState* common, bool fsync);

/// Returns the strategy for the zarr backend, which has no options of its own. Throws
/// CheckpointError (unsupported) for io options that do not apply to these files.
std::unique_ptr<SaveStrategy> make_zarr_save_strategy(const SaveOptions& options);

/// Returns what its write_data() would return.
WrittenItems measure_zarr(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
