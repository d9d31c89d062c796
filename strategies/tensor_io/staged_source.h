#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/tensor_io/staging_pool.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {

/// Feeds a background writer from copies of the state, which may change once stage() has returned.
///
/// One thread (the trainer's) copies the items of the plan one after the other into the pool, while
/// the writer's threads consume them and free each copy after writing it. If the writer reaches an
/// item before it is copied, it takes the item straight from the state, which needs no memory.
/// Neither side therefore ever waits for the other to make room, however small the pool is, and
/// stage() takes no longer than copying everything or writing what does not fit.
///
/// `plan` and `pool` must outlive it; the pool belongs to one source at a time.
class StagedSource final : public ItemSource {
 public:
  StagedSource(const SavePlan& plan, std::vector<Tensor> tensors, std::vector<Bytes> objects,
               StagingPool& pool);
  ~StagedSource() override;

  /// Returns when every item has been copied or written, or finish() was called. Errors are thrown
  /// where the writer requests an item, not here: the ranks agree on the outcome of their writers,
  /// and on nothing while they copy.
  void stage(int threads) noexcept;
  /// Call when the writer finishes, successfully or not; no further reads follow.
  void finish();

  /// Bytes copied so far, and how long that took, counted from the construction; more than no time
  /// also where nothing was copied, since the writer was first.
  struct Staged {
    std::uint64_t bytes = 0;
    std::chrono::duration<double> time{0};
  };
  Staged staged() const;

  Bytes object(const WriteItem& item) override { return state_.object(item); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;

 private:
  enum class Step : std::uint8_t {
    kWaiting,  ///< in the state only
    kCopying,  ///< on the way into the pool
    kStaged,   ///< in the pool
    kDirect,   ///< being written from the state
    kDone,     ///< not needed from the state any more
  };

  struct Block {
    std::byte* memory;
    std::size_t users;  ///< items with a piece in it
  };
  struct Piece {
    std::size_t block;  ///< position in blocks_
    std::size_t offset;
    std::size_t length;
  };
  struct Item {
    const WriteItem* item;
    Step step = Step::kWaiting;
    std::vector<Piece> pieces{};
  };

  /// Position of the next item to copy, with its memory reserved; waits for room. Empty if none is
  /// left.
  std::optional<std::size_t> take_next(std::unique_lock<std::mutex>& lock);
  void copy_all();
  void copy(const Item& item);
  void write_staged(const std::vector<Piece>& pieces, const std::function<void(ByteView)>& sink);
  void finish_direct(Item& entry);
  std::byte* memory_of(const Piece& piece);

  bool has_room(std::uint64_t bytes) const;
  void reserve(Item& item);
  std::size_t add_block(std::byte* memory);
  void drop(std::size_t block);

  StateSource state_;
  StagingPool& pool_;
  std::vector<Item> items_;  ///< tensors with elements, in the order of the plan
  /// Source and begin → position in items_.
  std::map<std::pair<std::uint32_t, std::int64_t>, std::size_t> position_;

  mutable std::mutex mutex_;  ///< of everything below, of steps and of the pool
  std::condition_variable changed_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> unused_;  ///< entries of blocks_ without memory
  std::size_t cursor_ = 0;           ///< items before it need no copy any more
  /// The one that small items are packed into; counts as a user of it.
  std::optional<std::size_t> shared_block_{};
  std::size_t shared_fill_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Staged staged_{};
  bool finished_ = false;
  std::optional<CheckpointError> failure_{};  ///< of the first item that could not be copied
};

}  // namespace dckpt
