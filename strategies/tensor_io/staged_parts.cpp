#include "strategies/tensor_io/staged_parts.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

// Parts up to this size share blocks.
constexpr std::size_t kSmallPart = StagingPool::kBlockBytes / 2;

std::size_t blocks_for(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + StagingPool::kBlockBytes - 1) /
                                  StagingPool::kBlockBytes);
}

/// Returns a key that tells the parts of a rank's items apart.
std::tuple<std::uint32_t, std::int64_t, std::uint64_t> place_of(const WriteItem& item,
                                                                std::uint64_t begin) {
  return {item.source, item.source_begin, begin};
}

}  // namespace

StagedBlocks::~StagedBlocks() {
  for (Block& block : blocks_) {
    if (block.memory != nullptr) give_back(block);
  }
}

bool StagedBlocks::fit_together(std::span<const std::uint64_t> sizes) const {
  std::size_t large = 0;  // number of blocks
  std::uint64_t small = 0;
  for (const std::uint64_t size : sizes) {
    if (size > kSmallPart)
      large += blocks_for(size);
    else
      small += size;
  }
  return large + blocks_for(small) <= pool_.capacity();
}

bool StagedBlocks::could_have(std::uint64_t bytes) const {
  return blocks_for(bytes) <= pool_.capacity();
}

bool StagedBlocks::has_room(std::uint64_t bytes) const {
  if (bytes <= kSmallPart && shared_block_ && shared_fill_ + bytes <= StagingPool::kBlockBytes)
    return true;
  // The block that small parts share is given up when a full one is needed and nothing else is in
  // it.
  return pool_.available() + (shared_block_ && blocks_[*shared_block_].users == 1 ? 1 : 0) >=
         blocks_for(bytes);
}

std::vector<StagedBlocks::Piece> StagedBlocks::reserve(std::size_t bytes) {
  const bool small = bytes <= kSmallPart;
  if (!small || !shared_block_ || shared_fill_ + bytes > StagingPool::kBlockBytes) {
    if (shared_block_ && (small || pool_.available() < blocks_for(bytes))) {
      drop(*shared_block_);
      shared_block_.reset();
    }
    const std::vector<std::byte*> taken = pool_.acquire(blocks_for(bytes));
    if (!small) {
      std::vector<Piece> pieces;
      for (std::size_t i = 0; i < taken.size(); ++i) {
        pieces.push_back(
            {add_block(taken[i]), 0,
             std::min(StagingPool::kBlockBytes, bytes - i * StagingPool::kBlockBytes)});
      }
      return pieces;
    }
    shared_block_ = add_block(taken.front());
    shared_fill_ = 0;
  }
  const Piece piece{*shared_block_, shared_fill_, bytes};
  ++blocks_[*shared_block_].users;
  shared_fill_ += bytes;
  return {piece};
}

std::size_t StagedBlocks::add_block(std::byte* memory) {
  if (unused_.empty()) {
    blocks_.push_back({});
    unused_.push_back(blocks_.size() - 1);
  }
  const std::size_t index = unused_.back();
  unused_.pop_back();
  blocks_[index] = {memory, 1};
  return index;
}

void StagedBlocks::drop(std::size_t index) {
  Block& block = blocks_[index];
  if (--block.users > 0) return;
  give_back(block);
  block.memory = nullptr;
  unused_.push_back(index);
}

void StagedBlocks::give_back(Block& block) {
  if (block.free_when.empty())
    pool_.release(block.memory);
  else
    pool_.abandon(block.memory, std::exchange(block.free_when, {}));
}

StagedParts::StagedParts(const SavePlan& plan, std::uint64_t part_bytes) {
  for (const WriteItem& item : plan) {
    if (item.kind != WriteItem::Kind::kTensor) continue;
    for (std::uint64_t begin = 0; begin < item.nbytes; begin += part_bytes) {
      by_place_.push_back(parts_.size());
      parts_.push_back({&item, begin, std::min(item.nbytes, begin + part_bytes)});
    }
  }
  std::ranges::sort(by_place_, {}, [&](std::size_t index) {
    return place_of(*parts_[index].item, parts_[index].begin);
  });
}

std::vector<std::uint64_t> StagedParts::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const StagedPart& part : parts_) sizes.push_back(part.nbytes());
  return sizes;
}

StagedPart& StagedParts::find(const WriteItem& item, std::uint64_t begin) {
  const auto place = [&](std::size_t index) {
    return place_of(*parts_[index].item, parts_[index].begin);
  };
  const auto found = std::ranges::lower_bound(by_place_, place_of(item, begin), {}, place);
  if (found == by_place_.end() || place(*found) != place_of(item, begin))
    throw_error(ErrorCode::kInvalidArgument, {.key = item.key},
                "the strategy asks for an item that is not in its plan");
  return parts_[*found];
}

}  // namespace dckpt
