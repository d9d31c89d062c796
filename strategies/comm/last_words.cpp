#include "strategies/comm/last_words.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/ranks_text.h"
#include "strategies/comm/phase_label.h"

namespace dckpt {
namespace {

// Long enough for a message between ranks that both wait for it.
constexpr std::chrono::milliseconds kShort{5};
// Long enough for one that a busy machine delays.
constexpr std::chrono::milliseconds kSecondLook{200};

std::string answer_text(const std::string& silent) {
  return silent.empty() ? "all ranks answer, so none is gone"
                        : str_format("no answer from {}", silent);
}

}  // namespace

CheckpointError LastWords::give_up(const CheckpointError& failure, const CurrentCall& call) {
  const std::optional<CheckpointError> told =
      failure.code() == ErrorCode::kInvalidArgument || failure.code() == ErrorCode::kInternal
          ? find_farewell(call)
          : std::nullopt;
  const CheckpointError& error = told ? *told : failure;
  std::string message = error.message();
  // Threads of one process learn from their network why another one has ended.
  const bool is_told = group_.transport->hands_over() && error.cause() != nullptr;
  const bool late = error.code() == ErrorCode::kUnavailable && call.deadline.passed();
  try {
    if (group_.size() > 2 && !is_told) {
      if (!asked_by_.empty() || (late && !heard_)) {
        message += about_silent_ranks(message);
      } else {
        tell_others(error, call);
      }
    }
  } catch (const std::exception&) {  // there is no memory for it
  }
  return {error.code(), PhaseLabel::before(message), error.context(), error.cause()};
}

CheckpointError LastWords::has_given_up(int from, const Farewell& farewell, Operation operation) {
  Farewell heard = farewell;
  if (heard.kind != Farewell::Kind::kFailed || heard.origin < 0)
    heard.origin = group_.job_rank(from);
  if (heard.kind == Farewell::Kind::kAsks) {
    asked_by_.insert(from);
    heard.text = "it has waited too long";
  } else {
    if (heard.kind == Farewell::Kind::kSilent) heard.text = answer_text(heard.text);
    heard_ = heard;
  }
  return {ErrorCode::kUnavailable,
          str_format("{}: rank {} has given up: {}", name_of(operation), heard.origin, heard.text)};
}

std::string LastWords::about_silent_ranks(const std::string& message) {
  const std::optional<Farewell> answer = ask_who_is_silent();
  if (!answer || answer->kind == Farewell::Kind::kAsks) return "";
  const std::string& text = answer->text;
  if (answer->kind == Farewell::Kind::kFailed)
    return str_format("; rank {} has given up: {}", answer->origin, text);
  return !text.empty() && message.ends_with(" for " + text) ? "" : "; " + answer_text(text);
}

std::chrono::milliseconds LastWords::patience() const {
  return std::clamp<std::chrono::milliseconds>(group_.timeout / 8, std::chrono::milliseconds(1),
                                               std::chrono::seconds(10));
}

std::optional<Farewell> LastWords::ask_who_is_silent() {
  constexpr int kMostAsked = 3;
  constexpr int kMostOnTheWay = 8;  // messages sent before the answer
  std::set<int> silent;
  for (int first = 0; first < std::min(group_.size(), kMostAsked); ++first) {
    if (first == group_.rank) return hear_who_is_silent(std::move(silent));
    const MessageHeader question = header_of({Farewell::Kind::kAsks, ""});
    MessageHeader answer{};
    const Transport::Outgoing out{group_.job_rank(first), std::as_bytes(std::span(&question, 1))};
    const Transport::Incoming in{group_.job_rank(first),
                                 std::as_writable_bytes(std::span(&answer, 1))};
    const Deadline deadline = Deadline::after((7 + 5 * first) * patience());
    for (int message = 0; message < kMostOnTheWay && !deadline.passed(); ++message) {
      exchange_fails({&out, message == 0 ? 1U : 0U}, {&in, 1}, deadline);
      if (auto last = farewell_in(std::as_bytes(std::span(&answer, 1)))) return last;
    }
    if (!deadline.passed()) return std::nullopt;  // the transport has stopped working
    silent.insert(first);
  }
  return std::nullopt;
}

std::optional<Farewell> LastWords::hear_who_is_silent(std::set<int> silent) {
  const Deadline until = Deadline::after(2 * patience());
  bool all_known = true;  // the transport may have given up on a rank by itself
  std::set<int> not_heard;
  const auto asks = [&](int other, const Deadline& deadline) {
    MessageHeader question{};
    const Transport::Incoming in{group_.job_rank(other),
                                 std::as_writable_bytes(std::span(&question, 1))};
    if (exchange_fails({}, {&in, 1}, deadline) != ErrorCode::kUnavailable) return true;
    if (!deadline.passed()) all_known = false;
    return !deadline.passed();
  };
  for (int other = 0; other < group_.size(); ++other) {
    if (other == group_.rank || silent.contains(other) || asked_by_.contains(other)) continue;
    if (!asks(other, until.passed() ? Deadline::after(kShort) : until)) not_heard.insert(other);
  }
  // Waiting for a silent rank has left no time for those after it, which may just be asking.
  const auto shares = static_cast<int>(std::max<std::size_t>(not_heard.size(), 1));
  const auto each = std::max(kShort, std::min(patience(), kSecondLook) / shares);
  for (const int other : not_heard) {
    if (!asks(other, Deadline::after(each))) silent.insert(other);
  }
  if (static_cast<int>(silent.size()) == group_.size() - 1 || (silent.empty() && !all_known))
    return std::nullopt;
  std::vector<int> ranks;
  for (const int rank : silent) ranks.push_back(group_.job_rank(rank));
  const Farewell found{Farewell::Kind::kSilent, ranks.empty() ? "" : ranks_text(ranks)};
  const MessageHeader answer = header_of(found);
  for (int other = 0; other < group_.size(); ++other) {
    if (other == group_.rank || silent.contains(other)) continue;
    const Transport::Outgoing out{group_.job_rank(other), std::as_bytes(std::span(&answer, 1))};
    exchange_fails({&out, 1}, {}, Deadline::after(patience()));
  }
  return found;
}

void LastWords::tell_others(const CheckpointError& error, const CurrentCall& call) {
  constexpr std::chrono::milliseconds kLongest{1000};
  if (group_.transport->hands_over()) return;
  const MessageHeader message =
      header_of({Farewell::Kind::kFailed, heard_ ? heard_->text : error.message(),
                 heard_ ? heard_->origin : group_.job_rank(group_.rank)});
  const ByteView bytes = std::as_bytes(std::span(&message, 1));
  std::vector<Bytes> instead;  // replacements for announced buffers
  instead.reserve(group_.members.size());
  std::vector<Transport::Outgoing> outgoing;
  for (int to = 0; to < group_.size(); ++to) {
    if (to == group_.rank || group_.job_rank(to) == error.context().rank) continue;
    ByteView one = bytes;
    if (const auto announced = call.announced.find(to); announced != call.announced.end()) {
      if (announced->second < bytes.size()) continue;  // the receiver expects fewer bytes
      instead.emplace_back(bytes.begin(), bytes.end());
      instead.back().resize(static_cast<std::size_t>(announced->second));
      one = instead.back();
    }
    outgoing.push_back({group_.job_rank(to), one});
  }
  const Deadline deadline = Deadline::after(std::min(patience(), kLongest));
  if (!exchange_fails(outgoing, {}, deadline)) return;
  // The transport may have stopped at a rank that is gone, or at one that is sending itself and
  // listens only then. It is unknown whether others have received the announcements.
  for (const auto& [to, size] : call.announced) outgoing.push_back({group_.job_rank(to), bytes});
  while (!outgoing.empty() && !deadline.passed()) {
    std::erase_if(outgoing, [&](const Transport::Outgoing& one) {
      MessageHeader ignored;
      const Transport::Incoming in{one.to, std::as_writable_bytes(std::span(&ignored, 1))};
      const Deadline soon = Deadline::after(kShort);
      const auto failure = exchange_fails({&one, 1}, {&in, 1}, soon);
      return !failure || (failure == ErrorCode::kUnavailable && !soon.passed());
    });
  }
}

std::optional<CheckpointError> LastWords::find_farewell(const CurrentCall& call) {
  const Deadline deadline = Deadline::after(10 * kShort);
  for (const int from : call.talking_to) {
    MessageHeader header{};
    const Transport::Incoming in{group_.job_rank(from),
                                 std::as_writable_bytes(std::span(&header, 1))};
    std::optional<ErrorCode> failure;
    do {
      failure = exchange_fails({}, {&in, 1}, deadline);
      if (const auto last = farewell_in(std::as_bytes(std::span(&header, 1))))
        return has_given_up(from, *last, call.operation);
    } while (failure == ErrorCode::kInternal && !deadline.passed());  // a message of another length
  }
  return std::nullopt;
}

std::optional<ErrorCode> LastWords::exchange_fails(std::span<const Transport::Outgoing> outgoing,
                                                   std::span<const Transport::Incoming> incoming,
                                                   const Deadline& deadline) {
  try {
    group_.transport->exchange(outgoing, incoming, deadline);
    return std::nullopt;
  } catch (...) {
    return current_error().code();
  }
}

}  // namespace dckpt
