#include "strategies/tensor_io/state_copier.h"

#include <algorithm>
#include <new>
#include <utility>

#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"
#include "strategies/tensor_io/streaming_copy.h"

namespace dckpt {
namespace {

/// The maximum number of bytes of device copies that share one wait: copies of two threads keep the
/// device busy while one of them wakes up.
constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;

/// Calls memory_of(piece) for the pieces of the part.
template <typename MemoryOf>
void copy_from_cpu(StateSource& state, const StagedPart& part, const MemoryOf& memory_of) {
  std::size_t piece = 0;
  std::size_t filled = 0;
  std::byte* memory = nullptr;
  state.read(*part.item, part.begin, part.end, [&](ByteView bytes) {
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

}  // namespace

StateCopier::StateCopier(const SavePlan& plan, std::vector<Tensor> tensors, StagingPool& pool,
                         std::shared_ptr<StagedBytes> bytes)
    : state_(std::in_place, std::move(tensors), std::vector<Bytes>()),
      bytes_(std::move(bytes)),
      parts_(plan, ItemSource::kPartBytes),
      blocks_(pool) {
  pool.reclaim();
  for (const WriteItem& item : plan) {
    if (item.kind != WriteItem::Kind::kTensor || item.nbytes == 0) continue;
    bytes_->total += item.nbytes;
    const Device device = state_->device_of(item);
    if (device.kind != Device::Kind::kCpu) {
      if (device.kind != Device::Kind::kCallbacks) pool.lock_pages_for(device);
      has_devices_ = true;
    }
  }
  copies_first_ = blocks_.fit_together(parts_.sizes());
  needed_ = parts_.size();
}

void StateCopier::stage(int threads) noexcept {
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

void StateCopier::finish() {
  const std::lock_guard lock(mutex_);
  fail(ErrorCode::kInvalidArgument, "the strategy asks for an item after it has ended");
}

void StateCopier::cancel() {
  const std::lock_guard lock(mutex_);
  fail(ErrorCode::kCancelled, "the save was cancelled");
}

void StateCopier::fail(ErrorCode code, const char* reason) noexcept {
  try {
    fail({code, reason});
  } catch (...) {  // no memory for the reason
    fail(current_error());
  }
}

void StateCopier::fail(CheckpointError reason) noexcept {
  if (!failure_) failure_ = std::move(reason);
  changed_.notify_all();
}

StateCopier::Staged StateCopier::staged() const {
  const std::lock_guard lock(mutex_);
  if (staged_.bytes > 0) return staged_;
  return {.time = std::chrono::steady_clock::now() - begin_};  // nothing was copied
}

void StateCopier::copy_all() {
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
    auto failure = copy(batch);
    lock.lock();
    for (const std::size_t index : batch) {
      Part& part = parts_[index];
      if (failure) {
        for (const Piece& piece : part.pieces) blocks_.drop(piece);
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
      fail(std::move(*failure));
      break;
    }
    // Otherwise writers wait for all copies: waking them for each would cost more than a small
    // copy.
    if (!copies_first_) changed_.notify_all();
  }
  --copying_;
  changed_.notify_all();
}

bool StateCopier::find_next() {
  while (cursor_ < parts_.size() &&
         (parts_[cursor_].step != Step::kWaiting || !blocks_.could_have(parts_[cursor_].nbytes())))
    ++cursor_;
  return !failure_ && cursor_ < parts_.size();
}

std::vector<std::size_t> StateCopier::take_batch(std::unique_lock<std::mutex>& lock) {
  while (find_next() && !blocks_.has_room(parts_[cursor_].nbytes())) {
    --copying_;
    changed_.notify_all();
    changed_.wait(lock, [&] {
      return failure_ || cursor_ == parts_.size() || parts_[cursor_].step != Step::kWaiting ||
             blocks_.has_room(parts_[cursor_].nbytes());
    });
    ++copying_;
  }
  std::vector<std::size_t> batch;
  std::uint64_t bytes = 0;
  while (find_next() && blocks_.has_room(parts_[cursor_].nbytes())) {
    const std::uint64_t nbytes = parts_[cursor_].nbytes();
    const Device device = state_->device_of(*parts_[cursor_].item);
    if (!batch.empty() &&
        (bytes + nbytes > kBatchBytes || state_->device_of(*parts_[batch.front()].item) != device))
      break;
    batch.push_back(cursor_);  // first: the batch must have every part that is taken
    if (!take_next()) {
      batch.pop_back();
      break;
    }
    bytes += nbytes;
    if (device.kind == Device::Kind::kCpu) break;
  }
  return batch;
}

bool StateCopier::take_next() {
  Part& part = parts_[cursor_++];
  try {
    part.pieces = blocks_.reserve(static_cast<std::size_t>(part.nbytes()));
  } catch (const std::bad_alloc&) {
    return false;  // a part that is not copied is written from the state, before stage() returns
  } catch (const CheckpointError& error) {
    fail(error);
    return false;
  }
  part.step = Step::kCopying;
  --needed_;
  return true;
}

std::optional<CheckpointError> StateCopier::copy(std::span<const std::size_t> batch) try {
  const Part& first = parts_[batch.front()];
  if (state_->device_of(*first.item).kind == Device::Kind::kCpu)
    copy_from_cpu(*state_, first, [this](const Piece& piece) { return memory_of(piece); });
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

void StateCopier::copy_from_device(std::span<const std::size_t> batch) {
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
        for (const Piece& piece : parts_[index].pieces) blocks_.keep_until(piece, free_when);
      }
    }
    throw;
  }
}

std::byte* StateCopier::memory_of(const Piece& piece) {
  const std::lock_guard lock(mutex_);  // other threads may add blocks
  return blocks_.memory_of(piece);
}

}  // namespace dckpt
