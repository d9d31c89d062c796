#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "configs/policy/own_options.h"
#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "mapping/base/io_engine.h"
#include "mapping/planning/planner_options.h"

// Options of save and load: plain data with defaults. policy.h reads them from YAML;
// docs/policies.md lists every field.

namespace DCKPT_API dckpt {

enum class FindingCode : std::uint8_t;  // mapping/base/finding.h

/// The readers that must accept a written checkpoint.
enum class Compat : std::uint8_t {
  kMegatron,     ///< all Megatron-Core versions with torch_dist, and PyTorch DCP: common.pt,
                 ///< metadata.json of four fields
  kMegatron019,  ///< the newer form: common state as an object, metadata.json of two fields
  kDcp,          ///< a plain PyTorch DCP directory: no metadata.json
};
inline constexpr EnumNames<Compat, 3> kCompatNames{{{Compat::kMegatron, "megatron"},
                                                    {Compat::kMegatron019, "megatron-0.19"},
                                                    {Compat::kDcp, "dcp"}}};

std::string_view to_string(Compat compat) noexcept;  ///< "megatron", "megatron-0.19", "dcp"
[[nodiscard]] std::optional<Compat> parse_compat(std::string_view name) noexcept;

inline constexpr EnumNames<FlattenedForm, 2> kFlattenedFormNames{
    {{FlattenedForm::kBoxes, "boxes"}, {FlattenedForm::kMegatron, "megatron"}}};

/// A strategy of the registry and its options.
struct StrategySpec {
  std::string name = "torch_dist";
  std::optional<int> version{};  ///< empty: the newest
  OwnOptions options{};          ///< the strategy's own, which it reads with read_options()

  friend bool operator==(const StrategySpec&, const StrategySpec&) = default;
};

/// The cases in which ranks that need the same data send it to each other.
enum class Exchange : std::uint8_t {
  kAuto,      ///< where this saves enough reading
  kAllToAll,  ///< always
};
/// Megatron's "broadcast" and "gather" are accepted and mean all_to_all.
inline constexpr EnumNames<Exchange, 4> kExchangeNames{{{Exchange::kAuto, "auto"},
                                                        {Exchange::kAllToAll, "all_to_all"},
                                                        {Exchange::kAllToAll, "broadcast"},
                                                        {Exchange::kAllToAll, "gather"}}};

/// Fully parallel save: the ranks that hold the same shard share the writing. No data is exchanged:
/// each rank writes a part of the data that it holds.
struct ParallelSaveOptions {
  bool enabled = false;

  friend bool operator==(const ParallelSaveOptions&, const ParallelSaveOptions&) = default;
};

/// Fully parallel load: data that several ranks need is read by one of them.
struct ParallelOptions {
  bool enabled = false;
  Exchange exchange = Exchange::kAuto;  ///< values other than kAuto need `enabled`

  friend bool operator==(const ParallelOptions&, const ParallelOptions&) = default;
};

/// The time at which the state is copied for a background save.
enum class Snapshot : std::uint8_t {
  kEager,  ///< all of it before save returns
  kLazy,   ///< tensors after save has returned: they may change once wait_staged() has returned
};
inline constexpr EnumNames<Snapshot, 2> kSnapshotNames{
    {{Snapshot::kEager, "eager"}, {Snapshot::kLazy, "lazy"}}};

/// The behavior of a background save while the previous one still runs.
enum class WhenBusy : std::uint8_t {
  kWait,     ///< waits for it
  kSkip,     ///< saves nothing
  kReplace,  ///< waits in the background, in place of a save that waits there already
};
inline constexpr EnumNames<WhenBusy, 3> kWhenBusyNames{
    {{WhenBusy::kWait, "wait"}, {WhenBusy::kSkip, "skip"}, {WhenBusy::kReplace, "replace"}}};

/// Background saves: AsyncSaver always makes them, Checkpointer makes them if `enabled`.
struct AsyncOptions {
  bool enabled = false;
  Snapshot snapshot = Snapshot::kEager;
  std::uint64_t staging_memory = std::uint64_t{8}
                                 << 30;  ///< size of the staging pool, in bytes per process
  WhenBusy when_busy = WhenBusy::kWait;

