#include "mapping/base/phase_clock.h"

#include <utility>

namespace dckpt {
namespace {

struct ClockSink {
  std::mutex mutex;
  PhaseSink function;
};

// The sink is never destroyed: background saves may run while the process ends.
ClockSink& clock_sink() {
  static ClockSink* const instance = new ClockSink;
  return *instance;
}

void call(const PhaseSink& function, const PhaseEvent& event) {
  if (!function) return;
  try {
    function(event);
  } catch (...) {  // a sink must not change what one rank of many does
  }
}

/// Returns the clock in whose phase this thread is.
PhaseClock*& clock_of(Phase phase) {
  thread_local std::array<PhaseClock*, kPhaseNames.size()> clocks{};
  return clocks.at(static_cast<std::size_t>(phase));
}

}  // namespace

PhaseSink set_phase_sink(PhaseSink function) {
  const std::lock_guard lock(clock_sink().mutex);
  return std::exchange(clock_sink().function, std::move(function));
}

PhaseClock::PhaseClock(std::string call, std::string target, int rank, PhaseSink sink)
    : call_(std::move(call)), target_(std::move(target)), rank_(rank), sink_(std::move(sink)) {}

PhaseClock::~PhaseClock() {
  for (const auto& [phase, name] : kPhaseNames) end(phase, 0, true);
}

PhaseClock::Scope::Scope(PhaseClock* clock, Phase phase)
    : clock_(clock), phase_(phase), outer_(std::exchange(clock_of(phase), clock)) {
  if (clock_ != nullptr) clock_->enter(phase_);
}

PhaseClock::Scope::~Scope() {
  if (clock_ != nullptr) clock_->leave(phase_);
  clock_of(phase_) = outer_;
}

PhaseClock::Pause::Pause(Phase phase)
    : clock_(std::exchange(clock_of(phase), nullptr)), phase_(phase) {
  if (clock_ != nullptr) clock_->leave(phase_);
}

PhaseClock::Pause::~Pause() {
  if (clock_ == nullptr) return;
  clock_->enter(phase_);
  clock_of(phase_) = clock_;
}

void PhaseClock::enter(Phase phase) {
  State& state = states_.at(static_cast<std::size_t>(phase));
  std::optional<PhaseEvent> begins;
  {
    const std::lock_guard lock(mutex_);
    if (state.threads++ == 0) state.entered = Clock::now();
    if (!state.begun && !state.ended) {
      state.begun = true;
      state.begin = std::chrono::system_clock::now();
      begins = event(phase, state);
    }
  }
  if (begins) tell(*begins);
}

void PhaseClock::leave(Phase phase) {
  const std::lock_guard lock(mutex_);
  State& state = states_.at(static_cast<std::size_t>(phase));
  if (--state.threads > 0) return;
  const auto now = Clock::now();
  state.time += now - state.entered;
  state.left = std::chrono::system_clock::now();
}

PhaseEvent PhaseClock::event(Phase phase, const State& state) const {
  return {.call = call_, .target = target_, .phase = phase, .rank = rank_, .begin = state.begin};
}

void PhaseClock::tell(const PhaseEvent& event) {
  {
    const std::lock_guard lock(telling_);
    call(sink_, event);
  }
  const std::lock_guard lock(clock_sink().mutex);
  call(clock_sink().function, event);
}

PhaseClock::Taken PhaseClock::end(Phase phase, std::uint64_t bytes) {
  return end(phase, bytes, false);
}

PhaseClock::Taken PhaseClock::end(Phase phase, std::uint64_t bytes, bool failed) {
  PhaseEvent ends;
  {
    const std::lock_guard lock(mutex_);
    State& state = states_.at(static_cast<std::size_t>(phase));
    const bool was_ended = std::exchange(state.ended, true);
    if (!state.begun || was_ended) return {};
    if (state.threads > 0) {  // another thread has not left it yet
      state.time += Clock::now() - state.entered;
      state.left = std::chrono::system_clock::now();
    }
    ends = event(phase, state);
    ends.end = state.left;
    ends.seconds = std::chrono::duration<double>(state.time).count();
    ends.bytes = bytes;
    ends.failed = failed;
  }
  tell(ends);
  return {ends.seconds, bytes};
}

}  // namespace dckpt
