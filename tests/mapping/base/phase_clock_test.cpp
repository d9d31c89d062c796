#include "mapping/base/phase_clock.h"

#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dckpt::phase_clock_test {
namespace {

class PhaseClockTest : public ::testing::Test {
 protected:
  PhaseClockTest() {
    set_phase_sink([this](const PhaseEvent& event) {
      events_.push_back(std::string(event.call) + " " + std::string(event.target) + " " +
                        std::to_string(event.rank) + " " +
                        std::string(name_of(kPhaseNames, event.phase)) +
                        (!event.end        ? " begins"
                         : event.failed    ? " failed"
                         : event.bytes > 0 ? " ends with bytes"
                                           : " ends"));
      EXPECT_LE(event.begin, event.end.value_or(event.begin));
    });
  }
  ~PhaseClockTest() override { set_phase_sink({}); }

  std::vector<std::string> events_;
};

TEST_F(PhaseClockTest, TheSinkOfACallIsToldOfThatCallAlone) {
  std::vector<std::string> own;
  PhaseClock clock("load", "run/a", 0, [&](const PhaseEvent& event) {
    own.emplace_back(name_of(kPhaseNames, event.phase));
    throw std::runtime_error("is ignored");
  });
  PhaseClock other("load", "run/b", 0);
  { const PhaseClock::Scope opening(&clock, Phase::kOpen); }
  { const PhaseClock::Scope reading(&other, Phase::kRead); }
  clock.end(Phase::kOpen);
  other.end(Phase::kRead);
  EXPECT_EQ(own, (std::vector<std::string>{"open", "open"}));
  EXPECT_EQ(events_.size(), 4U) << "the sink of the process is told of both";
}

TEST_F(PhaseClockTest, TheSinkBeforeIsReturned) {
  bool told = false;
  const PhaseSink mine = set_phase_sink([&](const PhaseEvent&) { told = true; });
  EXPECT_TRUE(mine);
  const PhaseSink second = set_phase_sink(mine);
  second({});
  EXPECT_TRUE(told);
}

TEST_F(PhaseClockTest, APhaseBeginsAndEndsOnceHoweverManyThreadsAreInIt) {
  PhaseClock clock("save", "run/a", 3);
  std::latch inside(2);
  const auto work = [&] {
    const PhaseClock::Scope copying(&clock, Phase::kCopy);
    inside.arrive_and_wait();
  };
  {
    const std::jthread one(work);
    const std::jthread other(work);
  }
  { const PhaseClock::Scope again(&clock, Phase::kCopy); }
  const PhaseClock::Taken taken = clock.end(Phase::kCopy, 7);
  EXPECT_GT(taken.seconds, 0);
  EXPECT_EQ(taken.bytes, 7U);
  EXPECT_EQ(clock.end(Phase::kCopy, 7), PhaseClock::Taken{}) << "it has ended";
  EXPECT_EQ(clock.end(Phase::kSync, 7), PhaseClock::Taken{}) << "it has not begun";
  EXPECT_EQ(events_, (std::vector<std::string>{"save run/a 3 copy begins",
                                               "save run/a 3 copy ends with bytes"}));
}

TEST_F(PhaseClockTest, WhatIsPausedDoesNotCount) {
  using Clock = std::chrono::steady_clock;
  PhaseClock clock("save", "a", 0);
  const auto begin = Clock::now();
  std::chrono::duration<double> paused{};
  {
    const PhaseClock::Scope copying(&clock, Phase::kCopy);
    const PhaseClock::Pause writing(Phase::kCopy);
    const PhaseClock::Pause twice(Phase::kCopy);
    const PhaseClock::Pause other(Phase::kSync);
    const auto pause = Clock::now();
    while (Clock::now() - pause < std::chrono::milliseconds(20)) {
    }
    paused = Clock::now() - pause;
  }
  const std::chrono::duration<double> all = Clock::now() - begin;
  EXPECT_LE(clock.end(Phase::kCopy).seconds, (all - paused).count() + 1e-9);
}

TEST_F(PhaseClockTest, APhaseThatIsNotEndedHasFailed) {
  {
    PhaseClock clock("load", "a", 0);
    const PhaseClock::Scope reading(&clock, Phase::kRead);
  }
  EXPECT_EQ(events_.back(), "load a 0 read failed");
}

TEST_F(PhaseClockTest, ASinkThatThrowsDoesNoHarmAndWithoutAClockNothingHappens) {
  set_phase_sink([](const PhaseEvent&) { throw std::runtime_error("full"); });
  PhaseClock clock("save", "a", 0);
  { const PhaseClock::Scope plan(&clock, Phase::kPlan); }
  clock.end(Phase::kPlan);
  const PhaseClock::Scope none(nullptr, Phase::kSync);
  const PhaseClock::Pause nothing(Phase::kSync);
}

}  // namespace
}  // namespace dckpt::phase_clock_test
