#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/found_tensors.h"
#include "dist_checkpointing/load/load_hooks.h"
#include "dist_checkpointing/open/open_options.h"
#include "dist_checkpointing/ranks/phase_report.h"
#include "mapping/base/api.h"
#include "mapping/base/fields.h"
#include "mapping/base/finding.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/load_plan_cache.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// An object that this rank requested in another grid than the stored one, and how load.objects
/// treated it.
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
constexpr auto fields(const ReplacedTensor*) {
  return std::tuple(Field(&ReplacedTensor::name), Field(&ReplacedTensor::stored));
}

/// The outcome of a load on this rank. Phase times and `bytes` of phases cover all ranks.
struct LoadReport {
  /// Keys that are stored, but requested by no rank (if the strict mode reports them).
  std::vector<std::string> missing;
  /// Keys requested by this rank, but not stored (if the strict mode reports them, or load.missing
  /// keeps them); left unchanged.
  std::vector<std::string> unexpected;
  std::vector<std::string> kept;  ///< paths of plain values of this rank's state that the common
                                  ///< state lacks; left unchanged
  /// Plain tensors of this rank's state that were not filled, because another kind of value is
  /// stored under their names: the tree holds the stored value, and the caller's memory is
  /// unchanged.
  std::vector<ReplacedTensor> replaced;
  /// Keys of this rank's state that the planner left out; unchanged.
  std::vector<std::string> left_out;
  /// Keys of which this rank requested less than is stored (load.allow_truncation).
  std::vector<std::string> truncated;
  std::vector<ReshardedObject> resharded_objects;  ///< not loaded, or gathered
  /// The warnings of rank 0: keys, values and files. The same on every rank.
  Findings findings{};
  /// Casts of all ranks, the same on each, followed by those of this rank's common-state tensors.
  std::vector<CastTensor> casts;
  /// True if the ranks' shards were checked to cover every requested key; false for a partial load
  /// (load.validate_access_integrity is off).
  bool access_checked = false;
  std::uint64_t bytes_wanted = 0;  ///< tensor bytes delivered on this rank, counted as stored
  std::uint64_t bytes_read = 0;    ///< bytes read from files for them
  std::uint64_t bytes_direct = 0;  ///< part read past the page cache (load.engine)
  std::uint64_t bytes_mapped = 0;  ///< part copied from mapped files: short, scattered runs
  /// Tensor bytes that this rank read without comparing them with a checksum: none is recorded, the
  /// ranks together read only a part of the record, or load.verify is none.
  std::uint64_t bytes_unchecked = 0;
  double seconds = 0;  ///< time on rank 0 until the state was put together
  // Phase describes each one. `exchange` and `read` overlap.
  PhaseReport open{};
  PhaseReport exchange{};  ///< none unless ranks share the reading (load.parallel)
  PhaseReport read{};
  bool plan_cached = false;   ///< the plan of the previous load was reused
  std::string why_planned{};  ///< reason if not cached: "first load", "load.parallel is off", …
  /// The I/O engines that read tensors: "buffered", "direct", "mapped", or several, most bytes
  /// first. Engines with less than a hundredth of the bytes are left out. Empty if none were read.
  std::string engine{};
  /// On rank 0, the tensors of the checkpoint, for continuation_check(); null on other ranks, and
  /// of loads without a state.
  std::shared_ptr<const FoundTensors> found{};
};

/// Returns one line: "4.31 s (open 0.12 s; exchange 1.10 s, cached; read 3.02 s, 3.9 GiB/s, direct,
/// rank 3 was the last)". Rank 0 logs it for every load (LogLevel::kInfo).
std::string to_string(const LoadReport& report);