  friend bool operator==(const AsyncOptions&, const AsyncOptions&) = default;
};

/// A save may compare the copies of what several ranks hold before it stores one of them. This says
/// how much of each it reads.
enum class CheckReplicas : std::uint8_t {
  kOff,
  kSample,  ///< tensors of more than 64 KiB by 16 samples of 4 KiB
  kAll,     ///< all elements
};
inline constexpr EnumNames<CheckReplicas, 3> kCheckReplicasNames{
    {{CheckReplicas::kOff, "off"},
     {CheckReplicas::kSample, "sample"},
     {CheckReplicas::kAll, "all"}}};

struct WriteOptions {
  IoEngine engine = IoEngine::kAuto;
  int threads = 2;  ///< per process that writes
  int files_per_rank = 1;
  bool fsync = true;  ///< sync files before the checkpoint is published
  /// Store a CRC-32 of every payload in its zip record; otherwise records say "not computed".
  bool checksums = true;
  bool page_aligned = false;  ///< payloads start at multiples of 4096 bytes (slightly larger,
                              ///< faster to map and to read directly)

  friend bool operator==(const WriteOptions&, const WriteOptions&) = default;
};

struct SaveOptions {
  StrategySpec strategy{};
  Compat compat = Compat::kMegatron;
  FlattenedForm flattened = FlattenedForm::kBoxes;
  /// In plain DCP directories, store every leaf under its path. Otherwise each entry of the state's
  /// top level that is not a tensor is one object with everything in it, tensors included, as
  /// torch's planner stores it with `flatten_state_dict=False`: the coordinator's object.
  bool flatten = true;
  PlannerOptions planner{};  ///< Compat::kDcp takes the kinds `default` and `standard` (and treats
                             ///< `mcore` as `default`), the others `mcore`
  /// A planner registered with register_planner(), and its own options. Its rules replace
  /// `planner.kind`. No name selects the built-in planner of that kind.
  StrategySpec registered_planner{.name = ""};
  ParallelSaveOptions parallel{};
  AsyncOptions async{};
  /// Replace an existing checkpoint of that name atomically; otherwise it is an error.
  bool overwrite = false;
  bool integrity = false;  ///< write integrity.json with a SHA-256 per file
  bool report = false;     ///< write dckpt_report.json with the times of the save's phases
  CheckReplicas check_replicas = CheckReplicas::kSample;
  /// A key prefix: tensors and objects whose keys start with it go to separate data files, named
  /// "{hint}__{rank}_{number}.distcp", so that remove_sharded_tensors() can delete these files.
  /// Empty: none. See separation_hint.h for valid hints.
  std::string separation_hint{};
  WriteOptions io{};
  /// Findings of these kinds are errors, before anything is written.
  std::vector<FindingCode> error_on{};
  /// Time limit for a save, from the call to publication; 0: no limit while every rank sends signs
  /// of life.
  std::chrono::milliseconds timeout{0};

  friend bool operator==(const SaveOptions&, const SaveOptions&) = default;
};

/// Megatron's StrictHandling. "Unexpected": requested, but not in the checkpoint. "Missing": in the
/// checkpoint, but requested by no rank.
enum class StrictHandling : std::uint8_t {
  kAssumeOkUnexpected,  ///< unexpected keys are an error; missing ones are ignored
  kLogUnexpected,
  kLogAll,
  kRaiseUnexpected,
  kRaiseAll,
  kReturnUnexpected,
  kReturnAll,
  kIgnoreAll,
};
inline constexpr EnumNames<StrictHandling, 8> kStrictNames{{
    {StrictHandling::kAssumeOkUnexpected, "assume_ok_unexpected"},
    {StrictHandling::kLogUnexpected, "log_unexpected"},
    {StrictHandling::kLogAll, "log_all"},
    {StrictHandling::kRaiseUnexpected, "raise_unexpected"},
    {StrictHandling::kRaiseAll, "raise_all"},
    {StrictHandling::kReturnUnexpected, "return_unexpected"},
    {StrictHandling::kReturnAll, "return_all"},
    {StrictHandling::kIgnoreAll, "ignore_all"},
}};

std::string_view to_string(StrictHandling strict) noexcept;  ///< "assume_ok_unexpected", …
[[nodiscard]] std::optional<StrictHandling> parse_strict(std::string_view name) noexcept;

/// The values of a tensor beyond the stored shape, if another shape is allowed.
enum class Padding : std::uint8_t {
  kZero,
  kReplicate,  ///< the nearest stored element: the last row is repeated
};
inline constexpr EnumNames<Padding, 2> kPaddingNames{
    {{Padding::kZero, "zero"}, {Padding::kReplicate, "replicate"}}};

/// Renames keys of a checkpoint to the requested names; see rename.h for the syntax.
struct RenameRule {
  std::string from{};  ///< a regular expression
  std::string to{};    ///< the replacement of each match; \1 to \9 are its groups

