#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operations/convert/conversion_facts.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/write_copy.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Works in the pool in the directory `pool` until the copy is published, by this worker or by
/// another one. Reports what this worker did. Throws CheckpointError as WorkerPool does, and if a
/// unit of work fails, which then is left to other workers.
void share_copy(const CopyJob& job, const Location& pool, ConvertReport& report);

/// Returns the facts that the workers of a pool must share, those of the conversion among them.
ConversionFacts shared_facts(const CopyJob& job);

/// Returns the hidden directories beside `destination` in which pools of workers write.
std::vector<std::string> pool_directories(const Location& destination);

/// Returns the pool whose workers write into a hidden directory; empty if it cannot be found.
std::optional<Location> pool_of(const Storage& storage, const std::string& directory);

/// Throws CheckpointError (aborted) if workers of `pool` are writing `destination`.
void require_idle(const Location& destination, const Location& pool);

/// Removes the pool that the ranks of a job had beside the destination, and unless it is
/// `published` what they have written. A warning names it if that fails.
void remove_pool(const Location& pool, bool published);

}  // namespace dckpt
