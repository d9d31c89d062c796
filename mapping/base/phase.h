#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"

namespace DCKPT_API dckpt {

/// A step of a save (the first six) or a load.
enum class Phase : std::uint8_t {
  kPlan,      ///< describing the state and agreeing on the writer of each part
  kStage,     ///< copying the state, for background saves only
  kCopy,      ///< a part of kWrite: taking items from memory (copies, checksums, compression)
  kWrite,     ///< writing the data files and making them durable
  kSync,      ///< a part of kWrite: waiting until files are durable
  kPublish,   ///< writing the files that readers open first, making the checkpoint visible
  kOpen,      ///< reading the metadata and the common state, checking the request
  kExchange,  ///< agreeing on the reader of each part, and passing it on
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

/// The start or the end of a phase on a rank.
struct PhaseEvent {
  std::string_view call;    ///< "save" or "load"
  std::string_view target;  ///< the checkpoint
  Phase phase = Phase::kPlan;
  int rank = 0;
  std::chrono::system_clock::time_point begin{};
  std::optional<std::chrono::system_clock::time_point> end{};  ///< empty at its start
  // Set at its end:
  double seconds = 0;  ///< with a thread at work; less than from begin to end if it was interrupted
  std::uint64_t bytes = 0;
  bool failed = false;  ///< the call failed in this phase
};

/// Receives phases: those of one call (SaveHooks::phases, LoadHooks::phases), or of every save and
/// load of this process. It is called from any thread, one call at a time. Exceptions that it
/// throws are ignored.
using PhaseSink = std::function<void(const PhaseEvent&)>;

/// Replaces the sink of the process and returns the previous one, which is not called any more once
/// this returns. An empty sink, the default, receives nothing.
PhaseSink set_phase_sink(PhaseSink sink);

}  // namespace dckpt
