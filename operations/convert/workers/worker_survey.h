#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// A process that works in a pool (ConvertOptions::workers), or has worked there.
struct SurveyedWorker {
  enum class State : std::uint8_t {
    kWorking,  ///< it has given signs of life within its lease
    kSilent,   ///< it has not, or has ended on this host: others take over its work
    kIdle,     ///< it has no unit now: it waits, or has left
  };
  std::string host;
  std::uint64_t process = 0;
  State state = State::kIdle;
  std::vector<std::string> units;  ///< that it has now; "publication" is one
  double seconds = 0;              ///< since it began the first of these
  std::uint64_t done = 0;          ///< files that it has written
  std::uint64_t bytes = 0;         ///< in these files
};

inline constexpr EnumNames<SurveyedWorker::State, 3> kWorkerStateNames{
    {{SurveyedWorker::State::kWorking, "working"},
     {SurveyedWorker::State::kSilent, "silent"},
     {SurveyedWorker::State::kIdle, "idle"}}};

/// The progress of a pool, by the clock of its storage.
struct WorkerSurvey {
  std::string destination;
  bool published = false;
  std::uint64_t units = 0;  ///< files to write, and files of the source to compare
  std::uint64_t units_done = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_done = 0;
  double seconds = 0;                    ///< since the first worker came, until now or publication
  double bytes_per_second = 0;           ///< in the last minute
  std::optional<double> seconds_left{};  ///< at this rate; empty if nothing moves
  std::vector<SurveyedWorker> workers;   ///< by host and process
};

/// Reads what the workers of a pool do. Throws CheckpointError (invalid argument) if `directory` is
/// none, (corrupt) for a damaged one.
[[nodiscard]] WorkerSurvey survey_workers(const Location& directory);

/// Returns a worker that holds a claim; empty if there is none, or no pool.
[[nodiscard]] std::optional<SurveyedWorker> worker_at_work(const Location& directory);

/// Removes a pool and everything that its workers have written and not published. The directory
/// stays if it holds anything else. Throws CheckpointError (aborted) if any of them is at work, and
/// as survey_workers() does.
void remove_workers(const Location& directory);

}  // namespace dckpt
