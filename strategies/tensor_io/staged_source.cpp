#include "strategies/tensor_io/staged_source.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"
#include "strategies/tensor_io/streaming_copy.h"

namespace dckpt {
namespace {

constexpr std::size_t kSmallPart =
    StagingPool::kBlockBytes / 2;  // up to this size parts share blocks

std::size_t blocks_for(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + StagingPool::kBlockBytes - 1) /
                                  StagingPool::kBlockBytes);
}

/// Copies from a device are waited for together, up to so many bytes: what two threads have
/// enqueued keeps it busy while one of them wakes up.
constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;

/// Tells the parts of a rank's items apart.
std::tuple<std::uint32_t, std::int64_t, std::uint64_t> place_of(const WriteItem& item,
                                                                std::uint64_t begin) {
  return {item.source, item.source_begin, begin};
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
    bytes_->total += item.nbytes;
    for (std::uint64_t begin = 0; begin < item.nbytes; begin += kPartBytes) {
      by_place_.push_back(parts_.size());
      parts_.push_back({&item, begin, std::min(item.nbytes, begin + kPartBytes)});
      const Part& part = parts_.back();
      if (part.nbytes() > kSmallPart)
        large += blocks_for(part.nbytes());
      else
        small += part.nbytes();
    }
    const Device device = state_->device_of(item);
    if (device.kind != Device::Kind::kCpu) {
      pool_.lock_pages_for(device);
      has_devices_ = true;
    }
  }
  copies_first_ = large + blocks_for(small) <= pool_.capacity();
  needed_ = parts_.size();
  std::ranges::sort(by_place_, {}, [&](std::size_t index) {
    return place_of(*parts_[index].item, parts_[index].begin);
  });
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
    std::vector<std::size_t> batch;
    try {
      batch = take_batch(lock);
    } catch (...) {
      fail(current_error());
    }
    if (batch.empty()) break;
    lock.unlock();
    const auto failure = copy(batch);
    lock.lock();
    for (const std::size_t index : batch) {
      Part& part = parts_[index];
      if (failure) {
        for (const Piece& piece : part.pieces) drop(piece.block);
        part.pieces.clear();
        part.step = Step::kWaiting;
        ++needed_;
        continue;
      }
      part.step = Step::kStaged;
      staged_.bytes += part.nbytes();
      staged_.time = std::chrono::steady_clock::now() - begin_;
      bytes_->released += part.nbytes();
    }
    if (failure) {
      fail(*failure);
      break;
    }
    // Otherwise writers wait for all copies: waking them for each would cost more than a small one.
    if (!copies_first_) changed_.notify_all();
  }
  --copying_;
  changed_.notify_all();
}

bool StagedSource::find_next() {
  while (cursor_ < parts_.size() && (parts_[cursor_].step != Step::kWaiting ||
                                     blocks_for(parts_[cursor_].nbytes()) > pool_.capacity()))
    ++cursor_;
  return !failure_ && cursor_ < parts_.size();
}

std::vector<std::size_t> StagedSource::take_batch(std::unique_lock<std::mutex>& lock) {
  while (find_next() && !has_room(parts_[cursor_].nbytes())) {
    --copying_;
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return failure_ || cursor_ == parts_.size() || parts_[cursor_].step != Step::kWaiting ||
             has_room(parts_[cursor_].nbytes());
    });
    ++copying_;
  }
  std::vector<std::size_t> batch;
  std::uint64_t bytes = 0;
  while (find_next() && has_room(parts_[cursor_].nbytes())) {
    const std::uint64_t nbytes = parts_[cursor_].nbytes();
    const Device device = state_->device_of(*parts_[cursor_].item);
    if (!batch.empty() &&
        (bytes + nbytes > kBatchBytes || state_->device_of(*parts_[batch.front()].item) != device))
      break;
    batch.push_back(cursor_);  // first: a part that is taken must be in the batch
    if (!take_next()) {
      batch.pop_back();
      break;
    }
    bytes += nbytes;
    if (device.kind == Device::Kind::kCpu) break;
  }
  return batch;
}

bool StagedSource::take_next() {
  Part& part = parts_[cursor_++];
  try {
    reserve(part);
  } catch (const std::bad_alloc&) {
    return false;  // what is not copied is written from the state, before stage() returns
  } catch (const CheckpointError& error) {
    fail(error);
    return false;
  }
  part.step = Step::kCopying;
  --needed_;
  return true;
}

bool StagedSource::has_room(std::uint64_t bytes) const {
  if (bytes <= kSmallPart && shared_block_ && shared_fill_ + bytes <= StagingPool::kBlockBytes)
    return true;
  // The block that small items share is given up when a full one is needed and nothing else is in
  // it.
  return pool_.available() + (shared_block_ && blocks_[*shared_block_].users == 1 ? 1 : 0) >=
         blocks_for(bytes);
}

