#pragma once

#include <string>

#include "configs/policy/policy.h"

namespace dckpt::tool {

/// A policy named on the command line: a file, or, if there is no such file, the bare name of a
/// policy that ships with dckpt.
struct PolicyArgument {
  std::string name{};

  /// Reads the policy. Throws CheckpointError: io if the file cannot be read, invalid-argument for
  /// a name that is neither.
  PolicyText text() const { return find_policy(name); }
  /// Reads and checks the policy. Throws CheckpointError also for mistakes in it.
  CheckedPolicy checked() const {
    const PolicyText found = text();
    CheckedPolicy checked = check_policy(found.yaml, found.folder);
    raise_if_any(std::move(checked.problems), found.name);
    return checked;
  }
};

}  // namespace dckpt::tool
