#pragma once

#include <map>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/key_path.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// The paths of sharded leaves in a loaded state dict. A save that finds a plain tensor at such a
/// path would store rank 0's part as common state and lose the others.
class ShardedPaths {
 public:
  ShardedPaths() = default;
  explicit ShardedPaths(const StateDict& loaded);

  /// Throws CheckpointError (invalid argument) naming the tensors of `state` that were sharded and
  /// are now plain.
  void require_still_sharded(const StateDict& state) const;

 private:
  std::map<KeyPath, std::string> key_at_;
};

/// The kinds of tensors in a state dict.
struct TensorKinds {
  bool sharded = false;
  bool plain = false;
};
TensorKinds tensor_kinds(const StateDict& state);

}  // namespace dckpt