  friend bool operator==(const RenameRule&, const RenameRule&) = default;
};

/// The treatment of an object that is stored in another grid of ranks than the requested one.
enum class WhenResharded : std::uint8_t {
  kError,
  kKeep,    ///< the leaf keeps the caller's value
  kReinit,  ///< the leaf becomes none, and the trainer creates the value again
  kDrop,    ///< the leaf is removed from the state
  kGather,  ///< the leaf becomes the list of all stored cells of its key, in the order of their
            ///< grid
};
inline constexpr EnumNames<WhenResharded, 5> kWhenReshardedNames{{
    {WhenResharded::kError, "error"},
    {WhenResharded::kKeep, "keep"},
    {WhenResharded::kReinit, "reinit"},
    {WhenResharded::kDrop, "drop"},
    {WhenResharded::kGather, "gather"},
}};

/// The treatment of objects whose keys match a glob.
struct ObjectRule {
  std::string keys{};
  WhenResharded when_resharded = WhenResharded::kError;

  friend bool operator==(const ObjectRule&, const ObjectRule&) = default;
};

/// The treatment of a key that the state requests and the checkpoint lacks.
enum class WhenMissing : std::uint8_t {
  kError,
  kWarn,  ///< the leaf keeps the caller's value, and rank 0 warns
  kKeep,  ///< the leaf keeps the caller's value
};
inline constexpr EnumNames<WhenMissing, 3> kWhenMissingNames{
    {{WhenMissing::kError, "error"}, {WhenMissing::kWarn, "warn"}, {WhenMissing::kKeep, "keep"}}};

/// The treatment of missing keys that match a glob.
struct MissingRule {
  std::string keys{};
  WhenMissing action = WhenMissing::kError;

  friend bool operator==(const MissingRule&, const MissingRule&) = default;
};

/// The data that a load compares with its checksums. Objects, the common state and tensor headers
/// always are, if a CRC is recorded.
enum class Verify : std::uint8_t {
  kNone,  ///< tensor elements are not compared
  kCrc,  ///< tensor elements too, while they are read, if a CRC-32 is recorded and the whole record
         ///< is read
  kSha256,  ///< also compares all files with integrity.json first, which must exist and list every
            ///< file that is read
};
inline constexpr EnumNames<Verify, 3> kVerifyNames{
    {{Verify::kNone, "none"}, {Verify::kCrc, "crc"}, {Verify::kSha256, "sha256"}}};

/// The treatment of a tensor whose stored dtype is not the requested one.
enum class Cast : std::uint8_t {
  kForbid,  ///< it is an error
  kAllow,   ///< the elements are converted where docs/policies.md ("Casts") says so
};
inline constexpr EnumNames<Cast, 2> kCastNames{
    {{Cast::kForbid, "forbid"}, {Cast::kAllow, "allow"}}};

/// The name that stands for whichever strategy reads the checkpoint.
inline constexpr std::string_view kAutoStrategy = "auto";

/// The map that config.json beside the checkpoint names.
inline constexpr const char* kAutoMap = "auto";
/// No map, said explicitly.
inline constexpr const char* kNoMap = "none";

/// A map between the names of Megatron-Core and of Hugging Face files.
struct KeyMapOptions {
  std::string name{};  ///< a shipped map, a file, or "auto"; empty: keys stay as they are
  /// NAME=VALUE: numbers of the model that the checkpoint lacks, and settings (docs/maps.md).
  std::vector<std::string> set{};

