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

/// A data file, and which items of a plan go into it, in an order that depends on the plan alone.
struct PlannedFile {
  const std::string& name;  ///< inside the checkpoint
  const SavePlan& plan;
  std::span<const std::size_t> items;  ///< positions in the plan
};

/// Source of the bytes of planned items. Called from several threads at once, for different items
/// or different parts of one.
class ItemSource {
 public:
  virtual ~ItemSource() = default;
  /// Each item is requested at most once. The bytes of an object as they are stored: a list that
  /// holds the value, in the format of torch.save.
  virtual Bytes object(const WriteItem& item) = 0;
  /// Delivers the row-major elements of a tensor item in order, in pieces of any size,
  /// `item.nbytes` in all.
  virtual void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) = 0;

  /// Of the parts that a tensor item consists of; the last one has what is left. A multiple of
  /// every dtype's size.
  static constexpr std::uint64_t kPartBytes = std::uint64_t{16} << 20;
  /// Whether part() may be called for a tensor item instead of tensor(). By default it may not.
  virtual bool has_parts(const WriteItem& /*item*/) const { return false; }
  /// Delivers the part that begins at byte `begin`, a multiple of kPartBytes below `item.nbytes`,
  /// as tensor() would. Each part is requested at most once, in any order, and none of an item that
  /// is requested whole. By default it picks the part out of the whole item.
  virtual void part(const WriteItem& item, std::uint64_t begin,
                    const std::function<void(ByteView)>& sink);

  /// A source for a thread that is about to request these items of a plan whole, once each, in this
  /// order, and nothing else of this source meanwhile: it may fetch many small ones together. Null,
  /// as by default: there is none, and the thread requests them here. What is referred to must
  /// outlive it.
  virtual std::unique_ptr<ItemSource> in_order(const SavePlan& /*plan*/,
                                               std::span<const std::size_t> /*items*/) {
    return nullptr;
  }

  // For strategies that go on with what was interrupted (Capabilities::resume).

  /// Asked before a data file is created: the places that were told for it to wrote() if it is
  /// there already, as an attempt that was interrupted left it. Then it stays as it is, and its
  /// items are not requested.
  virtual std::optional<std::vector<StorageInfo>> written(const PlannedFile& /*file*/) {
    return std::nullopt;
  }
  /// Told when a data file is complete and durable: the places of its items, in their order; or
  /// none if the plan alone decides them.
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

/// How a checkpoint is stored; implemented by backends that save. It does not plan, communicate or
/// publish. It is called in between, first on every rank, then on one. Nothing that it writes is
/// visible until everything has succeeded, and everything is removed if anything fails.
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

  /// Called on one rank after all ranks have written their data: writes what a reader needs to find
  /// it, except the marker. `common`: null if the checkpoint has none.
  /// By default there is nothing else.
  virtual void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                           const CommonState* common) const;

  /// The file by which readers tell that a checkpoint is complete. It is written after everything
  /// else, other files of this library too. Called after write_index(), with the same values. None
  /// if the format has no such file: in a storage without rename nothing can be saved in it.
  [[nodiscard]] virtual std::optional<MarkerFile> marker(const Storage& storage,
                                                         const Metadata& metadata,
                                                         const CommonState* common) const = 0;
};

}  // namespace dckpt
