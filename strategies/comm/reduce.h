#pragma once

#include <cstdint>
#include <span>

#include "strategies/comm/communicator.h"

namespace dckpt {

/// Computes into[i] = op(into[i], values[i]); both have the same length. Sums wrap around.
void reduce_into(std::span<std::int64_t> into, std::span<const std::int64_t> values,
                 ReduceOp op) noexcept;

/// Throws CheckpointError (invalid argument) unless `root` is a rank of `comm`.
void check_root(const Communicator& comm, int root);

}  // namespace dckpt
