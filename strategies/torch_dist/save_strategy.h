#pragma once

#include <memory>

#include "configs/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Saves torch_dist checkpoints and, with Compat::kDcp, plain DCP directories. Has no options of
/// its own: SaveOptions says all.
std::unique_ptr<SaveStrategy> make_torch_dist_save_strategy(const SaveOptions& options);

/// The strategy's own options.
struct DcpSaveOptions {
  /// How items are stored: none, or zstd, which torch reads with the package zstandard or pyzstd.
  StorageCodec compression = StorageCodec::kPlain;
};

/// The same for the strategy dcp, which has DcpSaveOptions.
std::unique_ptr<SaveStrategy> make_dcp_save_strategy(const SaveOptions& options);

/// What write_data() of both would return, without compression.
WrittenItems measure_torch_dist(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
