#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/storage/location.h"

// The layout of a run's checkpoints in its training root, as in Megatron:
//
//   ROOT/latest_checkpointed_iteration.txt   the tracker: an iteration in decimal digits, or
//                                            "release". Variants written by people and scripts are
//                                            read too: "iter_0001000", "1000.0", a byte order
//                                            mark, blanks and line ends of any kind
//   ROOT/latest_train_state.pt               Megatron-Bridge's, which it reads first and dckpt only
//                                            where the other is missing: its "step"
//   ROOT/iter_0001000/train_state.pt         Megatron-Bridge's copy of it, one per iteration
//   ROOT/iter_0001000/                       one checkpoint per iteration, at least seven digits
//   ROOT/release/                            a checkpoint that belongs to no iteration; counts as
//                                            iteration 0
//
// Only this file knows these names.

namespace DCKPT_API dckpt {

inline constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";
inline constexpr const char* kBridgeTrackerFile = "latest_train_state.pt";
inline constexpr const char* kBridgeStateFile = "train_state.pt";
inline constexpr const char* kReleaseDirectory = "release";
inline constexpr std::uint64_t kMaxIteration = 1'000'000'000'000;

/// Returns the directory of an iteration: 1000 → "iter_0001000". Throws CheckpointError (invalid
/// argument) beyond kMaxIteration.
std::string iteration_directory(std::uint64_t iteration);
/// Inverts iteration_directory(); empty for any other spelling.
std::optional<std::uint64_t> parse_iteration_directory(std::string_view name);

/// Names a checkpoint of a training root, as its tracker does: an iteration, or `release`.
class IterationName {
 public:
  IterationName(std::uint64_t iteration) : iteration_(iteration) {}
  static IterationName release() { return IterationName(); }

  /// Returns "iter_0001000" or "release". Throws as iteration_directory() does.
  std::string directory() const;

  friend bool operator==(const IterationName&, const IterationName&) = default;

 private:
  IterationName() = default;
  std::optional<std::uint64_t> iteration_{};  // empty for `release`
};
/// Parses "1000", "0001000" and "iter_0001000", in decimal digits, and "release"; empty for
/// anything else.
std::optional<IterationName> parse_iteration_name(std::string_view text);

/// Returns the name of the file that read_tracker() reads.
const char* tracker_file(const Storage& root);
/// Returns the directory that Megatron-Bridge's own tracker names; empty if there is none. Throws
/// CheckpointError (corrupt) if it names none, and as load_torch_file does.
std::optional<std::string> read_bridge_tracker(const Storage& root);
/// Returns the directory that the tracker of a training root names; empty without a tracker. Throws
/// CheckpointError: (corrupt) if the tracker holds neither an iteration nor "release" or is not a
/// regular file, (io); for Megatron-Bridge's tracker also as load_torch_file does.
[[nodiscard]] std::optional<std::string> read_tracker(const Storage& root);
/// Writes the tracker, atomically and durably.
void write_tracker(Storage& root, std::uint64_t iteration);

/// Returns the iterations with a directory in the root (or a link to one), in ascending order,
/// complete or not; none if there is no root.
[[nodiscard]] std::vector<std::uint64_t> list_iterations(const Location& root);

/// Returns a text for messages: "iterations 100, 200 and 300", the newest `limit` of them, or "no
/// iterations".
std::string describe_iterations(const std::vector<std::uint64_t>& iterations,
                                std::size_t limit = 8);

}  // namespace dckpt
