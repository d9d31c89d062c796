#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/open/key_groups.h"
#include "mapping/base/key_path.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt {

// The second step of load(), and its merge into the state dict at the end, for the two kinds of
// checkpoints. Requests are checked on all ranks; requesting is collective, merging is not.

/// The state dict of a request by keys, as Megatron loads it: sharded leaves anywhere in the tree.
/// Everything that is neither sharded nor local comes from the common state.
struct KeyedLeaves {
  LoadRequest parts{};            ///< request of the state
  std::vector<Tensor> tensors{};  ///< tensors of the leaves that are read, in the order of the tree
  std::vector<ObjectCells> objects{};  ///< cells of the objects, in the same order
  KeySet unexpected{};                 ///< keys that are not stored; their leaves stay unchanged
};

/// The state dict of a request by paths, as PyTorch DCP loads it: every leaf by its path, sharded
/// ones by their keys.
struct PathLeaves {
  struct Leaf {
    KeyPath path;
    Value value;       ///< the leaf, with the tensor that is filled
    std::string name;  ///< name under which it is stored
    bool is_stored = false;
    bool is_excused = false;              ///< excused by load.objects
    std::optional<std::size_t> target{};  ///< position among the planner's tensors
    bool was_plain = false;  ///< it was a tensor without a description before the planner
  };
  LoadRequest parts{};  ///< request of the state
  std::vector<Leaf> leaves{};
};

/// The parts to read for a state dict, and the data needed to merge them.
template <typename OfState>
struct StateRequest {
  ReadRequest read{};
  OfState of_state{};
};

StateRequest<KeyedLeaves> request_by_keys(LoadCall& load, const OpenedCheckpoint& from,
                                          const StateDict& state);
StateRequest<PathLeaves> request_by_paths(LoadCall& load, const OpenedCheckpoint& from,
                                          const StateDict& state);

/// Returns the state dict of a request, filled with the parts that were read for it.
StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 KeyedLeaves asked, const ReadObjects& objects);
StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 PathLeaves asked, const ReadObjects& objects);

}  // namespace dckpt
