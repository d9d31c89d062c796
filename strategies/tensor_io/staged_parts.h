#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "strategies/contract/save_strategy.h"
#include "strategies/tensor_io/staging_pool.h"

namespace dckpt {

/// Allocates memory for parts of tensors from the blocks of a pool; small parts share blocks. Not
/// safe to use from several threads. The destructor returns the blocks in use to the pool.
class StagedBlocks {
 public:
  struct Piece {
    std::size_t block;  ///< position in blocks_
    std::size_t offset;
    std::size_t length;
  };

  explicit StagedBlocks(StagingPool& pool) : pool_(pool) {}
  ~StagedBlocks();
  StagedBlocks(const StagedBlocks&) = delete;
  StagedBlocks& operator=(const StagedBlocks&) = delete;

  /// Returns whether parts of these sizes fit into the pool together.
  bool fit_together(std::span<const std::uint64_t> sizes) const;
  bool could_have(std::uint64_t bytes) const;
  bool has_room(std::uint64_t bytes) const;
  /// Allocates memory for a part, for which there must be room. Throws CheckpointError (io) of a
  /// device.
  std::vector<Piece> reserve(std::size_t bytes);
  std::byte* memory_of(const Piece& piece) { return blocks_[piece.block].memory + piece.offset; }
  /// Failed copies may use the memory until `event` is reached.
  void keep_until(const Piece& piece, const std::shared_ptr<const CopyEvent>& event) {
    blocks_[piece.block].free_when.push_back(event);
  }
  void drop(const Piece& piece) { drop(piece.block); }

 private:
  struct Block {
    std::byte* memory;
    std::size_t users;  ///< parts with a piece in it
    std::vector<std::shared_ptr<const CopyEvent>> free_when{};
  };

  std::size_t add_block(std::byte* memory);
  void drop(std::size_t block);
  void give_back(Block& block);

  StagingPool& pool_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> unused_;  ///< entries of blocks_ without memory
  /// The block that small parts are packed into. This member counts as a user of it.
  std::optional<std::size_t> shared_block_{};
  std::size_t shared_fill_ = 0;
};

/// A part of an item on its way to the writer.
struct StagedPart {
  enum class Step : std::uint8_t {
    kWaiting,  ///< in the state only
    kCopying,  ///< on the way into the pool
    kStaged,   ///< in the pool
    kDirect,   ///< being written from the state
    kDone,     ///< no longer needed from the state
  };

  const WriteItem* item;
  std::uint64_t begin;  ///< in bytes of the item
  std::uint64_t end;
  Step step = Step::kWaiting;
  std::vector<StagedBlocks::Piece> pieces{};

  std::uint64_t nbytes() const { return end - begin; }
};

/// The parts of the tensors that have elements, in the order of the plan.
class StagedParts {
 public:
  StagedParts(const SavePlan& plan, std::uint64_t part_bytes);

  std::size_t size() const noexcept { return parts_.size(); }
  StagedPart& operator[](std::size_t index) { return parts_[index]; }
  std::vector<std::uint64_t> sizes() const;
  /// Throws CheckpointError (invalid argument) for an item that is not in the plan.
  StagedPart& find(const WriteItem& item, std::uint64_t begin);

 private:
  std::vector<StagedPart> parts_;
  std::vector<std::size_t> by_place_;  ///< positions in parts_, by source and begin
};

}  // namespace dckpt
