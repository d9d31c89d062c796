#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/open/key_filter.h"
#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "mapping/base/progress.h"
#include "migration/optimizer/optimizer_sharding.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// The checkpoint that a conversion reads, its keys, and the selection of them.
struct ConvertSource {
  /// The strategy that reads the source; see LoadOptions::strategy.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  /// The load planner whose tensors are converted; see OpenOptions::planner. The other
  /// models are read by those that they name.
  StrategySpec planner{.name = std::string(kAutoStrategy)};
  /// Selects an iteration of a training root; empty: the latest.
  std::optional<IterationName> iteration{};
  /// Gives the source other keys, as load.map of a policy does. All later steps see these keys.
  KeyMapOptions map{};
  /// Merges this LoRA adapter, a folder in PEFT's layout, into the model: before the map if the
  /// source has the tensors that the adapter changes, else after it. Takes up to an eighth of
  /// ConvertLimits::memory.
  std::optional<Location> merge_adapter{};
  /// Takes the optimizer's main parameters (float32) as the weights, where there are any, before
  /// anything else. Needs optimizer state in the shapes of the model.
  bool main_parameters = false;
  /// Averages these models with the source, before anything else: the elements of all become the
  /// sum of weight × element, in float32, rounded once to the dtype of the source. All must have
  /// the same tensors. The optimizer is left out; objects and the common state are the source's.
  std::vector<Location> average{};
  /// The weights of the source and of `average`, in their order, which sum to 1; empty: equal ones.
  std::vector<double> weights{};
  /// Adds the tensors that the source lacks from these models, each from the first that has it.
  std::vector<Location> join{};
  /// Selects tensors and objects (objects by key or unique key) by their names in the source. The
  /// common state is always kept. With a map, patterns match names of either side: `exclude`
  /// removes keys of the source before the map sees them, and `include` selects among the keys that
  /// the map makes or, where it matches none of them, among those of the source.
  KeyFilter keys{};
  /// If data files are missing or too short, converts the keys that are whole; otherwise an error
  /// names the others.
  bool allow_partial = false;
};

/// The checkpoint that a conversion writes.
struct ConvertTarget {
  /// A save strategy of the registry ("torch_dist", "dcp", your own). Empty: the one that `compat`
  /// implies, or else the format of the source.
  std::string strategy{};
  std::optional<int> version{};  ///< of the strategy; empty: the newest
  OwnOptions options{};          ///< of the strategy, as in save.backend.options of a policy
  /// Allowed: for torch_dist, kMegatron or kMegatron019; for dcp, kDcp. Contradictions are refused.
  /// Empty: kMegatron, or kMegatron019 for a source of that form if neither another format nor
  /// options of the optimizer are given: such a copy keeps its form.
  std::optional<Compat> compat{};
  /// Cuts every tensor into shards for this many ranks (along its longest axis that allows it).
  /// Empty keeps the chunks, or joins them for a format that stores tensors whole.
  std::optional<int> ranks{};
  std::vector<RenameRule> rename{};  ///< of the keys in the result; see rename.h
  /// The folder whose model files (config.json, the tokenizer; no weights) are copied to hf and
  /// safetensors. Empty: the source, if it is such a folder. For all formats, a map takes numbers
  /// from its config.json.
  std::optional<Location> model_files{};
  std::string separation_hint{};  ///< see SaveOptions
  /// Writes integrity.json. Empty: if the source has one, and in formats whose data have no
  /// checksums (safetensors, zarr).
  std::optional<bool> integrity{};
  bool overwrite = false;  ///< replaces a checkpoint at the destination
  /// Continues an interrupted conversion to this destination: files that it had finished stay, the
  /// others are written. Source and options must be the same. If this run fails, too, its finished
  /// files are kept for the next one; without `resume` they are removed. If workers had shared the
  /// conversion and none is left, this run is one of them (ConvertReport::workers).
  bool resume = false;
};

