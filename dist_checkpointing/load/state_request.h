#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/open/key_groups.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/value.h"

namespace dckpt {

// The second step of load(), and its merge into the state dict at the end. A request is made by
// keys, as Megatron loads: of the sharded leaves anywhere in the tree, while everything that is
// neither sharded nor local comes from the common state. Or it is made by paths, as PyTorch DCP
// loads (OpenedCheckpoint::is_plain_dcp): of every leaf by its path, sharded ones by their keys.

/// A leaf of the state that is requested, under the name by which it is stored.
struct RequestedLeaf : FlatLeaf {
  std::size_t position = 0;  ///< among the sharded leaves of the tree, in a request by keys
  bool is_stored = false;
  WhenResharded rule = WhenResharded::kError;  ///< for an object stored only in other grids
  bool was_plain = false;                      ///< the state has a tensor without a description
  std::optional<std::size_t> target{};         ///< position among the planner's tensors
  bool stays = false;                          ///< the tree already has its loaded value
  std::vector<std::uint32_t> cells{};          ///< the objects to read for it
};

/// The parts to read for a state dict, and the data needed to merge them.
struct StateRequest {
  LoadRequest parts{};
  std::vector<RequestedLeaf> leaves{};
  KeySet tolerated{};  ///< missing keys whose leaves stay unchanged
  ReadRequest read{};
};

/// Makes the request, which is checked on all ranks. Collective.
StateRequest request_state(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state);

/// Returns the state dict of a request, filled with the parts that were read for it.
StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 StateRequest request, const ReadObjects& objects);

}  // namespace dckpt
