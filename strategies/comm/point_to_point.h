#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// The time by which an operation must have finished, and its timeout for the error message.
struct Deadline {
  std::chrono::steady_clock::time_point at{};
  std::chrono::milliseconds timeout{};

  /// Returns the deadline from now; at most a year, so that the clock does not overflow.
  static Deadline after(std::chrono::milliseconds timeout) noexcept;
  bool passed() const noexcept { return std::chrono::steady_clock::now() >= at; }
};

/// Moves messages between ranks: all that a network must provide for a Communicator. Ranks are
/// numbered as in the whole job, even in a group of some of them. Used by one thread at a time.
class Transport {
 public:
  struct Outgoing {
    int to;
    ByteView bytes;
    Bytes* whole = nullptr;  ///< the buffer that holds just `bytes`, if it may be moved away
  };
  struct Incoming {
    int from;
    MutableByteView bytes;
    /// If set, replaces `bytes`: it becomes the sender's buffer. Only if hands_over().
    Bytes* whole = nullptr;
  };

  virtual ~Transport() = default;

  /// Sends and receives all of these messages at once and returns when they are done. No message is
  /// empty, and the other side passes the same length. Messages between two ranks arrive in the
  /// order of their calls. One call has any number of messages in one direction, or one in each.
  /// Throws CheckpointError (unavailable) that names the ranks waited for, at the latest at the
  /// deadline; after that nothing refers to the buffers. The transport may refuse all further
  /// messages. If it still carries those between other ranks, they use it to find out who is gone.
  virtual void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                        const Deadline& deadline) = 0;

  /// Returns whether ranks share memory, so that buffers can change hands instead of being copied:
  /// both sides then pass them as `whole`, and one call may have any number of messages both ways.
  virtual bool hands_over() const noexcept { return false; }

  /// Returns a transport for some of the ranks (ascending, at least two, including this one). Its
  /// messages do not mix with those of this transport or of others made from it, even if different
  /// threads use them. All members call this; `group` connects them over this transport until it
  /// returns.
  virtual std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) = 0;
};

/// Builds collectives from point-to-point messages, for buffers of different lengths and for any
/// group of ranks. Gathering is direct; broadcasting uses a binomial tree. A header with the
/// operation precedes every buffer, so that ranks out of step are detected. `timeout` applies to
/// each operation and must be positive. A rank that has waited that long takes at most as long
/// again, and no more than two minutes, to find out which ranks are silent. `rank` and `size` are
/// those of the whole job. Throws CheckpointError (invalid argument).
std::unique_ptr<Communicator> point_to_point(std::shared_ptr<Transport> transport, int rank,
                                             int size, std::chrono::milliseconds timeout);

}  // namespace dckpt
