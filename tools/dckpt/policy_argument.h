#pragma once

#include <string>

#include "configs/policy.h"

namespace dckpt::tool {

/// A policy named on the command line: a file, or the bare name of one that comes with dckpt (if
/// there is no such file).
struct PolicyArgument {
  std::string name{};

  /// Throws CheckpointError: io if the file cannot be read, invalid-argument for a name that is
  /// neither.
  PolicyText text() const { return find_policy(name); }
  /// Throws CheckpointError for what is wrong with it, too.
  Policy parsed() const { return Policy::find(name); }
};

}  // namespace dckpt::tool
