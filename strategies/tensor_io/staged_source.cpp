#include "strategies/tensor_io/staged_source.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"

namespace dckpt {
namespace {

constexpr std::size_t kSmallItem =
    StagingPool::kBlockBytes / 2;  // up to this size items share blocks

std::size_t blocks_for(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + StagingPool::kBlockBytes - 1) /
                                  StagingPool::kBlockBytes);
}

}  // namespace

StagedSource::StagedSource(const SavePlan& plan, std::vector<Tensor> tensors,
                           std::vector<Bytes> objects, StagingPool& pool)
    : state_(std::move(tensors), std::move(objects)), pool_(pool) {
  for (const WriteItem& item : plan) {
    if (item.kind != WriteItem::Kind::kTensor || item.nbytes == 0) continue;
    position_.emplace(std::pair{item.source, item.source_begin}, items_.size());
    items_.push_back({&item});
  }
}

StagedSource::~StagedSource() {
  for (const Block& block : blocks_) {
    if (block.memory != nullptr) pool_.release(block.memory);
  }
}

void StagedSource::stage(int threads) noexcept {
  const int workers = std::max(threads, 1);
  try {
    parallel_for(static_cast<std::size_t>(workers), workers, [&](std::size_t) { copy_all(); });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = current_error();
    changed_.notify_all();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    if (failure_)
      return std::ranges::none_of(items_,
                                  [](const Item& item) { return item.step == Step::kDirect; });
    return finished_ || std::ranges::all_of(items_, [](const Item& item) {
             return item.step == Step::kStaged || item.step == Step::kDone;
           });
  });
}

void StagedSource::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

StagedSource::Staged StagedSource::staged() const {
  const std::lock_guard lock(mutex_);
  if (staged_.bytes > 0) return staged_;
  return {.time = std::chrono::steady_clock::now() - begin_};  // the writer was first everywhere
}

void StagedSource::copy_all() {
  std::unique_lock lock(mutex_);
  while (const auto index = take_next(lock)) {
    Item& item = items_[*index];
    lock.unlock();
    try {
      copy(item);
    } catch (...) {
      lock.lock();
      for (const Piece& piece : item.pieces) drop(piece.block);
      item.pieces.clear();
      item.step = Step::kWaiting;
      changed_.notify_all();
      throw;
    }
    lock.lock();
    item.step = Step::kStaged;
    staged_.bytes += item.item->nbytes;
    staged_.time = std::chrono::steady_clock::now() - begin_;
    changed_.notify_all();
  }
}

std::optional<std::size_t> StagedSource::take_next(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    while (cursor_ < items_.size() && (items_[cursor_].step != Step::kWaiting ||
                                       blocks_for(items_[cursor_].item->nbytes) > pool_.capacity()))
      ++cursor_;
    if (finished_ || cursor_ == items_.size()) return std::nullopt;
    if (has_room(items_[cursor_].item->nbytes)) break;
    changed_.wait(lock);
  }
  const std::size_t index = cursor_++;
  try {
    reserve(items_[index]);
  } catch (const std::bad_alloc&) {
    return std::nullopt;  // what is not copied is written from the state, before stage() returns
  }
  items_[index].step = Step::kCopying;
  return index;
}

bool StagedSource::has_room(std::uint64_t bytes) const {
  if (bytes <= kSmallItem && shared_block_ && shared_fill_ + bytes <= StagingPool::kBlockBytes)
    return true;
  // The block that small items share is given up when a full one is needed and nothing else is in
  // it.
  return pool_.available() + (shared_block_ && blocks_[*shared_block_].users == 1 ? 1 : 0) >=
         blocks_for(bytes);
}

void StagedSource::reserve(Item& item) {
  const auto bytes = static_cast<std::size_t>(item.item->nbytes);
  const bool small = bytes <= kSmallItem;
  if (!small || !shared_block_ || shared_fill_ + bytes > StagingPool::kBlockBytes) {
    if (shared_block_ && (small || pool_.available() < blocks_for(bytes))) {
      drop(*shared_block_);
      shared_block_.reset();
    }
    const std::vector<std::byte*> taken = pool_.acquire(blocks_for(bytes));
    if (!small) {
      for (std::size_t i = 0; i < taken.size(); ++i) {
        item.pieces.push_back(
            {add_block(taken[i]), 0,
             std::min(StagingPool::kBlockBytes, bytes - i * StagingPool::kBlockBytes)});
      }
      return;
    }
    shared_block_ = add_block(taken.front());
    shared_fill_ = 0;
  }
  item.pieces.push_back({*shared_block_, shared_fill_, bytes});
  ++blocks_[*shared_block_].users;
  shared_fill_ += bytes;
}

std::size_t StagedSource::add_block(std::byte* memory) {
  if (unused_.empty()) {
    blocks_.push_back({});
    unused_.push_back(blocks_.size() - 1);
  }
  const std::size_t index = unused_.back();
  unused_.pop_back();
  blocks_[index] = {memory, 1};
  return index;
}

void StagedSource::drop(std::size_t index) {
  Block& block = blocks_[index];
  if (--block.users > 0) return;
  pool_.release(block.memory);
  block.memory = nullptr;
  unused_.push_back(index);
}

void StagedSource::copy(const Item& item) {
  std::size_t piece = 0;
  std::size_t filled = 0;
  std::byte* memory = nullptr;
  state_.tensor(*item.item, [&](ByteView part) {
    while (!part.empty()) {
      if (filled == 0) memory = memory_of(item.pieces[piece]);
      const std::size_t count = std::min(part.size(), item.pieces[piece].length - filled);
      std::memcpy(memory + filled, part.data(), count);
      part = part.subspan(count);
      filled += count;
      if (filled == item.pieces[piece].length) {
        ++piece;
        filled = 0;
      }
    }
  });
}

void StagedSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  if (item.nbytes == 0) return;
  const auto found = position_.find({item.source, item.source_begin});
  if (found == position_.end())
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the strategy asks for an item that is not in its plan",
                          {.key = item.key});
  Item& entry = items_[found->second];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return entry.step != Step::kCopying; });
  if (failure_) {
    throw CheckpointError(
        failure_->code(),
        "the state could not be copied for the save in the background: " + failure_->message(),
        failure_->context())
        .with({.key = item.key});
  }
  if (entry.step == Step::kDirect || entry.step == Step::kDone) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the strategy asks for the same item twice; its bytes are delivered once",
                          {.key = item.key});
  }
  if (entry.step == Step::kStaged) {
    entry.step = Step::kDone;
    lock.unlock();
    return write_staged(entry.pieces, sink);
  }
  entry.step = Step::kDirect;
  lock.unlock();
  try {
    state_.tensor(item, sink);
  } catch (...) {
    finish_direct(entry);
    throw;
  }
  finish_direct(entry);
}

void StagedSource::finish_direct(Item& entry) {
  const std::lock_guard lock(mutex_);
  entry.step = Step::kDone;
  changed_.notify_all();
}

void StagedSource::write_staged(const std::vector<Piece>& pieces,
                                const std::function<void(ByteView)>& sink) {
  std::size_t held = 0;  // pieces before it have been given back
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    drop(pieces[held++].block);
    changed_.notify_all();
  };
  try {
    for (const Piece& piece : pieces) {
      sink({memory_of(piece), piece.length});
      give_back();
    }
  } catch (...) {
    while (held < pieces.size()) give_back();
    throw;
  }
}

std::byte* StagedSource::memory_of(const Piece& piece) {
  const std::lock_guard lock(mutex_);  // blocks_ may grow
  return blocks_[piece.block].memory + piece.offset;
}

}  // namespace dckpt
