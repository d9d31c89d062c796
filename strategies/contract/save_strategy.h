#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/save/local_plan.h"
#include "strategies/contract/common_state.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// A data file, and the items of a plan that go into it, in an order that depends on the plan
/// alone.
struct PlannedFile {
  const std::string& name;  ///< inside the checkpoint
  const SavePlan& plan;
  std::span<const std::size_t> items;  ///< positions in the plan
};

/// A source of the bytes of planned items. It is called from several threads at once, for different
/// items or different parts of one.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// Returns the bytes of an object as they are stored: a list that holds the value, in the format
  /// of torch.save. Each item is requested at most once.
  virtual Bytes object(const WriteItem& item) = 0;
  /// Delivers the row-major elements of a tensor item in order, in pieces of any size,
  /// `item.nbytes` in all.
  virtual void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) = 0;

  /// The size of the parts of a tensor item, except the last one, which has the remaining bytes. A
  /// multiple of every dtype's size.
  static constexpr std::uint64_t kPartBytes = std::uint64_t{16} << 20;
  /// Returns whether part() may be called for a tensor item instead of tensor(). False by default.
  virtual bool has_parts(const WriteItem& /*item*/) const { return false; }
  /// Delivers the part that begins at byte `begin`, a multiple of kPartBytes below `item.nbytes`,
  /// as tensor() would. Each part is requested at most once, in any order, and no part of an item
  /// that is requested whole. The default implementation picks the part out of the whole item.
  virtual void part(const WriteItem& item, std::uint64_t begin,
                    const std::function<void(ByteView)>& sink);

  /// Returns a source for a thread that is about to request these items of a plan whole, once each,
  /// in this order, and nothing else from this source meanwhile. It may fetch many small items
  /// together. Returns null, as by default, if the thread should request them here. This source and
  /// the arguments must outlive it.
  virtual std::unique_ptr<ItemSource> in_order(const SavePlan& /*plan*/,
                                               std::span<const std::size_t> /*items*/) {
    return nullptr;
  }

  // The following is for strategies that continue an interrupted attempt (Capabilities::resume).

  /// Called before a data file is created. Returns the places that were passed to wrote() if an
  /// interrupted attempt has already written the file. It then stays as it is, and its items are
  /// not requested.
  virtual std::optional<std::vector<StorageInfo>> written(const PlannedFile& /*file*/) {
    return std::nullopt;
  }
  /// Called when a data file is complete and durable, with the places of its items, in their order,
  /// or with none if the plan alone decides them.
  virtual void wrote(const PlannedFile& /*file*/, std::span<const StorageInfo> /*places*/) {}
};

struct WrittenItems {
  std::vector<std::string> files;   ///< names inside the checkpoint
  std::vector<StorageInfo> places;  ///< in the order of the plan; file numbers refer to `files`
};

struct MarkerFile {
  std::string name;  ///< inside the checkpoint
  Bytes content;
};

/// The storage of a checkpoint in a format, implemented by backends that save. It does not plan,
/// communicate or publish. It is called in between, first on every rank, then on one. Nothing that
/// it writes is visible until everything has succeeded, and everything is removed if anything
/// fails.
///
/// A strategy is made for one save, from its options, on every rank. Its methods may run in a
/// background thread, and on different ranks at the same time. It keeps no state between saves,
/// syncs what it writes unless io.fsync is off, and throws CheckpointError.
class SaveStrategy {
 public:
  virtual ~SaveStrategy() = default;

  /// Writes the items assigned to `rank` as new files of `directory`, with names that no other rank
  /// uses, and returns the place of each item.
  virtual WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                                  const SavePlan& plan, ItemSource& source) const = 0;

  /// Called on one rank after all ranks have written their data. Writes the files by which a reader
  /// finds it, except the marker. `common` is null if the checkpoint has none. By default it writes
  /// nothing.
  virtual void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                           const CommonState* common) const;

  /// Returns the file by which readers tell that a checkpoint is complete, or none if the format
  /// has no such file. Without one, nothing can be saved to a storage without rename. It is written
  /// after everything else, including other files of this library. Called after write_index(), with
  /// the same values.
  [[nodiscard]] virtual std::optional<MarkerFile> marker(const Storage& storage,
                                                         const Metadata& metadata,
                                                         const CommonState* common) const = 0;
};

}  // namespace dckpt
