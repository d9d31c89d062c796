#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/planner/planner_kind.h"
#include "mapping/base/key_path.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt {

/// A tensor or value without a sharding description.
struct PlainLeaf {
  std::string key;
  Value value;
  std::uint32_t source = 0;  ///< for a value, its position in DescribedState::object_bytes
};

/// A rank's state as planning and writing see it: shards in the order of the tree, and the data
/// that they refer to by number.
struct DescribedState {
  std::vector<LocalShard> shards;
  std::vector<Tensor> tensors;      ///< by TensorShard::source
  std::vector<Bytes> object_bytes;  ///< by ObjectShard::source
  std::size_t own_tensors = 0;      ///< a planner has added those that follow
  std::size_t own_objects = 0;
  /// The unsharded part, on the rank that writes it, unless it is stored as an object.
  std::optional<Value> common;
  Value own_common;  ///< unsharded part on this rank; none under DCP's rules, which have no common
                     ///< state
  std::vector<std::pair<std::string, KeyPath>> paths;  ///< DCP: the path of each key in the tree
  std::vector<PlainLeaf> plain;                        ///< DCP: leaves that are not sharded
};

/// Returns what `rank` has to save. Main replicas must have data in CPU memory; other replicas only
/// if they may have to write (DCP's rules, or options.parallel). Replicas are always described, so
/// that the plan can be checked as a whole. Throws CheckpointError (invalid argument).
DescribedState describe_state(const StateDict& state, const SaveOptions& options, int rank);

}  // namespace dckpt
