#pragma once

#include <string>
#include <vector>

#include "configs/options.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// What check_strategy() found: a line for each thing that is wrong, none if the strategy conforms.
struct ConformanceReport {
  int checks = 0;
  std::vector<std::string> problems;
};

/// Runs everything that a strategy must get right, with ranks as threads: `options` name the
/// strategy to save with; it is loaded with the one that recognises the result. For a test of one's
/// own backend:
///
///   EXPECT_THAT(check_strategy(policy.save, temporary_folder).problems, IsEmpty());
///
/// Checked are shards of every element type in up to four dimensions, uneven and empty ones,
/// flattened ranges, strided tensors, replicas, hundreds of small tensors and one of several
/// pieces; objects and common state where the strategy's capabilities include them; saves in the
/// background and at the same time; metadata that agree with the files; and that a checkpoint with
/// a missing or shortened file is an error or all there, never something else.
///
/// `scratch` is a folder for the checkpoints, created if need be and left as it is afterwards; a
/// few tens of megabytes. Takes seconds.
ConformanceReport check_strategy(const SaveOptions& options, const Location& scratch);

}  // namespace dckpt