  friend bool operator==(const KeyMapOptions&, const KeyMapOptions&) = default;
};

struct LoadOptions {
  /// "auto" detects the strategy from the checkpoint. Any other is forced: a checkpoint of another
  /// format is an error.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  StrictHandling strict = StrictHandling::kAssumeOkUnexpected;
  /// Rules that precede `strict` and `allow_partial_load`, which decide about keys that match no
  /// rule. The first rule that matches a key decides.
  std::vector<MissingRule> missing{};
  bool allow_partial_load = false;  ///< in plain DCP, leaves that are not stored, or whose file is
                                    ///< missing, keep their values; `strict` stays the default
  ParallelOptions parallel{};
  /// Globs of keys whose global shape may differ from the stored one: the common part, starting at
  /// the origin, is read and the rest is padded.
  std::vector<std::string> allow_shape_mismatch{};
  /// Globs of keys of which less may be requested than is stored: elements beyond the request are
  /// dropped. Otherwise only padding may be dropped: zeros, or repetitions of the last kept row.
  std::vector<std::string> allow_truncation{};
  /// Globs of stored keys that the state need not request: they make no finding, and a run that
  /// goes on from the checkpoint may save them with other values.
  std::vector<std::string> allow_unloaded{};
  Padding padding = Padding::kZero;
  Cast cast = Cast::kForbid;
  /// A registered planner that decides what is read; without a name, the state alone decides.
  StrategySpec registered_planner{.name = ""};
  KeyMapOptions map{};  ///< applied first: all other options see its keys
  std::vector<RenameRule> rename{};
  /// Rules for objects whose grid has changed: the first rule that matches decides; no match is an
  /// error. The defaults cover Megatron's per-rank state, which has no meaning under another
  /// layout; Megatron does not load it then either.
  std::vector<ObjectRule> objects{{"rng_state", WhenResharded::kKeep},
                                  {"rerun_state_machine_state", WhenResharded::kKeep},
                                  {"*._extra_state", WhenResharded::kKeep}};
  /// The ranks' requests must cover each key exactly once, not counting replicas, as for a save: a
  /// shard that is forgotten or requested twice is an error. If off, ranks may request any parts.
  bool validate_access_integrity = true;
  Verify verify = Verify::kCrc;
  /// `kAuto` is direct only where a single rank loads, or with `parallel`: ranks that read by
  /// themselves may read the same data.
  ReadEngine engine = ReadEngine::kAuto;
  int threads = 2;
  std::uint64_t staging = std::uint64_t{64} << 20;  ///< temporary memory while reading, in bytes
  /// Findings of these kinds are errors.
  std::vector<FindingCode> error_on{};
  /// Time limit for a load, from the call until the state is complete; 0: no limit while every rank
  /// sends signs of life.
  std::chrono::milliseconds timeout{0};

  friend bool operator==(const LoadOptions&, const LoadOptions&) = default;
};

/// The checkpoints of a run that are kept after a new one has been published: the `keep_last`
/// newest, those whose iteration is a multiple of `keep_every`, and those that `keep` names.
struct Retention {
  std::uint64_t keep_last = 0;   ///< 0: all
  std::uint64_t keep_every = 0;  ///< 0: none; other values need `keep_last`
  /// Patterns of iterations ("2000", "15*") or of directories ("iter_0002000"); need `keep_last`.
  std::vector<std::string> keep{};

  friend bool operator==(const Retention&, const Retention&) = default;
};

/// Permissions of a run that resumes from a checkpoint.
struct ResumeOptions {
  /// Save states that lack tensors of the checkpoint from which the run has resumed; otherwise they
  /// are an error.
  bool allow_dropped_keys = false;

  friend bool operator==(const ResumeOptions&, const ResumeOptions&) = default;
};

}  // namespace dckpt
