#pragma once

#include <functional>
#include <memory>
#include <string>

#include "mapping/base/progress.h"
#include "operations/convert/conversion_facts.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/noted_copy.h"
#include "operations/convert/planned_copy.h"
#include "operations/convert/source/copy_source.h"
#include "operations/convert/source/source_check.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/file_watch.h"
#include "strategies/storage/location.h"
#include "strategies/storage/publication.h"

namespace dckpt {

/// A planned copy and how it is carried out.
struct CopyJob {
  PlannedCopy& copy;
  const CheckpointReader& reader;
  const Location& destination;
  ConvertChecks checks{};
  ConvertWorkers workers{};
  bool dry_run = false;
  bool resume = false;
  CopyMemory memory{};
  int readers = 1;                   ///< number of threads that check the source
  std::shared_ptr<FileWatch> watch;  ///< of the files of the source
  ConversionFacts facts{};
  bool keeps_records = false;     ///< records that are not plain tensors may be copied as they are
  Progress progress{};            ///< of the bytes that this process or others have written
  std::function<void()> go_on{};  ///< throws to stop
};

/// The end of a copy, in which checks may throw.
struct CopyEnd {
  std::function<void()> check_source{};  ///< called when everything has been read
  bool discards = true;                  ///< what was written is worthless if that throws
  std::function<void()> check{};         ///< called just before the checkpoint becomes visible
};

/// Writes what `noted` does not have as finished, and publishes the copy.
void finish_copy(const CopyJob& job, CopySource& source, Publication publication, NotedCopy& noted,
                 const CopyEnd& end, ConvertReport& report);

/// Writes the copy as a pool of one worker, and publishes it; a dry run only checks the source.
/// `left` names leftovers to continue, beside the destination; empty if there are none. Reports the
/// numbers of files.
void write_copy(const CopyJob& job, const std::string& left, ConvertReport& report);

}  // namespace dckpt
