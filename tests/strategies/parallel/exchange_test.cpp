#include "strategies/parallel/exchange.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "mapping/base/phase_clock.h"
#include "strategies/comm/threads.h"

namespace dckpt::exchange_test {
namespace {

using std::chrono::steady_clock;

TEST(Exchange, WhatIsReadAtItsEndIsNoExchange) {
  constexpr std::chrono::milliseconds kReading{30};
  const ExchangeSchedule nothing_to_send;
  const ExchangeSteps steps{
      .what = "reading",
      .prepare = [&](std::uint32_t) { std::this_thread::sleep_for(kReading); },
      .pack = [](auto) {},
      .unpack = [](auto) {}};
  run_ranks(2, [&](Communicator& comm) {
    PhaseClock clock("load", "here", comm.rank());
    const auto begin = steady_clock::now();
    {
      const PhaseClock::Scope exchanging(&clock, Phase::kExchange);
      run_exchange(nothing_to_send, steps, comm);
    }
    const std::chrono::duration<double> all = steady_clock::now() - begin;
    const std::chrono::duration<double> reading = kReading;
    EXPECT_LE(clock.end(Phase::kExchange).seconds, (all - reading).count());
  });
}

}  // namespace
}  // namespace dckpt::exchange_test
