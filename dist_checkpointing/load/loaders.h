#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/load/key_groups.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/object_choice.h"
#include "mapping/base/key_path.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt {

// The second step of load(), and what it makes of a state dict at the end, for the two kinds of
// checkpoints. Requests are checked on all ranks; requesting is collective, merging is not.

/// The state dict of a request by keys, as Megatron loads it: sharded leaves wherever they are;
/// everything that is neither sharded nor local comes from the common state.
struct KeyedLeaves {
  LoadRequest parts{};                 ///< of the state
  std::vector<Tensor> tensors{};       ///< of the leaves that are read, in the order of the tree
  std::vector<ObjectCells> objects{};  ///< the same
  KeySet unexpected{};                 ///< keys that are not stored: their leaves stay
};

/// The state dict of a request by paths, as PyTorch DCP loads it: every leaf by its path, sharded
/// ones by their keys.
struct PathLeaves {
  struct Leaf {
    KeyPath path;
    Value value;       ///< the leaf, with the tensor that is filled
    std::string name;  ///< under which it is stored
    bool is_stored = false;
    bool is_excused = false;              ///< by load.objects
    std::optional<std::size_t> target{};  ///< of the planner
    bool was_plain = false;               ///< a tensor without a description, before the planner
  };
  LoadRequest parts{};  ///< of the state
  std::vector<Leaf> leaves{};
};

/// What is read for a state dict, and what becomes of it.
template <typename OfState>
struct StateRequest {
  ReadRequest read{};
  OfState of_state{};
};

StateRequest<KeyedLeaves> request_by_keys(LoadCall& load, const OpenedCheckpoint& from,
                                          const StateDict& state);
StateRequest<PathLeaves> request_by_paths(LoadCall& load, const OpenedCheckpoint& from,
                                          const StateDict& state);

/// The state dict of a request with what was read for it.
StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 KeyedLeaves asked, const ReadObjects& objects);
StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 PathLeaves asked, const ReadObjects& objects);

}  // namespace dckpt
