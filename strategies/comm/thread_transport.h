#pragma once

#include <exception>
#include <memory>
#include <string>

#include "strategies/comm/point_to_point.h"

namespace dckpt {

/// Connects ranks of one process, which exchange messages through memory. Safe for concurrent use.
class ThreadNetwork {
 public:
  explicit ThreadNetwork(int size);
  ~ThreadNetwork();
  ThreadNetwork(const ThreadNetwork&) = delete;
  ThreadNetwork& operator=(const ThreadNetwork&) = delete;

  /// Returns the transport of one rank; the network must outlive it. A message goes straight from
  /// the sender's memory into the receiver's, once both have called.
  std::shared_ptr<Transport> transport(int rank);

  /// Ends the messages of `rank`. Ranks that wait for it get an error (unavailable) at once, with
  /// `how` as its message and `error` as its cause. Only the first call for a rank counts.
  void end(int rank, std::string how, std::exception_ptr error);

 private:
  friend class ThreadTransport;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dckpt
