#include "strategies/tensor_io/staged_source.h"

#include <algorithm>
#include <new>
#include <utility>

#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"
#include "strategies/tensor_io/streaming_copy.h"

namespace dckpt {
namespace {

constexpr std::size_t kSmallItem =
    StagingPool::kBlockBytes / 2;  // up to this size items share blocks

std::size_t blocks_for(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + StagingPool::kBlockBytes - 1) /
                                  StagingPool::kBlockBytes);
}

/// Copies from a device are waited for together, up to so many bytes: what two threads have
/// enqueued keeps it busy while one of them wakes up.
constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;

/// Tells the items of a rank apart.
std::pair<std::uint32_t, std::int64_t> place_of(const WriteItem& item) {
  return {item.source, item.source_begin};
}

}  // namespace

StagedSource::StagedSource(const SavePlan& plan, std::vector<Tensor> tensors,
                           std::vector<Bytes> objects, StagingPool& pool,
                           std::shared_ptr<StagedBytes> bytes)
    : state_(std::in_place, std::move(tensors), std::vector<Bytes>()),
      objects_(std::move(objects)),
      pool_(pool),
      bytes_(std::move(bytes)) {
  pool_.reclaim();
  std::size_t large = 0;  // blocks
  std::uint64_t small = 0;
  for (const WriteItem& item : plan) {
    if (item.kind != WriteItem::Kind::kTensor || item.nbytes == 0) continue;
    by_place_.push_back(items_.size());
    items_.push_back({&item});
    bytes_->total += item.nbytes;
    if (item.nbytes > kSmallItem)
      large += blocks_for(item.nbytes);
    else
      small += item.nbytes;
    const Device device = state_->device_of(item);
    if (device.kind != Device::Kind::kCpu) {
      pool_.lock_pages_for(device);
      has_devices_ = true;
    }
  }
  copies_first_ = large + blocks_for(small) <= pool_.capacity();
  needed_ = items_.size();
  std::ranges::sort(by_place_, {},
                    [&](std::size_t index) { return place_of(*items_[index].item); });
}

StagedSource::~StagedSource() {
  for (Block& block : blocks_) {
    if (block.memory != nullptr) give_back(block);
  }
}

void StagedSource::stage(int threads) noexcept {
  const int workers = std::max(threads, has_devices_ ? 2 : 1);
  try {
    parallel_for(static_cast<std::size_t>(workers), workers, [&](std::size_t) { copy_all(); });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    fail(current_error());
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return direct_ == 0 && (needed_ == 0 || failure_); });
  state_.reset();
}

void StagedSource::finish() {
  const std::lock_guard lock(mutex_);
  fail({ErrorCode::kInvalidArgument, "the strategy asks for an item after it has ended"});
}

void StagedSource::cancel() {
  const std::lock_guard lock(mutex_);
  fail({ErrorCode::kCancelled, "the save was cancelled"});
}

void StagedSource::fail(CheckpointError reason) {
  if (!failure_) failure_ = std::move(reason);
  changed_.notify_all();
}

StagedSource::Staged StagedSource::staged() const {
  const std::lock_guard lock(mutex_);
  if (staged_.bytes > 0) return staged_;
  return {.time = std::chrono::steady_clock::now() - begin_};  // nothing fitted
}

void StagedSource::copy_all() {
  std::unique_lock lock(mutex_);
  begun_ = true;
  ++copying_;
  for (;;) {
    const std::vector<std::size_t> batch = take_batch(lock);
    if (batch.empty()) break;
    lock.unlock();
    const auto failure = copy(batch);
    lock.lock();
    for (const std::size_t index : batch) {
      Item& item = items_[index];
      if (failure) {
        for (const Piece& piece : item.pieces) drop(piece.block);
        item.pieces.clear();
        item.step = Step::kWaiting;
        ++needed_;
        continue;
      }
      item.step = Step::kStaged;
      staged_.bytes += item.item->nbytes;
      staged_.time = std::chrono::steady_clock::now() - begin_;
      bytes_->released += item.item->nbytes;
    }
    if (failure) {
      fail(*failure);
      break;
    }
    changed_.notify_all();
  }
  --copying_;
  changed_.notify_all();
}

bool StagedSource::find_next() {
  while (cursor_ < items_.size() && (items_[cursor_].step != Step::kWaiting ||
                                     blocks_for(items_[cursor_].item->nbytes) > pool_.capacity()))
    ++cursor_;
  return !failure_ && cursor_ < items_.size();
}

