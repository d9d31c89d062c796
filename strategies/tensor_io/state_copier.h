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
#include "strategies/tensor_io/staged_parts.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {

/// How far a background save is on one rank, in bytes of its tensors. Written by the threads that
/// save, read by any.
struct StagedBytes {
  std::uint64_t total = 0;
  std::atomic<std::uint64_t> released{0};  ///< copied, or written from the state itself
  std::atomic<std::uint64_t> written{0};
};

/// Copies a state into a pool, part by part, while a writer takes what has not been copied from the
/// state: see StagedSource.
class StateCopier {
 public:
  StateCopier(const StateCopier&) = delete;
  StateCopier& operator=(const StateCopier&) = delete;

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

 protected:
  using Part = StagedPart;
  using Step = StagedPart::Step;
  using Piece = StagedBlocks::Piece;

  StateCopier(const SavePlan& plan, std::vector<Tensor> tensors, StagingPool& pool,
              std::shared_ptr<StagedBytes> bytes);
  ~StateCopier() = default;

  void fail(CheckpointError reason);
  std::byte* memory_of(const Piece& piece);

  std::optional<StateSource> state_;  ///< until stage() has returned
  const std::shared_ptr<StagedBytes> bytes_;
  StagedParts parts_;
  bool copies_first_ = false;
  bool has_devices_ = false;  ///< some of them are in memory of devices

  mutable std::mutex mutex_;  ///< of everything below, of steps and of the pool
  std::condition_variable changed_;
  StagedBlocks blocks_;
  bool begun_ = false;      ///< stage() has
  int copying_ = 0;         ///< threads of stage() that do not wait for room
  std::size_t needed_ = 0;  ///< parts that neither the pool nor the writer has yet
  std::size_t direct_ = 0;  ///< parts that are being written from the state
  std::optional<CheckpointError> failure_{};  ///< why nothing more is read from the state

 private:
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
  void copy_from_device(std::span<const std::size_t> batch);

  std::size_t cursor_ = 0;  ///< parts before it need no copy any more
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Staged staged_{};
};

}  // namespace dckpt
