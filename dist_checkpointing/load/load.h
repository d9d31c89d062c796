#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/load_hooks.h"
#include "dist_checkpointing/open_options.h"
#include "dist_checkpointing/phase_report.h"
#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/load_plan_cache.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// An object that this rank requested in another grid than the stored one, and what load.objects
/// did with it.
struct ReshardedObject {
  std::string key;  ///< unique key, with the requested place in the grid
  WhenResharded done = WhenResharded::kKeep;
};

/// A tensor whose elements were converted to the requested dtype (load.cast).
struct CastTensor {
  std::string key;
  DType stored = DType::kFloat32;
  DType loaded = DType::kFloat32;

  friend bool operator==(const CastTensor&, const CastTensor&) = default;
};

/// A plain tensor of the state that the stored value replaced, and the kind of that value.
struct ReplacedTensor {
  std::string name;    ///< the path, joined by dots
  std::string stored;  ///< "float", "bfloat16 tensor of shape (2,)"

  friend bool operator==(const ReplacedTensor&, const ReplacedTensor&) = default;
};

/// What a load did on this rank; times and `bytes` of phases are of all ranks.
struct LoadReport {
  /// Stored, but requested by no rank (if the strict mode reports them).
  std::vector<std::string> missing;
  /// Requested by this rank, but not stored (if the strict mode reports them, or load.missing keeps
  /// them); left unchanged.
  std::vector<std::string> unexpected;
  std::vector<std::string> kept;  ///< paths of plain values of this rank's state that the common
                                  ///< state lacks; left unchanged
  /// Plain tensors of this rank's state that were not filled, because something else is stored
  /// under their names: the tree holds that instead, and the caller's memory is unchanged.
  std::vector<ReplacedTensor> replaced;
  /// Keys of this rank's state that the planner left out; unchanged.
  std::vector<std::string> left_out;
  /// Keys of which this rank asked for less than is stored (load.allow_truncation).
  std::vector<std::string> truncated;
  std::vector<ReshardedObject> resharded_objects;  ///< not loaded, or gathered
  /// What rank 0 has warned of: keys, values and files. The same on every rank.
  Findings findings{};
  /// Of all ranks, the same on each of them; behind them this rank's tensors of the common state.
  std::vector<CastTensor> casts;
  /// Whether the ranks' shards were checked to cover every requested key; false for a load of parts
  /// (load.validate_access_integrity is off).
  bool access_checked = false;
  std::uint64_t bytes_wanted = 0;  ///< tensor bytes delivered on this rank, counted as stored
  std::uint64_t bytes_read = 0;    ///< bytes read from files for them, of which
  std::uint64_t bytes_direct = 0;  ///< … past the page cache (load.engine)
  std::uint64_t bytes_mapped = 0;  ///< … copied out of mapped files: short runs that lie apart
  /// Tensor bytes that this rank read without comparing them with a checksum: none is recorded, all
  /// ranks together read only a part of the record, or load.verify is none.
  std::uint64_t bytes_unchecked = 0;
  double seconds = 0;  ///< from the call until the state was put together, on rank 0
  // Phase says what each one is. `exchange` and `read` overlap.
  PhaseReport open{};
  PhaseReport exchange{};  ///< none unless ranks share the reading (load.parallel)
  PhaseReport read{};
  bool plan_cached = false;   ///< the plan of the previous load was reused
  std::string why_planned{};  ///< otherwise: "first load", "load.parallel is off", …
  /// How the ranks read tensors: "buffered", "direct", "mapped", or several, most bytes first. Less
  /// than a hundredth of the bytes does not count; empty if none were read.
  std::string engine{};
};

/// One line: "4.31 s (open 0.12 s; exchange 1.10 s, cached; read 3.02 s, 3.9 GiB/s, direct, rank 3
/// was the last)". Rank 0 logs it for every load (LogLevel::kInfo).
std::string to_string(const LoadReport& report);

