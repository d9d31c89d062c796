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

/// The progress of a background save on one rank, in bytes of its tensors. Threads that save write
/// it; any thread may read it.
struct StagedBytes {
  std::uint64_t total = 0;
  std::atomic<std::uint64_t> released{0};  ///< copied, or written from the state itself
  std::atomic<std::uint64_t> written{0};
};

/// Copies a state into a pool, part by part, while a writer takes the parts that are not copied yet
/// from the state: see StagedSource.
class StateCopier {
 public:
  StateCopier(const StateCopier&) = delete;
  StateCopier& operator=(const StateCopier&) = delete;

  /// Must be called once, by a thread that does not write. Returns when every item has been copied
  /// or written, or when finish() or cancel() has ended reading from the state. Then releases the
  /// tensors. Errors are thrown where the writer requests an item, not here: the ranks agree on the
  /// outcome of their writers, and on nothing while they copy.
  void stage(int threads) noexcept;
  /// Must be called when the writer finishes, successfully or not; no further reads follow.
  void finish();
  /// Stops reading from the state. The writer gets an error (cancelled) for parts that are not
  /// copied.
  void cancel();

  /// The bytes copied so far, and the time since the construction that copying took. The time is
  /// not 0 even if the writer was first everywhere and nothing was copied.
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

  void fail(ErrorCode code, const char* reason) noexcept;
  void fail(CheckpointError reason) noexcept;
  std::byte* memory_of(const Piece& piece);

  std::optional<StateSource> state_;  ///< empty once stage() has returned
  const std::shared_ptr<StagedBytes> bytes_;
  StagedParts parts_;
  bool copies_first_ = false;
  bool has_devices_ = false;  ///< some tensors are in device memory

  mutable std::mutex mutex_;  ///< guards everything below, the steps of the parts, and the pool
  std::condition_variable changed_;
  StagedBlocks blocks_;
  bool begun_ = false;      ///< stage() has begun
  int copying_ = 0;         ///< threads of stage() that are not waiting for room
  std::size_t needed_ = 0;  ///< parts that neither the pool nor the writer has yet
  std::size_t direct_ = 0;  ///< parts that are being written from the state
  std::optional<CheckpointError> failure_{};  ///< reason to stop reading from the state

 private:
  /// Returns the positions of parts to copy together, with their memory reserved. Waits until there
  /// is room for one. Empty if none is left.
  std::vector<std::size_t> take_batch(std::unique_lock<std::mutex>& lock);
  /// Moves cursor_ to the next part to copy. Returns false if there is none.
  bool find_next();
  /// Takes the part at cursor_. Returns false if memory for it cannot be reserved.
  bool take_next();
  void copy_all();
  /// Returns the error, if any.
  std::optional<CheckpointError> copy(std::span<const std::size_t> batch);
  void copy_from_device(std::span<const std::size_t> batch);

  std::size_t cursor_ = 0;  ///< parts before this one need no copy any more
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Staged staged_{};
};

}  // namespace dckpt
