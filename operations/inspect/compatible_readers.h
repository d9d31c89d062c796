#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "configs/policy/conventions.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "operations/inspect/inspect.h"

namespace dckpt {

/// The properties of a checkpoint that determine which releases can load it.
struct StoredForm {
  Conventions conventions{};
  bool common_file = false;  ///< the common state is a separate file
  const Metadata& metadata;
  const Value& common;
  std::string_view readers{};  ///< see CheckpointInfo
  /// Number of the optimizer's tensors and objects that a conversion has left out although it has
  /// taken others.
  std::uint64_t state_left_out = 0;
};

/// Returns the releases that can load the checkpoint. No form of an optimizer works for all
/// releases of Megatron-Core.
Readers readers_of(const StoredForm& form);
/// Returns the same as sentences.
std::vector<std::string> describe_readers(const StoredForm& form);

/// Returns, as text for messages, the parallel sizes that a run resuming the optimizer may change:
/// "TP, PP, EP, DP", "DP only" or "no, because …". Returns "" if no optimizer state is stored or
/// its form is unknown.
std::string describe_resharding(const StoredForm& form);

}  // namespace dckpt
