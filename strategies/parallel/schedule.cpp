#include "strategies/parallel/schedule.h"

#include <algorithm>
#include <map>
#include <utility>

namespace dckpt {

using Transfer = ExchangeSchedule::Transfer;

ScheduleBuilder::ScheduleBuilder(std::uint32_t ranks, std::uint32_t rank, std::uint64_t budget)
    : rank_(rank), budget_(budget), sent_(ranks), received_(ranks), held_(ranks) {}

std::uint32_t ScheduleBuilder::add(std::uint32_t from, const ScheduledMessage& message,
                                   std::uint32_t not_before) {
  std::uint32_t last = not_before;
  // Every sender begins with the ranks after its own: if all ranks have much the same to send, they
  // fill each round evenly.
  const auto after = std::upper_bound(message.to.begin(), message.to.end(), from);
  for (auto it = after; it != message.to.end(); ++it)
    last = std::max(last, add_for_one(from, *it, message, not_before));
  for (auto it = message.to.begin(); it != after; ++it)
    last = std::max(last, add_for_one(from, *it, message, not_before));
  return last;
}

std::uint32_t ScheduleBuilder::add_held(std::uint32_t from,
                                        std::span<const ScheduledMessage> messages,
                                        std::uint64_t held) {
  std::uint64_t sent = 0;
  std::map<std::uint32_t, std::uint64_t> received;
  for (const ScheduledMessage& message : messages) {
    sent += message.bytes * message.to.size();
    for (const std::uint32_t to : message.to) received[to] += message.bytes;
  }
  std::uint32_t round = held_[from].first_open;
  const auto fits = [&] {
    return has_room(held_[from], round, held, budget_ / 2) &&
           has_room(sent_[from], round, sent, budget_) &&
           std::all_of(received.begin(), received.end(), [&](const auto& entry) {
             return has_room(received_[entry.first], round, entry.second, budget_);
           });
  };
  while (!fits()) ++round;
  put(held_[from], round, held, budget_ / 2);
  for (const ScheduledMessage& message : messages) {
    for (const std::uint32_t to : message.to) place_for_one(from, to, message, round);
  }
  return round;
}

std::uint32_t ScheduleBuilder::add_for_one(std::uint32_t from, std::uint32_t to,
                                           const ScheduledMessage& message,
                                           std::uint32_t not_before) {
  std::uint32_t round = std::max({sent_[from].first_open, received_[to].first_open, not_before});
  while (!has_room(sent_[from], round, message.bytes, budget_) ||
         !has_room(received_[to], round, message.bytes, budget_))
    ++round;
  place_for_one(from, to, message, round);
  return round;
}

void ScheduleBuilder::place_for_one(std::uint32_t from, std::uint32_t to,
                                    const ScheduledMessage& message, std::uint32_t round) {
  put(sent_[from], round, message.bytes, budget_);
  put(received_[to], round, message.bytes, budget_);
  if (from == rank_) schedule_.packed.push_back({round, message.id, to, 0, message.bytes});
  if (to == rank_) schedule_.unpacked.push_back({round, message.id, from, 0, message.bytes});
}

ExchangeSchedule ScheduleBuilder::finish() {
  for (std::vector<Transfer>* const transfers : {&schedule_.packed, &schedule_.unpacked}) {
    std::stable_sort(transfers->begin(), transfers->end(),
                     [](const Transfer& a, const Transfer& b) { return a.round < b.round; });
    lay_out(*transfers);
  }
  return std::move(schedule_);
}

/// Sets the offsets. In the buffer between two ranks, messages are in the order in which they were
/// added, so both find the same offsets.
void ScheduleBuilder::lay_out(std::vector<Transfer>& transfers) const {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> filled(
      sent_.size());  // by peer: round, bytes in it
  for (Transfer& transfer : transfers) {
    auto& [round, bytes] = filled[transfer.peer];
    if (round != transfer.round) bytes = 0;
    round = transfer.round;
    transfer.offset = bytes;
    bytes += transfer.bytes;
  }
}

bool ScheduleBuilder::has_room(const Load& load, std::uint32_t round, std::uint64_t bytes,
                               std::uint64_t budget) {
  if (round >= load.bytes.size() || load.bytes[round] == 0) return true;
  return load.bytes[round] <= budget && bytes <= budget - load.bytes[round];
}

void ScheduleBuilder::put(Load& load, std::uint32_t round, std::uint64_t bytes,
                          std::uint64_t budget) {
  if (load.bytes.size() <= round) load.bytes.resize(round + 1);
  load.bytes[round] += bytes;
  while (load.first_open < load.bytes.size() && load.bytes[load.first_open] >= budget - budget / 8)
    ++load.first_open;
  schedule_.rounds = std::max(schedule_.rounds, round + 1);
}

}  // namespace dckpt
