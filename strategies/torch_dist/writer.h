#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "configs/options.h"
#include "mapping/planning/save_plan.h"
#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Where the bytes of planned items come from. Called from several threads at once, for different items.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// The bytes of an object as they are stored.
  virtual Bytes object(const WriteItem& item) = 0;
  /// Delivers the row-major elements of a tensor item in order, in pieces of any size, `item.nbytes` in all.
  virtual void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) = 0;
};

struct WrittenItems {
  std::vector<std::string> files;   ///< names inside the checkpoint
  std::vector<Place> places;        ///< in the order of the plan; file numbers refer to `files`
};

/// Writes a rank's final plan as data files `__{rank}_{i}.distcp` of `directory`: a sequence of torch archives each, objects first, items spread
/// over `io.files_per_rank` files by bytes, at most `io.threads` of them written at a time. Items whose keys begin with `separation_hint` (unless it is empty)
/// are spread over as many files of their own, `{hint}__{rank}_{i}.distcp`; the common state stays with the others. Throws CheckpointError (io), and
/// (invalid argument) for a hint that is no beginning of a file name.
WrittenItems write_data_files(Storage& storage, const std::string& directory, int rank, const SavePlan& plan, ItemSource& source, const WriteOptions& io,
                              std::string_view separation_hint = {});

/// What makes the data files a checkpoint.
struct CheckpointMarkers {
  Compat compat = Compat::kMegatron;
  std::optional<Bytes> common_file{};  ///< common.pt, already serialised
  bool integrity = false;
  bool fsync = true;
};

/// Writes common.pt, .metadata, metadata.json and integrity.json, in this order, as far as `markers` asks for them.
void write_markers(Storage& storage, const std::string& directory, const Metadata& metadata, const CheckpointMarkers& markers);

}  // namespace dckpt
