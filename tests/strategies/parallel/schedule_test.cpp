#include "strategies/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/support/random.h"

namespace dckpt::schedule_test {
namespace {

using Transfer = ExchangeSchedule::Transfer;

/// One rank's data for others.
struct Sent {
  std::uint32_t from;
  std::vector<std::uint32_t> to;
  std::uint64_t bytes;
};

std::vector<ExchangeSchedule> schedules(std::uint32_t ranks, std::uint64_t budget,
                                        const std::vector<Sent>& messages) {
  std::vector<ExchangeSchedule> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    ScheduleBuilder builder(ranks, rank, budget);
    for (std::uint32_t i = 0; i < messages.size(); ++i)
      builder.add(messages[i].from, {i, messages[i].to, messages[i].bytes});
    all.push_back(builder.finish());
  }
  return all;
}

/// Returns one message of `bytes` bytes from every rank to every other rank.
std::vector<Sent> everyone_to_everyone(std::uint32_t ranks, std::uint64_t bytes) {
  std::vector<Sent> messages;
  for (std::uint32_t from = 0; from < ranks; ++from) {
    messages.push_back({from, {}, bytes});
    for (std::uint32_t to = 0; to < ranks; ++to) {
      if (to != from) messages.back().to.push_back(to);
    }
  }
  return messages;
}

TEST(ExchangeSchedule, RanksWithTheSameLoadFillTheRounds) {
  for (const ExchangeSchedule& schedule : schedules(8, 20, everyone_to_everyone(8, 10))) {
    EXPECT_LE(schedule.rounds, 5U) << "each sends 7 messages, two a round";
    EXPECT_EQ(schedule.packed.size(), 7U);
    EXPECT_EQ(schedule.unpacked.size(), 7U);
  }
}

TEST(ExchangeSchedule, AMessageAboveTheBudgetHasARoundForItself) {
  const auto all = schedules(2, 5, {{0, {1}, 1}, {0, {1}, 100}, {0, {1}, 1}});
  EXPECT_EQ(all[0].rounds, 2U) << "what is small goes together";
}

TEST(ExchangeSchedule, NothingToSendIsNoRound) {
  EXPECT_EQ(schedules(3, 10, {})[0].rounds, 0U);
}

TEST(ExchangeSchedule, WhatIsHeldForOthersIsPackedInOneRoundAndWithinHalfABudget) {
  testing::Random random;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(random.trace(round));
    const auto ranks = static_cast<std::uint32_t>(random.between(2, 5));
    const std::uint64_t budget = 200, limit = budget / 2;
    ScheduleBuilder builder(ranks, 0, budget);
    std::map<std::uint32_t, std::pair<std::uint64_t, int>>
        held;  // round → bytes and number of messages of rank 0
    std::map<std::uint32_t, std::uint32_t> expected;  // messages of rank 0 → round
    std::uint32_t id = 0;
    for (std::int64_t count = random.between(1, 30); count > 0; --count) {
      const auto from = static_cast<std::uint32_t>(random.between(0, ranks - 1));
      std::vector<ScheduledMessage> messages;
      std::uint64_t bytes = 0;
      for (std::uint32_t to = 0; to < ranks; ++to) {
        if (to == from || random.chance(30)) continue;
        messages.push_back({id++, {to}, static_cast<std::uint64_t>(random.between(1, 20))});
        bytes += messages.back().bytes;
      }
      const std::uint64_t all = bytes + static_cast<std::uint64_t>(random.between(1, 20));
      const std::uint32_t packed = builder.add_held(from, messages, all);
      EXPECT_GT(builder.add(1, {id++, {0}, 5}, packed + 1), packed)
          << "what came in a round is handed on later";
      if (from != 0) continue;
      held[packed].first += all;
      ++held[packed].second;
      for (const ScheduledMessage& message : messages) expected[message.id] = packed;
    }
    for (const auto& [at, load] : held)
      EXPECT_TRUE(load.first <= limit || load.second == 1)
          << load.first << " bytes in a round, limit " << limit;
    for (const Transfer& transfer : builder.finish().packed) {
      if (expected.contains(transfer.message)) {
        EXPECT_EQ(transfer.round, expected.at(transfer.message));
      }
    }
  }
}

TEST(ExchangeSchedule, FitsTogetherAndKeepsTheBudget) {
  testing::Random random;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(random.trace(round));
    const auto ranks = static_cast<std::uint32_t>(random.between(2, 6));
    const auto budget = static_cast<std::uint64_t>(random.between(10, 60));
    std::vector<Sent> messages;
    for (std::int64_t count = random.between(0, 30); count > 0; --count) {
      Sent message{static_cast<std::uint32_t>(random.between(0, ranks - 1)),
                   {},
                   static_cast<std::uint64_t>(random.between(0, 20))};
      for (std::uint32_t to = 0; to < ranks; ++to) {
        if (to != message.from && random.chance(60)) message.to.push_back(to);
      }
      if (!message.to.empty()) messages.push_back(message);
    }
    const auto all = schedules(ranks, budget, messages);
    // The data that the senders packed: (round, sender, receiver, offset) → message, and its size
    // per round.
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>, std::uint64_t>
        offsets;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Transfer>> sent, received;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(all[rank].rounds, all[0].rounds);
      EXPECT_TRUE(
          std::is_sorted(all[rank].packed.begin(), all[rank].packed.end(),
                         [](const Transfer& a, const Transfer& b) { return a.round < b.round; }));
      EXPECT_TRUE(
          std::is_sorted(all[rank].unpacked.begin(), all[rank].unpacked.end(),
                         [](const Transfer& a, const Transfer& b) { return a.round < b.round; }));
      for (const Transfer& transfer : all[rank].packed) {
        EXPECT_EQ(messages[transfer.message].from, rank);
        offsets[{transfer.round, rank, transfer.peer, transfer.message}] = transfer.offset;
        sent[{transfer.round, rank}].push_back(transfer);
      }
    }
    std::size_t deliveries = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const Transfer& transfer : all[rank].unpacked) {
        const Sent& message = messages[transfer.message];
        EXPECT_EQ(message.from, transfer.peer);
        EXPECT_TRUE(std::binary_search(message.to.begin(), message.to.end(), rank));
        const auto found = offsets.find({transfer.round, transfer.peer, rank, transfer.message});
        ASSERT_NE(found, offsets.end()) << "it is packed in the round in which it is unpacked";
        EXPECT_EQ(found->second, transfer.offset);
        received[{transfer.round, rank}].push_back(transfer);
        ++deliveries;
      }
    }
    std::size_t wanted = 0;
    for (const Sent& message : messages) wanted += message.to.size();
    EXPECT_EQ(deliveries, wanted);
    for (const auto* const side : {&sent, &received}) {
      for (const auto& [key, transfers] : *side) {
        std::uint64_t bytes = 0;
        for (const Transfer& transfer : transfers) bytes += transfer.bytes;
        const auto with_bytes =
            std::count_if(transfers.begin(), transfers.end(),
                          [](const Transfer& transfer) { return transfer.bytes > 0; });
        EXPECT_TRUE(bytes <= budget || with_bytes == 1)
            << bytes << " bytes in a round, limit " << budget;
      }
    }
  }
}

}  // namespace
}  // namespace dckpt::schedule_test
