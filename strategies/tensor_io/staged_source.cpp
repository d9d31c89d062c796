#include "strategies/tensor_io/staged_source.h"

#include <utility>

#include "mapping/base/error.h"

namespace dckpt {

StagedSource::StagedSource(const SavePlan& plan, std::vector<Tensor> tensors,
                           std::vector<Bytes> objects, StagingPool& pool,
                           std::shared_ptr<StagedBytes> bytes)
    : StateCopier(plan, std::move(tensors), pool, std::move(bytes)), objects_(std::move(objects)) {}

void StagedSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  for (std::uint64_t begin = 0; begin < item.nbytes; begin += kPartBytes) part(item, begin, sink);
}

void StagedSource::part(const WriteItem& item, std::uint64_t begin,
                        const std::function<void(ByteView)>& sink) {
  Part& part = parts_.find(item, begin);
  const auto counted = [&](ByteView bytes) {
    sink(bytes);
    bytes_->written += bytes.size();
  };
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !writer_must_wait(part); });
  if (part.step == Step::kDirect || part.step == Step::kDone) {
    throw_error(ErrorCode::kInvalidArgument, {.key = item.key},
                "the strategy asks for the same item twice; its bytes are delivered once");
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

/// Throws if the state must no longer be read.
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
  std::size_t held = 0;  // pieces before this one have been given back
  const auto give_back = [&] {
    const std::lock_guard lock(mutex_);
    blocks_.drop(pieces[held++]);
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

}  // namespace dckpt
