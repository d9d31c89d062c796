#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

class Value;
struct LoadReport;
struct Metadata;

/// A tensor of a loaded checkpoint, under the name that load.rename gives it.
struct FoundTensor {
  std::string key;
  std::uint64_t bytes = 0;
  bool loaded = false;  ///< some rank has requested it, or a planner has left it out on purpose
};

/// The tensors of a checkpoint that a run which goes on from there must not lose.
struct FoundTensors {
  std::string checkpoint;  ///< for messages
  /// The tensors in stored order, without empty ones and those whose data files are lost.
  std::vector<FoundTensor> tensors;
  std::vector<std::string> allow_unloaded;  ///< LoadOptions::allow_unloaded
};

/// Permissions of a single save beyond those of the policy.
struct AllowedOnce {
  bool dropped_keys = false;   ///< see ResumeOptions::allow_dropped_keys
  bool unloaded_keys = false;  ///< as if LoadOptions::allow_unloaded had named all keys
};

/// Returns a SaveHooks::accept for a run that goes on from a load without a Checkpointer, which
/// checks the same: a save is refused (mismatch) if it lacks tensors of that checkpoint, or has
/// tensors which the checkpoint had and the load did not request, so that their values are new,
/// unless `allow` permits it. Every rank may pass its own report.
[[nodiscard]] std::function<void(const Metadata& planned, const Value* common)> continuation_check(
    const LoadReport& report, const AllowedOnce& allow = {});

}  // namespace dckpt
