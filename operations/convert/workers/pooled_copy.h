#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/progress.h"
#include "operations/convert/conversion_facts.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/planned_copy.h"
#include "operations/convert/source/copy_source.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/file_watch.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// A planned copy that several workers write.
struct PooledCopy {
  PlannedCopy& copy;
  const CheckpointReader& reader;
  const Location& destination;
  const ConvertOptions& options;
  const CopyMemory& memory;
  std::shared_ptr<FileWatch> watch;  ///< of the files of the source
  ConversionFacts facts{};
  bool keeps_records = false;     ///< records that are not plain tensors may be copied as they are
  Progress progress{};            ///< of the bytes that this worker or others have written
  std::function<void()> go_on{};  ///< throws to stop
};

/// Works in the pool ConvertOptions::workers until the copy is published, by this worker or by
/// another one. Reports what this worker did. Throws CheckpointError as WorkerPool does, and if a
/// unit of work fails, which then is left to other workers.
void share_copy(PooledCopy shared, ConvertReport& report);

/// Returns the facts that the workers of a pool must share, those of the conversion among them.
ConversionFacts shared_facts(ConversionFacts facts, const Location& destination,
                             const ConvertOptions& options);

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
