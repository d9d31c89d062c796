#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "operations/upkeep/fleet.h"

namespace dckpt {

/// The results of a fleet by the absolute names of the checkpoints, and the file that keeps them:
///
///     {"version": 1,
///      "print": "8e7f…",                 SHA-256 of the text of "checkpoints"
///      "checkpoints": {"/run/iter_0001000":
///        {"print": "a1b2…",              of the names, sizes and times of the checkpoint's files
///         "deep": true, "format": "torch_dist", "bytes": 1024,
///         "problems": 0, "problem": "", "refused": null}}}
///
/// Not safe to use from several threads.
class FleetState {
 public:
  /// Reads the file, if there is one, and writes it, so that a place that cannot be written is
  /// found at once. Throws CheckpointError: (corrupt) for a damaged file, (invalid argument) for
  /// something that is not a state file, (io).
  explicit FleetState(std::optional<Location> file);

  /// Returns the result of a checkpoint with this fingerprint; null if another one, or none, is
  /// known.
  const FleetResult* find(const std::string& checkpoint, const std::string& print) const;
  void add(const std::string& checkpoint, const std::string& print, const FleetResult& result);
  void remove(const std::string& checkpoint) { entries_.erase(checkpoint); }
  /// Forgets checkpoints that no longer exist; those in `present` do.
  void forget_missing(const std::set<std::string>& present);
  /// Writes the file if the last time is a while ago.
  void save_sometimes();
  void save();

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string print;
    FleetResult result;
  };
  void require_state_file(const FileInfo& found) const;
  void read();

  std::optional<Location> file_;
  std::map<std::string, Entry> entries_;
  Clock::time_point next_save_{};
};

}  // namespace dckpt