/// The form in which a conversion leaves the optimizer's state.
struct ConvertOptimizer {
  /// The form from which Megatron's distributed optimizer is to resume; empty leaves it as it is.
  /// kFullyShardedModelSpace sets `flattened` to kMegatron; the others need kBoxes.
  /// ConvertSource::keys and ConvertTarget::rename then name the keys of the new form.
  std::optional<OptimizerSharding> sharding{};
  /// The form of optimizer state that Megatron 0.8 to 0.15 flattens: boxes, which every reader
  /// loads, or the form from which only these releases resume. The latter is made from boxes if the
  /// source (zarr) has them, or refused. Empty: as in a source of the same format, else boxes.
  std::optional<FlattenedForm> flattened{};
};

/// The comparisons that a conversion makes before it publishes, and the findings that it refuses.
struct ConvertChecks {
  /// Compares everything that is copied with its checksums, and first with integrity.json if the
  /// source has one; otherwise damage would get fresh, valid checksums.
  bool source = true;
  /// The source must have an integrity.json, and all its files must match it.
  bool integrity = false;
  /// Applies the map and its inverse in memory and compares the outcome with the source, bit by
  /// bit, before anything is written. convert() throws (mismatch) with the differences.
  bool round_trip = false;
  /// A config.json that goes along may differ from the tensors written. Else convert() throws
  /// (mismatch) before it writes, since transformers would make up the rest, or fail. Differences
  /// are only reported if the source's own config.json goes along and differs from the source, too,
  /// with ConvertSource::allow_partial, and if the map gives the keys a prefix, to be joined with
  /// a whole model.
  bool allow_other_config = false;
  /// Findings that are errors: convert() throws (mismatch) that names them before it writes.
  std::vector<FindingCode> error_on{};
};

/// The memory, in bytes, and the threads that a conversion uses.
struct ConvertLimits {
  /// The limit of tensor bytes in flight; if it is small, fewer threads write.
  std::uint64_t memory = std::uint64_t{256} << 20;
  /// The temporary memory of all reads together, within `memory`.
  std::uint64_t staging = std::uint64_t{64} << 20;
  /// Threads that check the source; empty: as many as write.
  std::optional<int> read_threads{};
  WriteOptions io{};
};

/// A pool of processes that share a conversion: each is started with the same options, on any host
/// that sees the source, the destination and `directory`, at any time. Each data file is written by
/// one of them, and the last one publishes. They may die: their work is taken over. The result is
/// that of one process, byte for byte. Needs a destination with rename and a format that can
/// resume; cannot be combined with `dry_run`, ConvertTarget::resume or ConvertChecks::round_trip.
struct ConvertWorkers {
  /// The directory in which the workers agree: a new one, or one of the same conversion. Empty: no
  /// pool. survey_workers() reports on it.
  std::optional<Location> directory{};
  /// The time, by the clock of the directory's storage, after which others take over the work of a
  /// process that gives no sign of life.
  std::chrono::milliseconds lease{std::chrono::minutes(2)};
};

struct ConvertOptions {
  ConvertSource source{};
  ConvertTarget target{};
  ConvertOptimizer optimizer{};
  ConvertChecks checks{};
  ConvertLimits limits{};
  ConvertWorkers workers{};
  bool dry_run = false;  ///< plans and reports, writes nothing
  Progress progress{};   ///< of tensor and object bytes written
  /// Requests a stop: convert() throws (cancelled) and removes what it has written (see
  /// ConvertTarget::resume).
  std::stop_token stop{};
};

/// The bytes of tensors and objects in a data file.
struct HeldBytes {
  std::string file;
  std::uint64_t bytes = 0;  ///< size of elements, and of objects as stored
};

/// The part of one worker in the work of a pool.
struct PoolReport {
  std::uint64_t units = 0;       ///< units of work of the conversion: files to write or to compare
  std::uint64_t units_here = 0;  ///< those that this process did
  bool published_here = false;
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
  std::optional<PoolReport> workers{};    ///< set if the conversion was shared
  std::vector<ConversionStep> steps;      ///< steps that do something, in their order
  /// Changes of form with their reasons, omissions, and the releases that load the result.
  Findings findings{};
};

/// The largest number of ranks that a checkpoint can be cut for.
inline constexpr int kMaxRanks = 1'000'000;

}  // namespace dckpt
