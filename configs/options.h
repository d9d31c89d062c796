#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "configs/yaml.h"
#include "mapping/base/enum_names.h"
#include "mapping/base/io_engine.h"
#include "mapping/planning/planner_options.h"
#include "mapping/planning/save_plan.h"

// Options of save and load: plain data with defaults. policy.h reads them from YAML;
// docs/policies.md lists every field.

namespace dckpt {

/// Which readers must accept a checkpoint that is written.
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
std::optional<Compat> parse_compat(std::string_view name) noexcept;

inline constexpr EnumNames<FlattenedForm, 2> kFlattenedFormNames{
    {{FlattenedForm::kBoxes, "boxes"}, {FlattenedForm::kMegatron, "megatron"}}};

/// A strategy of the registry.
struct StrategyName {
  std::string name = "torch_dist";
  std::optional<int> version{};  ///< empty: the newest that there is
  YamlNode options{};  ///< its own, a map or nothing; the strategy reads them with read_options()

  friend bool operator==(const StrategyName&, const StrategyName&) = default;
};

/// How ranks that want the same data hand it to each other.
enum class Exchange : std::uint8_t { kAuto, kBroadcast, kGather, kAllToAll };
inline constexpr EnumNames<Exchange, 4> kExchangeNames{{{Exchange::kAuto, "auto"},
                                                        {Exchange::kBroadcast, "broadcast"},
                                                        {Exchange::kGather, "gather"},
                                                        {Exchange::kAllToAll, "all_to_all"}}};

/// Fully parallel save: the ranks that hold the same shard share the writing. Nothing is handed
/// over: each writes what it has.
struct ParallelSaveOptions {
  bool enabled = false;

  friend bool operator==(const ParallelSaveOptions&, const ParallelSaveOptions&) = default;
};

/// Fully parallel load: what several ranks want is read by one of them.
struct ParallelOptions {
  bool enabled = false;
  Exchange exchange = Exchange::kAuto;

  friend bool operator==(const ParallelOptions&, const ParallelOptions&) = default;
};

/// When the state is copied before it is written in the background.
enum class Snapshot : std::uint8_t {
  kEager,  ///< all of it before save returns
};
inline constexpr EnumNames<Snapshot, 1> kSnapshotNames{{{Snapshot::kEager, "eager"}}};

/// Saving in the background: what AsyncSaver does, and Checkpointer where it is enabled.
struct AsyncOptions {
  bool enabled = false;
  Snapshot snapshot = Snapshot::kEager;
  std::uint64_t staging_memory = std::uint64_t{8}
                                 << 30;  ///< for copies of the state, in bytes per process

  friend bool operator==(const AsyncOptions&, const AsyncOptions&) = default;
};

struct WriteOptions {
  IoEngine engine = IoEngine::kAuto;
  int threads = 2;  ///< per process that writes
  int files_per_rank = 1;
  bool fsync = true;  ///< make files durable before the checkpoint is published
  /// CRC-32 of every payload in its zip record; without, records say "not computed".
  bool checksums = true;
  bool page_aligned = false;  ///< payloads start at multiples of 4096 bytes (a little larger,
                              ///< faster to map and to read directly)

  friend bool operator==(const WriteOptions&, const WriteOptions&) = default;
};

struct SaveOptions {
  StrategyName strategy{};
  Compat compat = Compat::kMegatron;
  FlattenedForm flattened = FlattenedForm::kBoxes;
  PlannerOptions planner{};  ///< of the kinds, Compat::kDcp takes `default` and `standard` (and
                             ///< takes `mcore` as `default`), the others `mcore`
  ParallelSaveOptions parallel{};
  AsyncOptions async{};
  /// Replace an existing checkpoint of that name (atomically); else that is an error.
  bool overwrite = false;
  bool integrity = false;  ///< write integrity.json with a SHA-256 per file
  /// Tensors and objects whose keys begin with it go to data files of their own, named
  /// "{hint}__{rank}_{number}.distcp", so that remove_sharded_tensors() can delete them as files.
  /// Empty: none. See separation_hint.h for what it may be.
  std::string separation_hint{};
  WriteOptions io{};
  /// The longest that a save may take, from the call to publication; 0: as long as every rank gives
  /// signs of life.
  std::chrono::milliseconds timeout{0};

