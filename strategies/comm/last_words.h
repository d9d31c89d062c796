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

/// The operation that a group is in, and the ranks that this rank exchanges messages with.
struct CurrentCall {
  Operation operation{};
  std::uint32_t number = 0;
  Deadline deadline{};
  std::map<int, std::uint64_t> announced{};  ///< bytes that ranks expect from this one
  std::vector<int> talking_to{};             ///< current peers
};

/// The messages that the ranks of a group exchange after a failure.
///
/// The failing rank tells the others the reason, so that they do not take this rank for the one
/// that is gone. After a timeout it is unknown which rank is gone: a rank that did not answer may
/// have waited itself. Therefore all live ranks ask the first of them, which thus learns who is
/// silent. This is best effort over the transport in its present state, whose errors are ignored.
class LastWords {
 public:
  /// `group` must outlive this object.
  explicit LastWords(const RankGroup& group) : group_(group) {}

  /// Tells or asks the others after `failure`. Returns the error with everything known by then.
  CheckpointError give_up(const CheckpointError& failure, const CurrentCall& call);
  /// Returns the error of an operation for which a rank has said goodbye.
  CheckpointError has_given_up(int from, const Farewell& farewell, Operation operation);

 private:
  std::string about_silent_ranks(const std::string& message);
  /// Returns the time for one step among ranks that began to wait at about the same time.
  std::chrono::milliseconds patience() const;
  /// Returns an empty result if the silent ranks cannot be determined.
  std::optional<Farewell> ask_who_is_silent();
  /// Finds the silent ranks and answers all others: a rank that sends anything is alive.
  std::optional<Farewell> hear_who_is_silent(std::set<int> silent);
  void tell_others(const CheckpointError& error, const CurrentCall& call);
  /// Returns the error of a farewell, if a rank that does not answer as expected has sent one.
  std::optional<CheckpointError> find_farewell(const CurrentCall& call);
  std::optional<ErrorCode> exchange_fails(std::span<const Transport::Outgoing> outgoing,
                                          std::span<const Transport::Incoming> incoming,
                                          const Deadline& deadline);

  const RankGroup& group_;
  std::set<int> asked_by_{};         ///< ranks that have waited too long
  std::optional<Farewell> heard_{};  ///< the reason why another rank has given up
};

}  // namespace dckpt
