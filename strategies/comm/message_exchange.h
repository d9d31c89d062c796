#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "strategies/comm/last_words.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/phase_label.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/rank_group.h"

namespace dckpt {

/// Exchanges buffers between the ranks of a group, each preceded by a header that tells its call
/// and its content. Used by one thread at a time.
class MessageExchange {
 public:
  struct Sending {
    int to;
    ByteView bytes;
    Bytes* whole = nullptr;  ///< the buffer that holds all the bytes, if it may be given away
  };
  struct Receiving {
    int from;
    Bytes bytes{};  ///< memory to reuse, replaced by the received bytes
  };
  struct Announced {
    int to;
    std::uint64_t size;
    std::uint64_t content;  ///< see MessageHeader
    ByteView inlined{};
  };

  explicit MessageExchange(RankGroup group) : group_(std::move(group)), last_words_(group_) {}
  MessageExchange(const MessageExchange&) = delete;
  MessageExchange& operator=(const MessageExchange&) = delete;

  const RankGroup& group() const noexcept { return group_; }
  const CurrentCall& call() const noexcept { return call_; }
  CheckpointError misuse(const std::string& message) const;

  /// Starts the clock of one operation. After an error in it, it is unknown which messages are
  /// still in transit.
  template <typename Body>
  std::invoke_result_t<Body> run(Operation operation, Body&& body) {
    if (failure_) {
      throw CheckpointError(failure_->code(),
                            PhaseLabel::before(str_format(
                                "{} cannot be completed after an earlier failure: {}",
                                name_of(operation), PhaseLabel::removed(failure_->message()))),
                            failure_->context(), failure_->cause());
    }
    call_.operation = operation;
    ++call_.number;
    call_.deadline = Deadline::after(group_.timeout);
    call_.announced.clear();
    call_.talking_to.clear();
    try {
      return body();
    } catch (...) {
      failure_ = current_error();
      failure_ = last_words_.give_up(*failure_, call_);
      throw CheckpointError(*failure_);
    }
  }

  /// Sends the headers of buffers to ranks, and returns the headers of others.
  std::vector<MessageHeader> announce(std::span<const Announced> to, std::span<const int> from);
  /// Exchanges the headers first, then the buffers that they do not hold.
  void exchange(std::span<const Sending> sendings, std::span<Receiving> receivings);

  /// Adds the operation to errors of `work`.
  template <typename Work>
  void with_operation(Work&& work) const {
    try {
      work();
    } catch (const CheckpointError& error) {
      throw CheckpointError(error.code(),
                            str_format("{}: {}", name_of(call_.operation), error.message()),
                            error.context(), error.cause());
    }
  }

 private:
  void move(std::span<const Transport::Outgoing> outgoing,
            std::span<const Transport::Incoming> incoming);
  /// Throws the error of a rank that has said farewell in place of its header.
  void hear(int from, const MessageHeader& header);
  void check(int from, const MessageHeader& header);
  void make_room(Receiving& receiving, const MessageHeader& header) const;
  CheckpointError garbled(int from) const;

  const RankGroup group_;
  LastWords last_words_;
  CurrentCall call_{};
  std::optional<CheckpointError> failure_{};  ///< the reason why it is unusable
};

}  // namespace dckpt