  friend bool operator==(const SaveOptions&, const SaveOptions&) = default;
};

/// Megatron's StrictHandling. "Unexpected": asked for, but not in the checkpoint. "Missing": in the
/// checkpoint, but asked for by no rank.
enum class StrictHandling : std::uint8_t {
  kAssumeOkUnexpected,  ///< unexpected keys are an error of the strategy; missing ones are ignored
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
std::optional<StrictHandling> parse_strict(std::string_view name) noexcept;

/// What stands in a tensor beyond the stored one, where another shape is allowed.
enum class Padding : std::uint8_t {
  kZero,
  kReplicate,  ///< the nearest stored element: the last row goes on
};
inline constexpr EnumNames<Padding, 2> kPaddingNames{
    {{Padding::kZero, "zero"}, {Padding::kReplicate, "replicate"}}};

/// Gives keys of a checkpoint the names under which they are asked for; see rename.h for what the
/// texts mean.
struct RenameRule {
  std::string from{};  ///< a regular expression
  std::string to{};    ///< what replaces each match; \1 to \9 are its groups

  friend bool operator==(const RenameRule&, const RenameRule&) = default;
};

/// What a load does with an object that is stored in another grid, that is by other ranks, than it
/// is asked for.
enum class WhenResharded : std::uint8_t {
  kError,
  kKeep,    ///< the leaf keeps the caller's value
  kReinit,  ///< the leaf becomes none: the trainer makes the value anew
  kDrop,    ///< the leaf is taken out of the state
};
inline constexpr EnumNames<WhenResharded, 4> kWhenReshardedNames{{
    {WhenResharded::kError, "error"},
    {WhenResharded::kKeep, "keep"},
    {WhenResharded::kReinit, "reinit"},
    {WhenResharded::kDrop, "drop"},
}};

/// What becomes of the objects whose keys match a glob.
struct ObjectRule {
  std::string keys{};
  WhenResharded when_resharded = WhenResharded::kError;

  friend bool operator==(const ObjectRule&, const ObjectRule&) = default;
};

/// What is compared with its checksum when it is loaded. Objects, the common state and the headers
/// of tensors always are, where a CRC is recorded.
enum class Verify : std::uint8_t {
  kNone,  ///< elements of tensors are taken as they are
  kCrc,   ///< elements too, while they are read, wherever a CRC-32 is recorded and all that it was
          ///< made of is read
  kSha256,  ///< before, all files with integrity.json, which must be there and list every file that
            ///< is read
};
inline constexpr EnumNames<Verify, 3> kVerifyNames{
    {{Verify::kNone, "none"}, {Verify::kCrc, "crc"}, {Verify::kSha256, "sha256"}}};

struct LoadOptions {
  /// Of the registry; "auto" is the one that recognises the checkpoint.
  std::string strategy = "auto";
  StrictHandling strict = StrictHandling::kAssumeOkUnexpected;
  bool allow_partial_load = false;  ///< of plain DCP directories: leaves that are not stored keep
                                    ///< their values, whatever `strict` says
  ParallelOptions parallel{};
  /// Globs of keys whose global shape may differ from the stored one: the common part from the
  /// origin is read, the rest is padded.
  std::vector<std::string> allow_shape_mismatch{};
  Padding padding = Padding::kZero;
  std::vector<RenameRule> rename{};
  /// For objects whose grid has changed, the first rule that matches; without one it is an error.
  /// The defaults are Megatron's state of a rank, which has no meaning under another layout:
  /// Megatron does not load it then, either.
  std::vector<ObjectRule> objects{{"rng_state", WhenResharded::kKeep},
                                  {"rerun_state_machine_state", WhenResharded::kKeep},
                                  {"*._extra_state", WhenResharded::kKeep}};
  /// What the ranks ask for must cover each key exactly once, replicas apart, as a save would
  /// demand: a shard that was forgotten, or asked for twice, is an error. Off: ranks may ask for
  /// whatever parts they like.
  bool validate_access_integrity = true;
  Verify verify = Verify::kCrc;
  int threads = 2;
  std::uint64_t staging = std::uint64_t{64} << 20;  ///< temporary memory while reading, in bytes

  friend bool operator==(const LoadOptions&, const LoadOptions&) = default;
};

/// Which checkpoints of a run stay when a new one has been published: the `keep_last` newest, and
/// those whose iteration is a multiple of `keep_every`.
struct Retention {
  std::uint64_t keep_last = 0;   ///< 0: all
  std::uint64_t keep_every = 0;  ///< 0: none for that reason

  friend bool operator==(const Retention&, const Retention&) = default;
};

}  // namespace dckpt
