#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/planning/metadata.h"

namespace DCKPT_API dckpt {

/// Chooses keys by shell-style globs (glob_match): those that match some `include` (or any key if
/// it is empty) and no `exclude`. An object is matched by its unique key ("rng_state/shard_0_1")
/// and by the key in it ("rng_state").
struct KeyFilter {
  std::vector<std::string> include{};
  std::vector<std::string> exclude{};

  bool operator()(std::string_view key) const;
  bool object(std::string_view unique_key) const;

  /// Throws CheckpointError (invalid argument) for a pattern that matches no key of any of the
  /// checkpoints, naming similar keys, and for patterns that together leave nothing. Without
  /// patterns, accepts any checkpoint.
  void check(std::initializer_list<const Metadata*> checkpoints) const;
};

/// Returns a hint for messages about a missing key or pattern: " (did you mean …?)", or the keys
/// with the longest common prefix.
[[nodiscard]] std::string suggest_keys(std::string_view wanted, std::span<const std::string> keys);

}  // namespace dckpt
