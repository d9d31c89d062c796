#pragma once

#include <CLI/CLI.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/dckpt/command.h"

namespace dckpt::tool {

/// A word that could stand at the cursor. One that ends in '.', '/' or '=' is the beginning of
/// several, so that the shell adds no blank behind it.
struct Candidate {
  std::string word{};
  std::string about{};
};

enum class Paths { kNone, kFiles, kFolders };

struct Completion {
  std::vector<Candidate> candidates{};
  Paths paths = Paths::kNone;  ///< what the shell itself completes besides
};

/// What completion asks of the checkpoint on the line. Both answer with nothing rather than throw.
struct CheckpointLookup {
  std::function<std::vector<Candidate>(const CheckpointArgument&)> keys;
  std::function<std::vector<Candidate>(const std::string& path)> iterations;
};

/// At most this many words are offered.
inline constexpr std::size_t kMaxCandidates = 1000;
/// Keys beyond this number are offered up to the next dot or slash.
inline constexpr std::size_t kManyKeys = 50;

/// Words for the cursor behind the last of `words`, those after the name of the program. Words that
/// a shell would have to quote are left out.
Completion complete(CLI::App& program, std::span<const std::string> words,
                    const CheckpointLookup& lookup);

/// Keys and iterations as they are stored.
CheckpointLookup stored_checkpoints();

}  // namespace dckpt::tool