/// Loads a checkpoint into a sharded state dict. Collective like `save`: options and checkpoint are
/// compared, but each rank may read its own copy. `location` may be a training root, which stands
/// for its latest iteration.
///
/// The tree keeps its descriptions, so that it can be saved and loaded again. `data` of each
/// ShardedTensor is filled in place if it has memory, of the CPU or of a registered device
/// (docs/gpu_tensors.md), and is a new CPU tensor otherwise. Memory shared by several of its
/// elements (an expanded tensor), or imported only for saving (DlpackUse::kSave), is refused. A
/// ShardedObject gets the stored value, a factory's data the merged tensor, and local
/// non-persistent objects stay. The common state replaces the plain values of the tree, and plain
/// tensors of the same dtype and shape are filled in place. Values that it lacks are kept and
/// reported. From a plain DCP directory, plain tensors are filled and other leaves are replaced by
/// the values stored under their paths; a dict or list without tensors that torch 2.3 or older
/// stored as one object is replaced as a whole.
///
/// The ranks' requests must cover each key exactly once, not counting replicas; to load parts, set
/// options.validate_access_integrity = false. If no rank has a sharded leaf, only the common state
/// is loaded, as in Megatron, and a warning names the functions that load more. Keys, shapes and
/// files are checked for all leaves before the first tensor byte moves; missing keys are reported
/// once for all ranks. A warning names the stored tensors that no rank requests; pass
/// continuation_check() to the saves that follow to refuse those that would lose them.
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, const LoadHooks& hooks = {});
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options = {});

/// Does the same for one of several loads. Each rank keeps a `cache`, which remembers who reads
/// what if ranks share the reading. If all ranks request the same parts as last time, from a
/// checkpoint that is cut into the same chunks, they exchange a few bytes instead of lists of
/// parts.
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, LoadPlanCache& cache, const LoadHooks& hooks = {});

/// Loads like load(), but the result has Megatron's shape: plain tensors in place of ShardedTensors
/// and factories, the values of ShardedObjects and local objects, and the common state; nothing
/// else of the caller's tree. Such a tree cannot be saved again, because its tensors have no
/// descriptions.
LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options,
                      Communicator& comm);
LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options = {});

/// Loads the contents of a checkpoint, without a state dict to fill: objects, and whole tensors in
/// new memory. They are nested as they were saved if the checkpoint records paths, as a plain DCP
/// directory does (unused list positions become none), and otherwise stored under their keys. The
/// common state is not included. A non-empty `keys` selects by key or by a path that leads to it,
/// components joined by dots ("model", "optimizer.state.0"). A name that selects nothing is an
/// error unless options.allow_partial_load is set, which also leaves out keys whose data files are
/// missing. Collective like `load`; every rank gets everything. Throws CheckpointError (invalid
/// argument) for options about filling a state dict (strict, shapes, renaming, …).
[[nodiscard]] StateDict load_state_dict(const Location& location,
                                        const std::vector<std::string>& keys,
                                        const LoadOptions& options, Communicator& comm);
[[nodiscard]] StateDict load_state_dict(const Location& location,
                                        const std::vector<std::string>& keys = {},
                                        const LoadOptions& options = {});

/// Loads the common state; none if the checkpoint has none.
[[nodiscard]] StateDict load_common_state(const Location& location,
                                          const OpenOptions& options = {});

/// Returns the saving trainer's record of the contents (SaveHooks::content_metadata); empty if
/// there is none, which differs from an empty dict.
[[nodiscard]] std::optional<Value> load_content_metadata(const Location& location,
                                                         const OpenOptions& options = {});

/// Loads all tensors as a whole, key → tensor. Needs memory for all of them.
[[nodiscard]] StateDict load_plain_tensors(const Location& location,
                                           const LoadOptions& options = {});

/// Loads all cells of the objects of one key, with their data, in the order of their places in the
/// grid: for state that is divided again for other ranks, such as a data loader's. A value of a
/// plain DCP directory is one cell. Throws CheckpointError (mismatch) with the most similar key if
/// there is none, and (invalid argument) as load_plain_tensors does.
[[nodiscard]] std::vector<ShardedObject> load_objects(const Location& location,
                                                      const std::string& key,
                                                      const LoadOptions& options = {});

/// Returns key → ShardedTensor of the whole tensor without data, and unique key → ShardedObject
/// without data (for a plain DCP directory: key → none). Pass it to `load` to load everything. The
/// common state is not included, even if it is stored as an object (Megatron 0.19 and newer); use
/// load_common_state().
[[nodiscard]] StateDict load_sharded_metadata(const Location& location,
                                              const OpenOptions& options = {});

/// Returns only the tensors of load_sharded_metadata().
[[nodiscard]] StateDict load_tensors_metadata(const Location& location,
                                              const OpenOptions& options = {});

}  // namespace dckpt
