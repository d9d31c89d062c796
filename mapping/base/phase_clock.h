#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/fields.h"
#include "mapping/base/phase.h"

namespace DCKPT_API dckpt {

/// Measures the phases of one rank's save or load and reports them to the sinks. A phase takes the
/// time during which at least one thread is in it; phases may overlap. Safe to use from several
/// threads.
class PhaseClock {
 public:
  /// `sink` receives the phases of this call alone; it may be empty.
  PhaseClock(std::string call, std::string target, int rank, PhaseSink sink = {});
  /// Reports phases that have not ended as failed.
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  /// Keeps this thread in a phase during its lifetime. `clock` may be null.
  class Scope {
   public:
    Scope(PhaseClock* clock, Phase phase);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseClock* const clock_;
    const Phase phase_;
    PhaseClock* const outer_;
  };

  /// Takes this thread out of a phase during its lifetime, if it is in it.
  class Pause {
   public:
    explicit Pause(Phase phase);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    PhaseClock* const clock_;
    const Phase phase_;
  };

  struct Taken {
    double seconds = 0;
    std::uint64_t bytes = 0;
    friend bool operator==(const Taken&, const Taken&) = default;
  };
  /// Ends a phase for good, if it has begun.
  Taken end(Phase phase, std::uint64_t bytes = 0);

 private:
  using Clock = std::chrono::steady_clock;
  struct State {
    bool begun = false;
    bool ended = false;
    int threads = 0;
    Clock::time_point entered{};
    Clock::duration time{};
    std::chrono::system_clock::time_point begin{};
    std::chrono::system_clock::time_point left{};
  };

  void enter(Phase phase);
  void leave(Phase phase);
  PhaseEvent event(Phase phase, const State& state) const;
  void tell(const PhaseEvent& event);
  Taken end(Phase phase, std::uint64_t bytes, bool failed);

  const std::string call_;
  const std::string target_;
  const int rank_;
  std::mutex telling_;  ///< serializes calls of `sink_`
  const PhaseSink sink_;
  std::mutex mutex_;
  std::array<State, kPhaseNames.size()> states_{};
};

constexpr auto fields(const PhaseClock::Taken*) {
  return std::tuple(Field(&PhaseClock::Taken::seconds), Field(&PhaseClock::Taken::bytes));
}

}  // namespace dckpt
