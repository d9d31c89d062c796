#pragma once

#include <functional>
#include <memory>

#include "mapping/base/progress.h"
#include "operations/convert/conversion_journal.h"
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

}  // namespace dckpt
