#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/rank_group.h"

namespace dckpt {

/// The operation that a group is in, and with whom a rank talks.
struct CurrentCall {
  Operation operation{};
  std::uint32_t number = 0;
  Deadline deadline{};
  std::map<int, std::uint64_t> announced{};  ///< bytes that ranks expect of this one
  std::vector<int> talking_to{};             ///< at present
};

/// This is what the ranks of a group say to each other after a failure.
///
/// The other ranks are told why, so that they do not take this one for the rank that is gone. After
/// a time-out it is unknown who is: a rank that did not answer may have waited itself. Therefore
/// all that live ask the first of them, which hears so who does not. All of that is as good as the
/// transport still is: whatever fails in it does not matter.
class LastWords {
 public:
  /// `group` must outlive it.
  explicit LastWords(const RankGroup& group) : group_(group) {}

  /// Tells or asks the others after `failure`, and returns what is known then.
  CheckpointError give_up(const CheckpointError& failure, const CurrentCall& call);
  /// The error of an operation for which a rank has said goodbye.
  CheckpointError has_given_up(int from, const Farewell& farewell, Operation operation);

 private:
  std::string about_silent_ranks(const std::string& message);
  /// Time for one step among ranks that have begun to wait at about the same time.
  std::chrono::milliseconds patience() const;
  /// Null if that cannot be found out.
  std::optional<Farewell> ask_who_is_silent();
  /// A rank that sends anything lives. Answers all of them.
  std::optional<Farewell> hear_who_is_silent(std::set<int> silent);
  void tell_others(const CheckpointError& error, const CurrentCall& call);
  /// A rank that does not answer as it should may have said why.
  std::optional<CheckpointError> find_farewell(const CurrentCall& call);
  std::optional<ErrorCode> exchange_fails(std::span<const Transport::Outgoing> outgoing,
                                          std::span<const Transport::Incoming> incoming,
                                          const Deadline& deadline);

  const RankGroup& group_;
  std::set<int> asked_by_{};            ///< ranks that have waited too long
  std::optional<std::string> heard_{};  ///< why another rank has given up
};

}  // namespace dckpt
