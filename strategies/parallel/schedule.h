#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dckpt {

/// One rank's transfers, in rounds, when ranks exchange the data that they have read.
struct ExchangeSchedule {
  struct Transfer {
    std::uint32_t round = 0;
    std::uint32_t message = 0;
    std::uint32_t peer = 0;    ///< the receiver, or the sender of an unpacked message
    std::uint64_t offset = 0;  ///< offset in the buffer
    std::uint64_t bytes = 0;
  };

  std::uint32_t rounds = 0;
  std::vector<Transfer> packed;    ///< by round; contiguous in each buffer
  std::vector<Transfer> unpacked;  ///< by round
};

/// A message that one rank sends to others.
struct ScheduledMessage {
  std::uint32_t id = 0;
  std::vector<std::uint32_t> to;  ///< other ranks, ascending
  std::uint64_t bytes = 0;
};

/// Assigns messages to rounds so that no rank holds more than a budget of them at a time: each rank
/// packs one buffer per receiver, and it packs, and unpacks, at most `budget` bytes in a round. A
/// larger message has a round for itself. Ranks that add the same messages in the same order get
/// schedules that fit together.
class ScheduleBuilder {
 public:
  ScheduleBuilder(std::uint32_t ranks, std::uint32_t rank, std::uint64_t budget);

  /// Adds a message that `from` can pack from the round `not_before` on. Returns the last round in
  /// which it does.
  std::uint32_t add(std::uint32_t from, const ScheduledMessage& message,
                    std::uint32_t not_before = 0);

  /// Adds messages that `from` packs all in one round, which is returned. Their `held` source bytes
  /// stay in memory for that round only. A rank holds at most half a budget of these in a round, or
  /// a single larger one.
  std::uint32_t add_held(std::uint32_t from, std::span<const ScheduledMessage> messages,
                         std::uint64_t held);

  ExchangeSchedule finish();

 private:
  /// The bytes that a rank sends, or receives, in each round so far.
  struct Load {
    std::vector<std::uint64_t> bytes;
    std::uint32_t first_open = 0;  ///< rounds before it are full, or nearly
  };

  static bool has_room(const Load& load, std::uint32_t round, std::uint64_t bytes,
                       std::uint64_t budget);
  void put(Load& load, std::uint32_t round, std::uint64_t bytes, std::uint64_t budget);
  std::uint32_t add_for_one(std::uint32_t from, std::uint32_t to, const ScheduledMessage& message,
                            std::uint32_t not_before);
  void place_for_one(std::uint32_t from, std::uint32_t to, const ScheduledMessage& message,
                     std::uint32_t round);
  void lay_out(std::vector<ExchangeSchedule::Transfer>& transfers) const;

  std::uint32_t rank_;
  std::uint64_t budget_;
  std::vector<Load> sent_;  // by rank, over all its buffers
  std::vector<Load> received_;
  std::vector<Load> held_;
  ExchangeSchedule schedule_;
};

}  // namespace dckpt