/// Loads a checkpoint into a sharded state dict. Collective like `save`: options and checkpoint are
/// compared, but each rank may read its own copy. `location` may be a training root, which stands
/// for its latest iteration.
///
/// The tree keeps its descriptions, so that it can be saved and loaded again. `data` of each
/// ShardedTensor is filled in place if it has memory, of the CPU or of a registered device
/// (docs/gpu_tensors.md), and is a new tensor of the CPU otherwise; memory that several of its
/// elements share (an expanded tensor), or that was imported to be saved only (DlpackUse::kSave),
/// is refused. A ShardedObject gets the stored value, a factory's data the merged tensor, and local
/// non-persistent objects stay. The common state replaces the plain values of the tree, and plain
/// tensors of the same dtype and shape are filled in place. Values that it lacks are kept and
/// reported. From a plain DCP directory, plain tensors are filled and other leaves replaced by what
/// is stored under their path; a dict or list without tensors that torch 2.3 or older stored as one
/// object is replaced as a whole.
///
/// The ranks' requests must cover each key exactly once, not counting replicas; to load parts, set
/// options.validate_access_integrity = false. If no rank has a sharded leaf, only the common state
/// is loaded, as in Megatron, and a warning names the functions that load more. Keys, shapes and
/// files are checked for all leaves before the first tensor byte moves; missing keys are reported
/// once for all ranks.
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, const LoadHooks& hooks = {});
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options = {});

/// The same for one of several loads. Each rank keeps a `cache`, which remembers who reads what
/// if ranks share the reading. If all ranks request the same parts as last time, from a checkpoint
/// that is cut into the same chunks, they exchange a few bytes instead of lists of parts.
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, LoadPlanCache& cache, const LoadHooks& hooks = {});

/// Like load(), but the result has Megatron's shape: plain tensors in place of ShardedTensors and
/// factories, the values of ShardedObjects and local objects, and the common state; nothing else of
/// the caller's tree. Such a tree cannot be saved again, because its tensors have no descriptions.
LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options,
                      Communicator& comm);
LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options = {});

/// The contents of a checkpoint, without a state dict to fill: objects, and whole tensors in new
/// memory. They are nested as they were saved if the checkpoint records paths, as a plain DCP
/// directory does (unused list positions become none), and otherwise stand under their keys. The
/// common state is not included. With `keys`, only what these name: a key, or a path that leads to
/// it, components joined by dots ("model", "optimizer.state.0"). A name that selects nothing is an
/// error unless options.allow_partial_load is set, which also leaves out keys whose data files are
/// missing. Collective like `load`; every rank gets everything. Throws CheckpointError (invalid
/// argument) for options about filling a state dict (strict, shapes, renaming, …).
[[nodiscard]] StateDict load_state_dict(const Location& location,
                                        const std::vector<std::string>& keys,
                                        const LoadOptions& options, Communicator& comm);
[[nodiscard]] StateDict load_state_dict(const Location& location,
                                        const std::vector<std::string>& keys = {},
                                        const LoadOptions& options = {});

/// The common state; none if the checkpoint has none.
[[nodiscard]] StateDict load_common_state(const Location& location,
                                          const OpenOptions& options = {});

/// What the saving trainer recorded about the contents (SaveHooks::content_metadata); empty if
/// nothing, which differs from an empty dict.
[[nodiscard]] std::optional<Value> load_content_metadata(const Location& location,
                                                         const OpenOptions& options = {});

/// All tensors as a whole, key → tensor. Needs memory for all of them.
[[nodiscard]] StateDict load_plain_tensors(const Location& location,
                                           const LoadOptions& options = {});

/// All cells of the objects of one key, with their data, in the order of their places in the grid:
/// for state that is cut anew for other ranks, as a data loader's is. A value of a plain DCP
/// directory is one cell. Throws CheckpointError (mismatch) with the most similar key if there is
/// none, and (invalid argument) as load_plain_tensors.
[[nodiscard]] std::vector<ShardedObject> load_objects(const Location& location,
                                                      const std::string& key,
                                                      const LoadOptions& options = {});

/// Key → ShardedTensor of the whole tensor without data, and unique key → ShardedObject without
/// data (for a plain DCP directory: key → none). Pass it to `load` to load everything. The common
/// state is not included, even if it is stored as an object (Megatron 0.19 and newer); use
/// load_common_state().
[[nodiscard]] StateDict load_sharded_metadata(const Location& location,
                                              const OpenOptions& options = {});

/// The tensors of it.
[[nodiscard]] StateDict load_tensors_metadata(const Location& location,
                                              const OpenOptions& options = {});

}  // namespace dckpt
