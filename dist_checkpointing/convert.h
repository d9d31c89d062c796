#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/key_filter.h"
#include "dist_checkpointing/progress.h"
#include "dist_checkpointing/training_root/layout.h"

namespace dckpt {

struct ConvertOptions {
  /// "torch_dist" or "dcp"; empty keeps the format of the source.
  std::string to{};
  /// For torch_dist: kMegatron or kMegatron019. Empty keeps what the source has.
  std::optional<Compat> compat{};
  /// Cuts every tensor anew into shards for this many ranks (along its longest axis that allows it); empty keeps the chunks as they are.
  std::optional<int> ranks{};
  /// How flattened tensors are stored; empty keeps Megatron's form for torch_dist and makes boxes for dcp.
  std::optional<FlattenedForm> flattened{};
  KeyFilter keys{};                      ///< of tensors and objects (for these, key or unique key); the common state is always kept
  /// Compare the checksums of everything that is copied before writing it anew: damage would get a fresh, valid checksum otherwise. Reads the source twice.
  bool check_source = true;
  bool dry_run = false;                  ///< plan and report, write nothing
  bool overwrite = false;
  std::uint64_t max_memory = std::uint64_t{256} << 20;  ///< for tensor bytes in flight
  std::string separation_hint{};         ///< see SaveOptions
  bool integrity = false;                ///< write integrity.json; also done when the source has one
  std::optional<IterationName>
      iteration{};  ///< of a source that is a training root, instead of the latest
  WriteOptions io{};
  Progress progress{};                   ///< of tensor and object bytes written
  std::stop_token stop{};                ///< asks to give up: convert() throws (io) and removes what it has begun
};

struct ConvertReport {
  std::string from;
  std::string to;
  std::filesystem::path source;
  std::filesystem::path destination;
  std::uint64_t tensors = 0;
  std::uint64_t objects = 0;
  std::uint64_t chunks_before = 0;
  std::uint64_t chunks_after = 0;
  std::uint64_t bytes = 0;             ///< tensor payload
  std::uint64_t files = 0;             ///< data files of the result
  std::uint64_t left_out = 0;          ///< tensors and objects that the globs left out
  int ranks = 0;
  std::vector<std::string> remarks;    ///< for people: what changed its form and why
};

/// The largest number of ranks a checkpoint is cut for.
inline constexpr int kMaxRanks = 1'000'000;

/// Reads a checkpoint of any readable format and publishes it anew. Streams: memory stays within `max_memory` plus the metadata.
/// Throws CheckpointError; then nothing is visible at the destination and what was there is unchanged.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination, const ConvertOptions& options = {});

}  // namespace dckpt
