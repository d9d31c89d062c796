#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/key_filter.h"
#include "dist_checkpointing/progress.h"
#include "dist_checkpointing/tracker.h"
#include "strategies/storage/location.h"

namespace dckpt {

struct ConvertOptions {
  std::string from{};  ///< the format that the source must have; empty: any
  /// A save strategy of the registry ("torch_dist", "dcp", one's own); empty: what `compat` says,
  /// or else the format of the source.
  std::string to{};
  std::optional<int> strategy_version{};  ///< of `to`; empty: the newest
  YamlNode strategy_options{};            ///< of `to`, as in save.backend.options of a policy
  /// For torch_dist: kMegatron (empty: this one) or kMegatron019; for dcp: kDcp. Contradictions are
  /// refused.
  std::optional<Compat> compat{};
  /// Cuts every tensor anew into shards for this many ranks (along its longest axis that allows
  /// it); empty keeps the chunks as they are.
  std::optional<int> ranks{};
  /// How optimizer state that Megatron 0.8 to 0.15 flattens is stored: boxes, which everyone loads,
  /// or the form from which only these releases resume; made of boxes where the source (zarr) has
  /// them, or refused.
  FlattenedForm flattened = FlattenedForm::kBoxes;
  KeyFilter keys{};  ///< of tensors and objects (for these, key or unique key), as the source names
                     ///< them; the common state is always kept
  std::vector<RenameRule> rename{};  ///< keys in the result; see rename.h
  /// Compare everything that is copied with its checksums, while it is copied, and before with
  /// integrity.json, where the source has one: damage would get fresh, valid checksums otherwise.
  /// Nothing is published unless all agree.
  bool check_source = true;
  /// The source must have an integrity.json, and all of its files must be as it says.
  bool verify_integrity = false;
  bool dry_run = false;  ///< plan and report, write nothing
  bool overwrite = false;
  std::uint64_t max_memory =
      std::uint64_t{256}
      << 20;  ///< for tensor bytes in flight; fewer threads write where it is little
  std::string separation_hint{};  ///< see SaveOptions
  bool integrity = false;         ///< write integrity.json; also done when the source has one
  /// Of a source that is a training root, instead of the latest.
  std::optional<IterationName> iteration{};
  WriteOptions io{};
  /// Threads that check the source; empty: as many as write.
  std::optional<int> read_threads{};
  std::uint64_t staging =
      std::uint64_t{64}
      << 20;            ///< temporary memory of all reads together, in bytes; within max_memory
  Progress progress{};  ///< of tensor and object bytes written
  /// Asks to give up: convert() throws (io) and removes what it has begun.
  std::stop_token stop{};
};

struct ConvertReport {
  std::string from;
  std::string to;
  std::string source;  ///< where it was found and written, for people
  std::string destination;
  std::uint64_t tensors = 0;
  std::uint64_t objects = 0;
  std::uint64_t chunks_before = 0;
  std::uint64_t chunks_after = 0;
  std::uint64_t bytes = 0;  ///< tensor payload
  std::uint64_t files = 0;  ///< data files of the result, also of a dry run
  /// Of these files and common.pt; of a dry run, about what they will have.
  std::uint64_t disk_bytes = 0;
  std::uint64_t left_out = 0;  ///< tensors and objects that the globs left out
  int ranks = 0;
  /// For people: what changed its form and why, and who loads the result.
  std::vector<std::string> remarks;
};

/// The largest number of ranks a checkpoint is cut for.
inline constexpr int kMaxRanks = 1'000'000;

/// Reads a checkpoint and publishes it anew. Streams: memory stays within `max_memory` plus the
/// metadata. Plain DCP has no common state: what is an object there becomes common state in
/// torch_dist, under its path, and an object again on the way back. Throws CheckpointError; then
/// nothing is visible at the destination and what was there is unchanged. Among others
/// (already exists) for a destination that is not to be replaced, (unsupported) for rank folders of
/// Megatron's oldest format, whose tensors no Megatron finds before they are joined, and (io) where
/// the free space does not suffice, of a dry run too.
ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options = {});

}  // namespace dckpt
