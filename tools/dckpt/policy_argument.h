#pragma once

#include <string>

#include "configs/policy.h"

namespace dckpt::tool {

/// A policy named on the command line: a file, or the bare name of one that comes with dckpt (if there is no such file).
struct PolicyArgument {
  std::string name{};

  /// Its YAML. Throws CheckpointError: io if the file cannot be read, invalid-argument for a name that is neither.
  std::string text() const;
  /// Throws CheckpointError like Policy::from_text, too.
  Policy parsed() const { return Policy::from_text(text(), name); }
};

}  // namespace dckpt::tool
