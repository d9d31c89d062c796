#pragma once

#include "configs/policy/options.h"
#include "conformance/report.h"
#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Checks that a strategy conforms, with ranks as threads. `options` names the strategy to save
/// with; results are loaded with the strategy that recognizes them. For tests of your own backend:
///
///   EXPECT_THAT(check_strategy(policy.save, temporary_folder).problems, IsEmpty());
///
/// Covers shards of every element type that the strategy does not refuse as (unsupported), with the
/// key, in up to four dimensions, uneven and empty shards, flattened ranges (both only if it stores
/// tensors in several chunks), strided tensors, replicas, hundreds of small tensors and one of
/// several pieces; objects and common state if the strategy's capabilities include them; background
/// and concurrent saves; metadata that agrees with the files; and that a checkpoint with a missing
/// or truncated file either fails to load or loads completely.
///
/// `scratch` is a folder for the checkpoints (a few tens of megabytes), created if necessary and
/// not cleaned up afterwards. Takes seconds.
[[nodiscard]] ConformanceReport check_strategy(const SaveOptions& options, const Location& scratch);

}  // namespace dckpt
