#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/key_filter.h"
#include "dist_checkpointing/tracker.h"
#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "mapping/base/progress.h"
#include "migration/optimizer/optimizer_sharding.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

struct ConvertOptions {
  /// The strategy that reads the source; see LoadOptions::strategy.
  StrategySpec from{.name = std::string(kAutoStrategy)};
  /// A save strategy of the registry ("torch_dist", "dcp", your own). Empty: determined by
  /// `compat`, or else by the format of the source.
  std::string to{};
  std::optional<int> strategy_version{};  ///< version of `to`; empty: the newest
  OwnOptions strategy_options{};  ///< options of `to`, as in save.backend.options of a policy
  /// Allowed: for torch_dist, kMegatron or kMegatron019; for dcp, kDcp. Contradictions are refused.
  /// Empty: kMegatron, or kMegatron019 for a source of that form if `to`, `flattened` and
  /// `optimizer` are unset too, so that such a copy keeps its form.
  std::optional<Compat> compat{};
  /// Gives the source other keys, as load.map of a policy does; all other options see these keys.
  KeyMapOptions map{};
  /// Merges this LoRA adapter, a folder in PEFT's layout, into the model: before the map if the
  /// source has the tensors that the adapter changes, else into the result of the map. Takes up to
  /// an eighth of `max_memory`.
  std::optional<Location> merge_adapter{};
  /// Goes through the map and back in memory and compares with the source, bit by bit, before
  /// anything is written. convert() throws (mismatch) naming the differences.
  bool check_round_trip = false;
  /// Cuts every tensor into shards for this many ranks (along its longest axis that allows it);
  /// empty keeps the chunks, or joins them for a format that stores tensors whole, which has no
  /// shards.
  std::optional<int> ranks{};
  /// The form of optimizer state that Megatron 0.8 to 0.15 flattens: boxes, which every reader
  /// loads, or the form from which only these releases resume. The latter is made from boxes if the
  /// source (zarr) has them, or refused. Empty: as in a source of the same format, else boxes.
  std::optional<FlattenedForm> flattened{};
  /// The form from which Megatron's distributed optimizer is to resume; empty leaves it unchanged.
  /// kFullyShardedModelSpace sets `flattened` to kMegatron; the others need kBoxes. `keys` and
  /// `rename` then name the keys of the result.
  std::optional<OptimizerSharding> optimizer{};
  /// The folder whose model files (config.json, the tokenizer; no weights) are copied to hf and
  /// safetensors. Empty: the source, if it is such a folder. For all formats, a map takes numbers
  /// from its config.json.
  std::optional<Location> model_files{};
  /// Selects tensors and objects (these by key or unique key) by their names in the source; the
  /// common state is always kept. With a map, names of either side count: keys of the source that
  /// `exclude` matches are left out before the map sees them, and `include` selects among the keys
  /// that the map makes or, if it does not match there, among those of the source.
  KeyFilter keys{};
  std::vector<RenameRule> rename{};  ///< keys in the result; see rename.h
  /// Compares all copied data with its checksums, after checking integrity.json if the source has
  /// one; otherwise damage would get fresh, valid checksums. Nothing is published unless all agree.
  bool check_source = true;
  /// Requires an integrity.json in the source that all its files match.
  bool verify_integrity = false;
  /// Converts the intact keys if data files are missing or too short; otherwise an error names the
  /// others.
  bool allow_partial = false;
  /// Findings that become errors: convert() throws (mismatch) naming them before it writes.
  std::vector<FindingCode> error_on{};
  bool dry_run = false;  ///< plan and report, write nothing
  bool overwrite = false;
  /// Continues an interrupted conversion to this destination: files that it had finished stay, the
  /// others are written. Source and options must be the same. If this attempt fails too, its
  /// finished files are kept for the next one; without `resume`, they are removed.
  bool resume = false;
  std::uint64_t max_memory =
      std::uint64_t{256}
      << 20;  ///< limit of tensor bytes in flight; if it is small, fewer threads write
  std::string separation_hint{};  ///< see SaveOptions
  /// Writes integrity.json. Empty: if the source has one, and in formats whose data have no
  /// checksums (safetensors, zarr).
  std::optional<bool> integrity{};
  /// The iteration of a training root, instead of the latest.
  std::optional<IterationName> iteration{};
  WriteOptions io{};
  /// Threads that check the source; empty: as many as write.
  std::optional<int> read_threads{};
  std::uint64_t staging =
      std::uint64_t{64}
      << 20;            ///< temporary memory of all reads together, in bytes; within max_memory
  Progress progress{};  ///< counts tensor and object bytes written
  /// Requests a stop: convert() throws (cancelled) and removes what it has written (see `resume`).
  std::stop_token stop{};
};

/// The bytes of tensors and objects in a data file.
struct HeldBytes {
  std::string file;
  std::uint64_t bytes = 0;  ///< size of elements, and of objects as stored
};

/// A step between the source of a conversion and its result.
struct ConversionStep {
  std::string name{};
  std::string does{};                ///< as text for messages: "renames keys by 2 rules"
  std::vector<std::string> notes{};  ///< those of ConvertReport::findings that belong to it
};

struct ConvertReport {
  std::string from;
  std::string to;
  std::string source;  ///< locations of the source and the result, as text for messages
  std::string destination;
  std::uint64_t tensors = 0;
  std::uint64_t objects = 0;
  std::uint64_t chunks_before = 0;
  std::uint64_t chunks_after = 0;
  std::uint64_t bytes = 0;  ///< tensor payload
  std::uint64_t files = 0;  ///< data files of the result, also of a dry run
  /// The part of `files` that an interrupted conversion had finished.
  std::uint64_t kept_files = 0;
  /// Size of all files of the result; estimated for a dry run.
  std::uint64_t disk_bytes = 0;
  /// Tensors and objects left out by the globs or by the format, which a remark then says.
  std::uint64_t left_out = 0;
  std::vector<std::string> lost;  ///< keys left out by allow_partial
  int ranks = 0;
  std::vector<HeldBytes> held_before;     ///< by the data files of the source, in their order
  std::vector<std::uint64_t> held_after;  ///< bytes that each rank of the result holds
  std::vector<ConversionStep> steps;      ///< steps that do something, in their order
  /// Changes of form with their reasons, omissions, and the releases that load the result.
  Findings findings{};
};

/// The largest number of ranks that a checkpoint can be cut for.
inline constexpr int kMaxRanks = 1'000'000;

/// Reads a checkpoint and publishes a converted copy. Streams: memory stays within `max_memory`
/// plus the metadata. Plain DCP has no common state: its objects become common state in torch_dist,
/// under their paths, and objects again when converted back. Formats of tensors alone (hf,
/// safetensors) leave out objects and common state; a remark names them. Throws CheckpointError;
/// then nothing is visible at the destination and its previous content is unchanged. Among others:
/// (already exists) for a destination that must not be replaced, (mismatch) if the conversion to
/// resume was another one, (unsupported) for rank folders of Megatron's oldest format, whose
/// tensors no Megatron finds before they are joined, (invalid argument) if flattened optimizer
/// state would be left in a form from which no release resumes, and (io) if there is not enough
/// free space, even in a dry run.
ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options = {});

}  // namespace dckpt
