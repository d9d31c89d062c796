#pragma once

#include <functional>
#include <string>

#include "operations/convert/convert_options.h"
#include "operations/convert/source/copy_source.h"
#include "operations/convert/workers/worker_pool.h"
#include "operations/convert/write_copy.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Publishes what the workers of a pool have written. One worker at a time, which has claimed the
/// publication; see worker_pool.cpp for what the next one does if it dies.
class PooledPublication {
 public:
  PooledPublication(WorkerPool& pool, const Location& destination)
      : pool_(pool), destination_(destination), storage_(*destination.storage()) {}

  /// Returns whether another worker has published, and died before it said so.
  bool is_complete();

  /// Publishes; `check_source` as in CopyEnd. Returns false if there is more to do: files of units
  /// are gone, or this worker was stopped and another one has taken over. After an error, the files
  /// wait for the next worker that publishes.
  bool publish(const CopyJob& job, CopySource& source, const std::function<void()>& check_source,
               ConvertReport& report);

 private:
  std::string left() const;
  std::string hidden(const char* purpose, const std::string& token) const;
  std::vector<PublishedFile> files_below(const std::string& directory,
                                         const std::string& below) const;
  void move_note(const std::string& from, const std::string& to);
  bool give_back();

  WorkerPool& pool_;
  const Location& destination_;
  Storage& storage_;
};

}  // namespace dckpt