void StagedSource::reserve(Part& part) {
  const auto bytes = static_cast<std::size_t>(part.nbytes());
  const bool small = bytes <= kSmallPart;
  if (!small || !shared_block_ || shared_fill_ + bytes > StagingPool::kBlockBytes) {
    if (shared_block_ && (small || pool_.available() < blocks_for(bytes))) {
      drop(*shared_block_);
      shared_block_.reset();
    }
    const std::vector<std::byte*> taken = pool_.acquire(blocks_for(bytes));
    if (!small) {
      for (std::size_t i = 0; i < taken.size(); ++i) {
        part.pieces.push_back(
            {add_block(taken[i]), 0,
             std::min(StagingPool::kBlockBytes, bytes - i * StagingPool::kBlockBytes)});
      }
      return;
    }
    shared_block_ = add_block(taken.front());
    shared_fill_ = 0;
  }
  part.pieces.push_back({*shared_block_, shared_fill_, bytes});
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
  const Part& first = parts_[batch.front()];
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

void StagedSource::copy_from_cpu(const Part& part) {
  std::size_t piece = 0;
  std::size_t filled = 0;
  std::byte* memory = nullptr;
  state_->read(*part.item, part.begin, part.end, [&](ByteView bytes) {
    while (!bytes.empty()) {
      if (filled == 0) memory = memory_of(part.pieces[piece]);
      const std::size_t count = std::min(bytes.size(), part.pieces[piece].length - filled);
      streaming_copy(memory + filled, bytes.data(), count);
      bytes = bytes.subspan(count);
      filled += count;
      if (filled == part.pieces[piece].length) {
        ++piece;
        filled = 0;
      }
    }
  });
}

void StagedSource::copy_from_device(std::span<const std::size_t> batch) {
  PendingCopies copies = state_->copies_from(*parts_[batch.front()].item);
  try {
    for (const std::size_t index : batch) {
      const Part& part = parts_[index];
      std::uint64_t begin = part.begin;
      for (const Piece& piece : part.pieces) {
        state_->add(copies, *part.item, begin, begin + piece.length, memory_of(piece));
        begin += piece.length;
      }
    }
    copies.enqueued();
    copies.wait();
  } catch (...) {
    if (const auto free_when = copies.settle()) {
      const std::lock_guard lock(mutex_);
      for (const std::size_t index : batch) {
        for (const Piece& piece : parts_[index].pieces)
          blocks_[piece.block].free_when.push_back(free_when);
      }
    }
    throw;
  }
}

StagedSource::Part& StagedSource::part_at(const WriteItem& item, std::uint64_t begin) {
  const auto place = [&](std::size_t index) {
    return place_of(*parts_[index].item, parts_[index].begin);
  };
  const auto found = std::ranges::lower_bound(by_place_, place_of(item, begin), {}, place);
  if (found == by_place_.end() || place(*found) != place_of(item, begin))
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the strategy asks for an item that is not in its plan",
                          {.key = item.key});
  return parts_[*found];
}

void StagedSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  for (std::uint64_t begin = 0; begin < item.nbytes; begin += kPartBytes) part(item, begin, sink);
}

void StagedSource::part(const WriteItem& item, std::uint64_t begin,
                        const std::function<void(ByteView)>& sink) {
  Part& part = part_at(item, begin);
  const auto counted = [&](ByteView bytes) {
    sink(bytes);
    bytes_->written += bytes.size();
  };
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !writer_must_wait(part); });
  if (part.step == Step::kDirect || part.step == Step::kDone) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the strategy asks for the same item twice; its bytes are delivered once",
                          {.key = item.key});
  }
  if (part.step == Step::kStaged) {
    part.step = Step::kDone;
    lock.unlock();
    return write_staged(part.pieces, counted);
  }
  require_state(item);
  part.step = Step::kDirect;
  --needed_;
  ++direct_;
  lock.unlock();
  try {
    state_->read(item, part.begin, part.end, [&](ByteView bytes) {
      {
        const std::lock_guard again(mutex_);
        require_state(item);
      }
      counted(bytes);
    });
  } catch (...) {
    finish_direct(part);
    throw;
  }
  bytes_->released += part.nbytes();
  finish_direct(part);
}

/// Throws if the state must not be read any more.
void StagedSource::require_state(const WriteItem& item) const {
  if (failure_) throw CheckpointError(*failure_).with({.key = item.key});
}

void StagedSource::finish_direct(Part& part) {
  const std::lock_guard lock(mutex_);
  part.step = Step::kDone;
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
