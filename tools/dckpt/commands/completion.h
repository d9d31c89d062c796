#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/dckpt/commands/command.h"

namespace dckpt::tool {

/// A word that could be completed at the cursor. A word that ends in '.', '/' or '=' is a common
/// beginning of several, after which the shell adds no space.
struct Candidate {
  std::string word{};
  std::string about{};
};

enum class Paths { kNone, kFiles, kFolders };

struct Completion {
  std::vector<Candidate> candidates{};
  Paths paths = Paths::kNone;  ///< paths that the shell itself adds
};

/// The lookups that completion makes in the checkpoint on the line. They return nothing rather than
/// throw.
struct CheckpointLookup {
  std::function<std::vector<Candidate>(const CheckpointArgument&)> keys;
  std::function<std::vector<Candidate>(const std::string& path)> iterations;
};

/// The maximum number of candidates.
inline constexpr std::size_t kMaxCandidates = 1000;
/// Above this number of keys, each candidate ends at the next dot or slash.
inline constexpr std::size_t kManyKeys = 50;

/// Returns the candidates for the last of `words`, which follow the name of the program. Candidates
/// that a shell would have to quote are left out.
Completion complete(ProgramSpec& program, std::span<const std::string> words,
                    const CheckpointLookup& lookup);

/// Returns lookups that read keys and iterations as stored.
CheckpointLookup stored_checkpoints();

}  // namespace dckpt::tool
