#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/options.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/load_planner.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// An object that this rank asks for in another grid than the stored one, and what load.objects did
/// with it.
struct ReshardedObject {
  std::string key;  ///< unique: with the place in the grid that is asked for
  WhenResharded done = WhenResharded::kKeep;
};

struct LoadReport {
  /// Stored, but asked for by no rank (when the strict mode reports them).
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;  ///< asked for by this rank, but not stored (when the strict
                                        ///< mode reports them): left as it was
  std::vector<std::string> kept;  ///< paths of plain values of this rank's state for which the
                                  ///< common state has none: left as they were
  std::vector<ReshardedObject> resharded_objects;  ///< not loaded
  /// Whether the ranks' shards were found to cover every key that they ask for; false for a load of
  /// parts (load.validate_access_integrity is off).
  bool access_checked = false;
  std::uint64_t bytes_wanted = 0;  ///< tensor bytes delivered on this rank
  std::uint64_t bytes_read = 0;    ///< bytes asked from files for them
  /// Tensor bytes that this rank read and that were compared with no checksum: none is recorded,
  /// only a part of the record was read (by all ranks together), or load.verify is none.
  std::uint64_t bytes_unchecked = 0;
};

/// Loads a checkpoint into a sharded state dict. Collective like `save`: options and checkpoint are
/// compared, but each rank may have a copy of its own. `location` may be a training root (the
/// latest iteration is taken).
///
/// The tree keeps its descriptions, so that it can be saved and loaded again: `data` of each
/// ShardedTensor is filled in place where it has CPU memory and is a new tensor otherwise, a
/// ShardedObject gets the stored value, a factory's data is what it merges, local non-persistent
/// objects stay. The common state replaces the plain values of the tree, and plain tensors of the
/// same dtype and shape are filled in place; those that it does not have are kept and reported. Of
/// a plain DCP directory, plain tensors are filled and other leaves replaced by what is stored
/// under their path; a dict or list without tensors that torch 2.3 or older stored as one object is
/// replaced as a whole.
///
/// What the ranks ask for must cover each key exactly once, replicas apart;
/// options.validate_access_integrity = false loads parts. If no rank has a sharded leaf, only the
/// common state is loaded, as by Megatron, and a warning says which functions load more. Keys,
/// shapes and files are checked for all leaves before the first tensor byte moves; keys that are
/// not stored are reported once for all ranks.
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm);
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options = {});

/// The same for one load of several: `planner`, kept by each rank from load to load, remembers who
/// reads what where ranks share the reading. When all ask for the same parts as last time, of a
/// checkpoint that is cut into the same chunks, they exchange a few bytes instead of lists of
/// parts.
LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, LoadPlanner& planner);

/// As load(), but the result has Megatron's shape: a plain tensor in place of each ShardedTensor
/// and factory, the value of each ShardedObject and local object, and the common state; nothing
/// else of the caller's tree. Such a tree cannot be saved again: its tensors have no descriptions.
LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options,
                      Communicator& comm);
LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options = {});

/// What a checkpoint holds, without a state dict to put it into: whole tensors in new memory and
/// objects, nested as they were saved (a plain DCP directory records the path of every value; list
/// positions that are not taken become none), else under their keys. The common state is not among
/// them. With `keys`, only what these name: a key itself, or a path that leads to it, components
/// joined by dots ("model", "optimizer.state.0"). A key that names nothing is an error unless
/// options.allow_partial_load. Collective like `load`; every rank gets all. Throws CheckpointError
/// (invalid argument) for options that say how a state dict is filled: strict, shapes, renaming and
/// the like.
StateDict load_state_dict(const Location& location, const std::vector<std::string>& keys,
                          const LoadOptions& options, Communicator& comm);
StateDict load_state_dict(const Location& location, const std::vector<std::string>& keys = {},
                          const LoadOptions& options = {});

/// The common state; none if the checkpoint has none.
StateDict load_common_state(const Location& location);

/// What the trainer that saved it said about its contents (SaveHooks::content_metadata); empty if
/// it said nothing, which differs from an empty dict.
std::optional<Value> load_content_metadata(const Location& location);

/// Every tensor as a whole, key → tensor. Needs memory for all of them.
StateDict load_plain_tensors(const Location& location, const LoadOptions& options = {});

/// Key → ShardedTensor of the whole tensor without data, and unique key → ShardedObject without
/// data (of a plain DCP directory: key → none): what `load` takes to load all. The common state is
/// not among them, also where it is stored as an object (Megatron 0.19 and newer):
/// load_common_state() has it.
StateDict load_sharded_metadata(const Location& location);

}  // namespace dckpt
