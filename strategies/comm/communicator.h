#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"

namespace DCKPT_API dckpt {

enum class ReduceOp { kSum, kMin, kMax };

/// The communication of the ranks of a job while they save or load, with byte buffers of any size,
/// which may differ between ranks. Every rank calls the same operations in the same order. One
/// rank's Communicator belongs to one thread at a time. No call blocks longer than `timeout()`: if
/// a peer does not join, it throws CheckpointError (unavailable) naming the missing ranks and what
/// it waited for; the communicator is unusable after that.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual std::chrono::milliseconds timeout() const noexcept = 0;

  virtual void barrier() = 0;
  /// Returns every rank's buffer in rank order on `root`, and nothing on other ranks.
  virtual std::vector<Bytes> gather(ByteView mine, int root) = 0;
  virtual std::vector<Bytes> all_gather(ByteView mine) = 0;
  /// `root` passes one buffer per rank and the others none. Returns the rank's own buffer.
  virtual Bytes scatter(std::span<const Bytes> parts, int root) = 0;
  /// Returns what `root` passed; the argument of others is ignored.
  virtual Bytes broadcast(ByteView bytes, int root) = 0;
  /// Sends parts[r] to rank r. Returns what every rank sent here, in rank order. Move large buffers
  /// in, so that their memory can be passed on or reused.
  virtual std::vector<Bytes> all_to_all(std::vector<Bytes> parts) = 0;
  /// Reduces element by element. All ranks pass the same number of values and get the same result.
  virtual std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values,
                                               ReduceOp op) = 0;
  /// Returns a communicator of the ranks that passed the same color, in rank order. Collective over
  /// all ranks.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
};

/// Returns a communicator of a single rank, whose operations return at once.
[[nodiscard]] std::unique_ptr<Communicator> single_rank();

}  // namespace dckpt
