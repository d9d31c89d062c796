#pragma once

#include <memory>

#include "configs/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Saves torch_dist checkpoints and, with Compat::kDcp, plain DCP directories. Has no options of
/// its own: SaveOptions says all.
std::unique_ptr<SaveStrategy> make_torch_dist_save_strategy(const SaveOptions& options);

/// What write_data() of it would return.
WrittenItems measure_torch_dist(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
