#include "strategies/parallel/schedule.h"

#include <algorithm>

namespace dckpt {

using Transfer = ExchangeSchedule::Transfer;

ScheduleBuilder::ScheduleBuilder(std::uint32_t ranks, std::uint32_t rank, Exchange how, std::uint64_t budget)
    : rank_(rank), how_(how), budget_(how == Exchange::kGather ? budget / ranks : budget), sent_(ranks), received_(ranks) {}

void ScheduleBuilder::add(std::uint32_t shipment, std::uint32_t from, std::span<const std::uint32_t> to, std::uint64_t bytes) {
  if (how_ != Exchange::kAllToAll) return add_for_all(shipment, from, to, bytes);
  // Every sender begins with the ranks after its own: if all ranks have much the same to send, they fill each round evenly.
  const auto after = std::upper_bound(to.begin(), to.end(), from);
  for (auto it = after; it != to.end(); ++it) add_for_one(shipment, from, *it, bytes);
  for (auto it = to.begin(); it != after; ++it) add_for_one(shipment, from, *it, bytes);
}

void ScheduleBuilder::add_for_one(std::uint32_t shipment, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
  std::uint32_t round = std::max(sent_[from].first_open, received_[to].first_open);
  while (!has_room(sent_[from], round, bytes) || !has_room(received_[to], round, bytes)) ++round;
  put(sent_[from], round, bytes);
  put(received_[to], round, bytes);
  if (from == rank_) schedule_.packed.push_back({round, shipment, to, 0, bytes});
  if (to == rank_) schedule_.unpacked.push_back({round, shipment, from, 0, bytes});
}

void ScheduleBuilder::add_for_all(std::uint32_t shipment, std::uint32_t from, std::span<const std::uint32_t> to, std::uint64_t bytes) {
  std::uint32_t round = sent_[from].first_open;
  while (!has_room(sent_[from], round, bytes)) ++round;
  const Transfer transfer{round, shipment, from, put(sent_[from], round, bytes), bytes};
  if (how_ == Exchange::kBroadcast && transfer.offset == 0) schedule_.broadcasts.emplace_back(round, from);
  if (from == rank_) schedule_.packed.push_back(transfer);
  if (std::binary_search(to.begin(), to.end(), rank_)) schedule_.unpacked.push_back(transfer);
}

ExchangeSchedule ScheduleBuilder::finish() {
  for (std::vector<Transfer>* const transfers : {&schedule_.packed, &schedule_.unpacked}) {
    std::stable_sort(transfers->begin(), transfers->end(), [](const Transfer& a, const Transfer& b) { return a.round < b.round; });
    if (how_ == Exchange::kAllToAll) lay_out(*transfers);
  }
  std::sort(schedule_.broadcasts.begin(), schedule_.broadcasts.end());
  schedule_.broadcasts.erase(std::unique(schedule_.broadcasts.begin(), schedule_.broadcasts.end()), schedule_.broadcasts.end());
  return std::move(schedule_);
}

/// In the buffer between two ranks, shipments lie in the order in which they were added: both find the same offsets.
void ScheduleBuilder::lay_out(std::vector<Transfer>& transfers) const {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> filled(sent_.size());  // by peer: round, bytes in it
  for (Transfer& transfer : transfers) {
    auto& [round, bytes] = filled[transfer.peer];
    if (round != transfer.round) bytes = 0;
    round = transfer.round;
    transfer.offset = bytes;
    bytes += transfer.bytes;
  }
}

bool ScheduleBuilder::has_room(const Load& load, std::uint32_t round, std::uint64_t bytes) const {
  if (round >= load.bytes.size() || load.bytes[round] == 0) return true;
  return load.bytes[round] <= budget_ && bytes <= budget_ - load.bytes[round];
}

/// Returns how much was there.
std::uint64_t ScheduleBuilder::put(Load& load, std::uint32_t round, std::uint64_t bytes) {
  if (load.bytes.size() <= round) load.bytes.resize(round + 1);
  const std::uint64_t before = load.bytes[round];
  load.bytes[round] += bytes;
  while (load.first_open < load.bytes.size() && load.bytes[load.first_open] >= budget_ - budget_ / 8) ++load.first_open;
  schedule_.rounds = std::max(schedule_.rounds, round + 1);
  return before;
}

}  // namespace dckpt
