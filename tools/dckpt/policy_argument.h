#pragma once

#include <string>

#include "configs/policy.h"

namespace dckpt::tool {

/// A policy named on the command line: a file, or the bare name of one that ships with dckpt (if
/// there is no such file).
struct PolicyArgument {
  std::string name{};

  /// Throws CheckpointError: io if the file cannot be read, invalid-argument for a name that is
  /// neither.
  PolicyText text() const { return find_policy(name); }
  /// Without problems; also throws CheckpointError for mistakes in it.
  CheckedPolicy checked() const {
    const PolicyText found = text();
    CheckedPolicy checked = check_policy(found.yaml, found.folder);
    raise_if_any(std::move(checked.problems), found.name);
    return checked;
  }
};

}  // namespace dckpt::tool
