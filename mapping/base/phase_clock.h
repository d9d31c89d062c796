#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

/// A step of a save (the first six) or a load.
enum class Phase : std::uint8_t {
  kPlan,      ///< describing the state and agreeing on who writes what
  kStage,     ///< copying the state, for background saves only
  kCopy,      ///< a part of kWrite: taking items from memory (copies, checksums, compression)
  kWrite,     ///< writing the data files and making them durable
  kSync,      ///< a part of kWrite: waiting until files are durable
  kPublish,   ///< writing what readers start from, making the checkpoint visible
  kOpen,      ///< reading the metadata and the common state, checking what is requested
  kExchange,  ///< agreeing on who reads what for whom, and passing it on
  kRead,      ///< reading tensors and objects
};
inline constexpr EnumNames<Phase, 9> kPhaseNames{{{Phase::kPlan, "plan"},
                                                  {Phase::kStage, "stage"},
                                                  {Phase::kCopy, "copy"},
                                                  {Phase::kWrite, "write"},
                                                  {Phase::kSync, "sync"},
                                                  {Phase::kPublish, "publish"},
                                                  {Phase::kOpen, "open"},
                                                  {Phase::kExchange, "exchange"},
                                                  {Phase::kRead, "read"}}};

/// A phase begins on a rank, or has ended.
struct PhaseEvent {
  std::string_view call;    ///< "save" or "load"
  std::string_view target;  ///< the checkpoint
  Phase phase = Phase::kPlan;
  int rank = 0;
  std::chrono::system_clock::time_point begin{};
  std::optional<std::chrono::system_clock::time_point> end{};  ///< none: it begins now
  // When it has ended:
  double seconds = 0;  ///< with a thread at work: less than from begin to end if it was interrupted
  std::uint64_t bytes = 0;
  bool failed = false;  ///< the call ends with it
};

/// Receives the phases of every save and load of this process; called from any thread, one call at
/// a time. What it throws is ignored.
using PhaseSink = std::function<void(const PhaseEvent&)>;

/// Replaces the sink; an empty one, the default, receives nothing.
void set_phase_sink(PhaseSink sink);

/// Measures the phases of one rank's save or load, and tells the sink of them. A phase takes the
/// time during which at least one thread is in it; phases may overlap. Safe to use from several
/// threads.
class PhaseClock {
 public:
  PhaseClock(std::string call, std::string target, int rank);
  /// Phases that have not ended have failed.
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  /// This thread is in a phase. `clock` may be null.
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

  /// Leaves the phase of this thread for a while, if it is in it.
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
  Taken end(Phase phase, std::uint64_t bytes, bool failed);

  const std::string call_;
  const std::string target_;
  const int rank_;
  std::mutex mutex_;
  std::array<State, kPhaseNames.size()> states_{};
};

}  // namespace dckpt