std::vector<std::size_t> StagedSource::take_batch(std::unique_lock<std::mutex>& lock) {
  while (find_next() && !has_room(items_[cursor_].item->nbytes)) {
    --copying_;
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return failure_ || cursor_ == items_.size() || items_[cursor_].step != Step::kWaiting ||
             has_room(items_[cursor_].item->nbytes);
    });
    ++copying_;
  }
  std::vector<std::size_t> batch;
  std::uint64_t bytes = 0;
  while (find_next() && has_room(items_[cursor_].item->nbytes)) {
    const WriteItem& item = *items_[cursor_].item;
    const Device device = state_->device_of(item);
    if (!batch.empty() && (bytes + item.nbytes > kBatchBytes ||
                           state_->device_of(*items_[batch.front()].item) != device))
      break;
    const auto taken = take_next();
    if (!taken) break;
    batch.push_back(*taken);
    bytes += item.nbytes;
    if (device.kind == Device::Kind::kCpu) break;
  }
  return batch;
}

std::optional<std::size_t> StagedSource::take_next() {
  const std::size_t index = cursor_++;
  try {
    reserve(items_[index]);
  } catch (const std::bad_alloc&) {
    return std::nullopt;  // what is not copied is written from the state, before stage() returns
  } catch (const CheckpointError& error) {
    fail(error);
    return std::nullopt;
  }
  items_[index].step = Step::kCopying;
  --needed_;
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
  give_back(block);
  block.memory = nullptr;
  unused_.push_back(index);
}

void StagedSource::give_back(Block& block) {
  if (block.free_when.empty())
    pool_.release(block.memory);
  else
    pool_.abandon(block.memory, std::exchange(block.free_when, {}));
}

std::optional<CheckpointError> StagedSource::copy(std::span<const std::size_t> batch) try {
  const Item& first = items_[batch.front()];
  if (state_->device_of(*first.item).kind == Device::Kind::kCpu)
    copy_from_cpu(first);
  else
    copy_from_device(batch);
  return std::nullopt;
} catch (...) {
  const CheckpointError error = current_error();
  return CheckpointError(
      error.code(),
      "the state could not be copied for the save in the background: " + error.message(),
      error.context());
}

void StagedSource::copy_from_cpu(const Item& item) {
  std::size_t piece = 0;
  std::size_t filled = 0;
  std::byte* memory = nullptr;
  state_->tensor(*item.item, [&](ByteView part) {
    while (!part.empty()) {
      if (filled == 0) memory = memory_of(item.pieces[piece]);
      const std::size_t count = std::min(part.size(), item.pieces[piece].length - filled);
      streaming_copy(memory + filled, part.data(), count);
      part = part.subspan(count);
      filled += count;
      if (filled == item.pieces[piece].length) {
        ++piece;
        filled = 0;
      }
    }
  });
}

void StagedSource::copy_from_device(std::span<const std::size_t> batch) {
  PendingCopies copies = state_->copies_from(*items_[batch.front()].item);
  try {
    for (const std::size_t index : batch) {
      const Item& item = items_[index];
      std::uint64_t begin = 0;
      for (const Piece& piece : item.pieces) {
        state_->add(copies, *item.item, begin, begin + piece.length, memory_of(piece));
        begin += piece.length;
      }
    }
    copies.enqueued();
    copies.wait();
  } catch (...) {
    if (const auto free_when = copies.settle()) {
      const std::lock_guard lock(mutex_);
      for (const std::size_t index : batch) {
        for (const Piece& piece : items_[index].pieces)
          blocks_[piece.block].free_when.push_back(free_when);
      }
    }
    throw;
  }
}

StagedSource::Item& StagedSource::entry_of(const WriteItem& item) {
  const auto found =
      std::ranges::lower_bound(by_place_, place_of(item), {},
                               [&](std::size_t index) { return place_of(*items_[index].item); });
  if (found == by_place_.end() || place_of(*items_[*found].item) != place_of(item))
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the strategy asks for an item that is not in its plan",
                          {.key = item.key});
  return items_[*found];
}

void StagedSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  if (item.nbytes == 0) return;
  Item& entry = entry_of(item);
  const auto counted = [&](ByteView part) {
    sink(part);
    bytes_->written += part.size();
  };
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !writer_must_wait(entry); });
  if (entry.step == Step::kDirect || entry.step == Step::kDone) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the strategy asks for the same item twice; its bytes are delivered once",
                          {.key = item.key});
  }
  if (entry.step == Step::kStaged) {
    entry.step = Step::kDone;
    lock.unlock();
    return write_staged(entry.pieces, counted);
  }
  require_state(item);
  entry.step = Step::kDirect;
  --needed_;
  ++direct_;
  lock.unlock();
  try {
    state_->tensor(item, [&](ByteView part) {
      {
        const std::lock_guard again(mutex_);
        require_state(item);
      }
      counted(part);
    });
  } catch (...) {
    finish_direct(entry);
    throw;
  }
  bytes_->released += item.nbytes;
  finish_direct(entry);
}

/// Throws if the state must not be read any more.
void StagedSource::require_state(const WriteItem& item) const {
  if (failure_) throw CheckpointError(*failure_).with({.key = item.key});
}

void StagedSource::finish_direct(Item& entry) {
  const std::lock_guard lock(mutex_);
  entry.step = Step::kDone;
  --direct_;
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
