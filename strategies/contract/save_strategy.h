#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"
#include "mapping/planning/save_plan.h"
#include "strategies/contract/common_state.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Where the bytes of planned items come from. Called from several threads at once, for different
/// items.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// Each item is asked for at most once.
  /// The bytes of an object as they are stored: a list with the value in it, in the format of
  /// torch.save.
  virtual Bytes object(const WriteItem& item) = 0;
  /// Delivers the row-major elements of a tensor item in order, in pieces of any size,
  /// `item.nbytes` in all.
  virtual void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) = 0;
};

struct WrittenItems {
  std::vector<std::string> files;   ///< names inside the checkpoint
  std::vector<StorageInfo> places;  ///< in the order of the plan; file numbers refer to `files`
};

/// How a checkpoint is stored: what a backend implements to save. Planning, talking between ranks
/// and publishing are not its business: it is called between them, first on every rank, then on
/// one. Nothing that it writes is visible before all of it has succeeded, and all is removed if
/// anything fails.
///
/// A strategy is made for one save, from its options, on every rank; its methods may run in a
/// background thread, and those of different ranks at the same time. It keeps nothing from save to
/// save. It makes what it writes durable unless io.fsync is off, and throws CheckpointError.
class SaveStrategy {
 public:
  virtual ~SaveStrategy() = default;

  /// Writes the items that `rank` was given as new files of `directory`, whose names no other rank
  /// uses, and returns where each item lies.
  virtual WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                                  const SavePlan& plan, ItemSource& source) const = 0;

  /// Called on one rank after the data of all are written: adds what a reader needs to find them.
  /// `common`: null if the checkpoint has none. What tells a complete
  /// checkpoint from an incomplete one is written last.
  virtual void write_metadata(Storage& storage, const std::string& directory,
                              const Metadata& metadata, const CommonState* common) const = 0;
};

}  // namespace dckpt
