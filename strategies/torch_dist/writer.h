#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "configs/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Writes a rank's final plan as data files `__{rank}_{i}.distcp` of `directory`: a sequence of
/// torch archives each, objects first, items spread over `io.files_per_rank` files by bytes, at
/// most `io.threads` of them written at a time. Items whose keys begin with `separation_hint`
/// (unless it is empty) are spread over as many files of their own, `{hint}__{rank}_{i}.distcp`;
/// the common state stays with the others. Throws CheckpointError (io), and (invalid argument) for
/// a hint that is no beginning of a file name.
WrittenItems write_data_files(Storage& storage, const std::string& directory, int rank,
                              const SavePlan& plan, ItemSource& source, const WriteOptions& io,
                              std::string_view separation_hint = {});

/// What write_data_files would return for such a plan, without writing; items of objects are taken
/// to have `nbytes`.
WrittenItems measure_data_files(int rank, const SavePlan& plan, const WriteOptions& io,
                                std::string_view separation_hint = {});

/// What makes the data files a checkpoint.
struct CheckpointMarkers {
  Compat compat = Compat::kMegatron;
  std::optional<Bytes> common_file{};  ///< common.pt, already serialised
  bool fsync = true;
};

/// Writes common.pt, .metadata and metadata.json, in this order, as far as `markers` asks for them.
void write_markers(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CheckpointMarkers& markers);

}  // namespace dckpt
