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
  /// A save strategy of the registry ("torch_dist", "dcp", one's own); empty: what `compat` says,
  /// or else the format of the source.
  std::string to{};
  std::optional<int> strategy_version{};  ///< of `to`; empty: the newest
  OwnOptions strategy_options{};          ///< of `to`, as in save.backend.options of a policy
  /// For torch_dist: kMegatron or kMegatron019; for dcp: kDcp. Contradictions are refused. Empty:
  /// kMegatron, or kMegatron019 for a source of that form if `to`, `flattened` and `optimizer` say
  /// nothing either: such a copy keeps its form.
  std::optional<Compat> compat{};
  /// Gives the source other keys, as load.map of a policy does: everything else sees these.
  KeyMapOptions map{};
  /// Merges this LoRA adapter, a folder in PEFT's layout, into the model: before the map if the
  /// source has the tensors that the adapter changes, else into what the map makes. Takes up to an
  /// eighth of `max_memory`.
  std::optional<Location> merge_adapter{};
  /// Goes through the map and back in memory and compares with the source, bit by bit, before
  /// anything is written: convert() throws (mismatch) with what differs.
  bool check_round_trip = false;
  /// Cuts every tensor into shards for this many ranks (along its longest axis that allows it);
  /// empty keeps the chunks, or joins them for a format that stores tensors whole, which has no
  /// shards.
  std::optional<int> ranks{};
  /// How to store optimizer state that Megatron 0.8 to 0.15 flattens: as boxes, which every reader
  /// loads, or in the form from which only these releases resume. The latter is made from boxes if
  /// the source (zarr) has them, or refused. Empty: as the source of the same format has it, else
  /// boxes.
  std::optional<FlattenedForm> flattened{};
  /// The form from which Megatron's distributed optimizer is to resume; empty leaves it as it is.
  /// kFullyShardedModelSpace sets `flattened` to kMegatron; the others need kBoxes. `keys` and
  /// `rename` then name what it has become.
  std::optional<OptimizerSharding> optimizer{};
  /// For hf and safetensors: copies the files of this folder that belong to a model (config.json,
  /// the tokenizer; no weights); empty: those of the source, if it is such a folder. For all
  /// formats: a map takes numbers from its config.json.
  std::optional<Location> model_files{};
  /// Selects tensors and objects (these by key or unique key) by their names in the source; the
  /// common state is always kept. With a map, names of either side count: what `exclude` matches in
  /// the source is left out before the map sees it, and `include` selects among the keys that the
  /// map makes or, if they do not match there, among those of the source.
  KeyFilter keys{};
  std::vector<RenameRule> rename{};  ///< keys in the result; see rename.h
  /// Compare everything that is copied with its checksums, and first with integrity.json if the
  /// source has one; otherwise damage would get fresh, valid checksums. Nothing is published unless
  /// all agree.
  bool check_source = true;
  /// The source must have an integrity.json, and all its files must match it.
  bool verify_integrity = false;
  /// If data files are missing or too short, convert the keys that are whole; else an error names
  /// the others.
  bool allow_partial = false;
  /// Findings that are to be errors: convert() throws (mismatch) that names them before it writes.
  std::vector<FindingCode> error_on{};
  bool dry_run = false;  ///< plan and report, write nothing
  bool overwrite = false;
  /// Goes on with a conversion to this destination that was interrupted: files that it had finished
  /// stay, the others are written. Source and options must be the same. If this one fails, too,
  /// what it has finished is kept for the next; otherwise it is removed.
  bool resume = false;
  std::uint64_t max_memory =
      std::uint64_t{256}
      << 20;  ///< for tensor bytes in flight; if it is small, fewer threads write
  std::string separation_hint{};  ///< see SaveOptions
  /// Whether integrity.json is written. By default where the source has one, and in formats whose
  /// data have no checksums (safetensors, zarr).
  std::optional<bool> integrity{};
  /// Of a training root, instead of the latest.
  std::optional<IterationName> iteration{};
  WriteOptions io{};
  /// Threads that check the source; empty: as many as write.
  std::optional<int> read_threads{};
  std::uint64_t staging =
      std::uint64_t{64}
      << 20;            ///< temporary memory of all reads together, in bytes; within max_memory
  Progress progress{};  ///< of tensor and object bytes written
  /// Requests a stop: convert() throws (cancelled) and removes what it has written (see `resume`).
  std::stop_token stop{};
};

/// What a data file holds of tensors and objects.
struct HeldBytes {
  std::string file;
  std::uint64_t bytes = 0;  ///< of elements, and of objects as stored
};

/// A step between the source of a conversion and its result.
struct ConversionStep {
  std::string name{};
  std::string does{};                ///< for people: "renames keys by 2 rules"
  std::vector<std::string> notes{};  ///< those of ConvertReport::findings that belong to it
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
  /// Of `files`, those that an interrupted conversion had finished.
  std::uint64_t kept_files = 0;
  /// Of all files of the result; estimated for a dry run.
  std::uint64_t disk_bytes = 0;
  /// Tensors and objects that the globs left out, or the format, as a remark says then.
  std::uint64_t left_out = 0;
  std::vector<std::string> lost;  ///< keys that allow_partial has left out
  int ranks = 0;
  std::vector<HeldBytes> held_before;     ///< by the data files of the source, in their order
  std::vector<std::uint64_t> held_after;  ///< bytes of what each rank of the result holds
  std::vector<ConversionStep> steps;      ///< in their order; those that do something
  /// What changed its form and why, what was left out, and which releases load the result.
  Findings findings{};
};

/// The largest number of ranks a checkpoint is cut for.
inline constexpr int kMaxRanks = 1'000'000;

/// Reads a checkpoint and publishes a converted copy. Streams: memory stays within `max_memory`
/// plus the metadata. Plain DCP has no common state: its objects become common state in torch_dist,
/// under their paths, and objects again when converted back. Formats of tensors alone (hf,
/// safetensors) leave out objects and common state; a remark names them. Throws CheckpointError;
/// then nothing is visible at the destination and what was there is unchanged. Among others
/// (already exists) for a destination that is not to be replaced, (mismatch) if what it is to
/// resume was another conversion, (unsupported) for rank folders of Megatron's oldest format, whose
/// tensors no Megatron finds before they are joined, (invalid argument) for what would leave
/// flattened optimizer state in a form from which no release resumes, and (io) if there is not
/// enough free space, even in a dry run.
ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options = {});

}  // namespace dckpt
