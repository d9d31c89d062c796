#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "configs/policy/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

struct DataFileOptions {
  WriteOptions io{};
  std::string separation_hint{};
  StorageCodec codec = StorageCodec::kPlain;  ///< the encoding of each item
};

/// Writes a rank's final plan as data files `__{rank}_{i}.distcp` of `directory`. Each is a
/// sequence of torch archives, objects first. Items are spread by bytes over `io.files_per_rank`
/// files. `io.threads` threads write: a file each, or sections of the same file where the storage
/// has them; the bytes do not depend on their number. Items whose keys start with `separation_hint`
/// (unless it is empty) are spread over as many separate files, `{hint}__{rank}_{i}.distcp`; the
/// common state stays with the others. Throws CheckpointError (io), and (invalid argument) for a
/// hint that cannot start a file name.
WrittenItems write_data_files(Storage& storage, const std::string& directory, int rank,
                              const SavePlan& plan, ItemSource& source,
                              const DataFileOptions& options);

/// Returns what write_data_files() would return for such a plan, without writing and compressing;
/// items of objects are assumed to have `nbytes`.
WrittenItems measure_data_files(int rank, const SavePlan& plan, const DataFileOptions& options);

/// The index files that make the data files a checkpoint: common.pt and metadata.json, each where
/// `compat` requires it, and .metadata, which is the marker.
struct CheckpointIndex {
  const Metadata& metadata;
  const CommonState* common = nullptr;
  Compat compat = Compat::kMegatron;
};

/// Writes all index files but the marker.
void write_index_files(Storage& storage, const std::string& directory, const CheckpointIndex& index,
                       bool fsync);
MarkerFile marker_of(const CheckpointIndex& index);

}  // namespace dckpt
