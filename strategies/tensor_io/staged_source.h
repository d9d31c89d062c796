#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/tensor_io/staging_pool.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {

/// How far a background save is on one rank, in bytes of its tensors. Written by the threads that
/// save, read by any.
struct StagedBytes {
  std::uint64_t total = 0;
  std::atomic<std::uint64_t> released{0};  ///< copied, or written from the state itself
  std::atomic<std::uint64_t> written{0};
};

/// Feeds a background writer from copies of the state, which may change once stage() has returned.
///
/// The threads of stage() copy the items of the plan one after the other into the pool, each item
/// part by part; the writer frees each copy after writing it. If all of them fit into the pool,
/// copying comes first and the writer waits: the caller waits for one copy. Otherwise the writer
/// does not wait: the parts that it reaches before they are copied, it takes straight from the
/// state, which needs no memory. Neither side therefore ever waits for the other to make room,
/// however small the pool is, and stage() takes no longer than copying everything or writing what
/// does not fit.
///
/// Elements in memory of a device are copied straight to page-locked memory of the pool, many items
/// at a time.
///
/// `plan` and `pool` must outlive it; the pool belongs to one source at a time.
class StagedSource final : public ItemSource {
 public:
  /// `bytes` are counted from 0.
  StagedSource(const SavePlan& plan, std::vector<Tensor> tensors, std::vector<Bytes> objects,
               StagingPool& pool,
               std::shared_ptr<StagedBytes> bytes = std::make_shared<StagedBytes>());
  ~StagedSource() override;

  /// To be called once, by a thread that does not write. Returns when every item has been copied or
  /// written, or nothing more will be read from the state because finish() or cancel() was called;
  /// the tensors are then let go. Errors are thrown where the writer requests an item, not here:
  /// the ranks agree on the outcome of their writers, and on nothing while they copy.
  void stage(int threads) noexcept;
  /// Call when the writer finishes, successfully or not; no further reads follow.
  void finish();
  /// Reads nothing more from the state: the writer gets an error (cancelled) for what has not been
  /// copied.
  void cancel();

  /// Bytes copied so far, and how long that took, counted from the construction; more than no time
  /// also where nothing was copied, since the writer was first.
  struct Staged {
    std::uint64_t bytes = 0;
    std::chrono::duration<double> time{0};
  };
  Staged staged() const;

  Bytes object(const WriteItem& item) override { return objects_[item.source]; }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  bool has_parts(const WriteItem&) const override { return true; }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override;

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
    std::size_t users;  ///< parts with a piece in it
    /// Reached once copies that failed do not use it any more.
    std::vector<std::shared_ptr<const CopyEvent>> free_when{};
  };
  struct Piece {
    std::size_t block;  ///< position in blocks_
    std::size_t offset;
    std::size_t length;
  };
  /// A part of an item.
  struct Part {
    const WriteItem* item;
    std::uint64_t begin;  ///< in bytes of the item
    std::uint64_t end;
    Step step = Step::kWaiting;
    std::vector<Piece> pieces{};

    std::uint64_t nbytes() const { return end - begin; }
  };

  /// Positions of parts to copy together, with their memory reserved; waits for room for one.
  /// Empty if none is left.
  std::vector<std::size_t> take_batch(std::unique_lock<std::mutex>& lock);
  /// Whether there is a part to copy; cursor_ is its position.
  bool find_next();
  /// Takes it if memory for it can be reserved.
  bool take_next();
  void copy_all();
  /// Returns what went wrong.
  std::optional<CheckpointError> copy(std::span<const std::size_t> batch);
  void copy_from_cpu(const Part& part);
  void copy_from_device(std::span<const std::size_t> batch);
  void write_staged(const std::vector<Piece>& pieces, const std::function<void(ByteView)>& sink);
  void require_state(const WriteItem& item) const;
  void finish_direct(Part& part);
  Part& part_at(const WriteItem& item, std::uint64_t begin);
  std::byte* memory_of(const Piece& piece);

  bool writer_must_wait(const Part& part) const {
    return part.step == Step::kCopying || (copies_first_ && !failure_ && (!begun_ || copying_ > 0));
  }
  void fail(CheckpointError reason);

  bool has_room(std::uint64_t bytes) const;
  void reserve(Part& part);
  std::size_t add_block(std::byte* memory);
  void drop(std::size_t block);
  void give_back(Block& block);

  std::optional<StateSource> state_;  ///< until stage() has returned
  const std::vector<Bytes> objects_;
  StagingPool& pool_;
  const std::shared_ptr<StagedBytes> bytes_;
  std::vector<Part> parts_;            ///< of tensors with elements, in the order of the plan
  std::vector<std::size_t> by_place_;  ///< positions in parts_, by source and begin
  bool copies_first_ = false;
  bool has_devices_ = false;  ///< some of them are in memory of devices

  mutable std::mutex mutex_;  ///< of everything below, of steps and of the pool
  std::condition_variable changed_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> unused_;  ///< entries of blocks_ without memory
  std::size_t cursor_ = 0;           ///< parts before it need no copy any more
  /// The one that small parts are packed into; counts as a user of it.
  std::optional<std::size_t> shared_block_{};
  std::size_t shared_fill_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Staged staged_{};
  bool begun_ = false;      ///< stage() has
  int copying_ = 0;         ///< threads of stage() that do not wait for room
  std::size_t needed_ = 0;  ///< parts that neither the pool nor the writer has yet
  std::size_t direct_ = 0;  ///< parts that are being written from the state
  std::optional<CheckpointError> failure_{};  ///< why nothing more is read from the state
};

}  // namespace dckpt
