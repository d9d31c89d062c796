#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace dckpt {

/// Why a directory is not a finished checkpoint; empty if it is one: its markers and its common state can be read, and every data file is there and long
/// enough. Tensor bytes are not read. Throws CheckpointError (io, unsupported) if that cannot be found out: an unreadable checkpoint is not an unfinished one.
std::optional<std::string> why_incomplete(const std::filesystem::path& checkpoint);

struct LatestCheckpoint {
  std::string directory;        ///< inside the root
  std::uint64_t iteration = 0;  ///< 0 for `release`
};

/// From where a run goes on: the checkpoint that the tracker names if it is complete, else the newest complete iteration, else a complete `release`. That the
/// tracker wins over newer iterations is Megatron's rule: people who go back edit it. Every checkpoint that is passed over is named in a warning. Empty for a
/// root that is not there or holds no checkpoint and no tracker. Throws CheckpointError: (incomplete) if there is something, but nothing complete; what
/// why_incomplete throws.
std::optional<LatestCheckpoint> find_latest(const std::filesystem::path& root);

}  // namespace dckpt
