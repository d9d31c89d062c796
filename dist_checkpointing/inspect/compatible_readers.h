#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "configs/conventions.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// What determines which releases can load a checkpoint.
struct StoredForm {
  Conventions conventions{};
  bool common_file = false;  ///< the common state is a separate file
  const Metadata& metadata;
  const Value& common;
  std::string_view readers{};  ///< see CheckpointInfo
  /// Of the optimizer, tensors and objects that a conversion has left out, while others are there.
  std::uint64_t state_left_out = 0;
};

/// Who loads it. No form of an optimizer works for all releases of Megatron-Core.
Readers readers_of(const StoredForm& form);
/// The same as sentences.
std::vector<std::string> describe_readers(const StoredForm& form);

/// What a run that resumes the optimizer may change, for people: "TP, PP, EP, DP", "DP only" or
/// "no, because …"; empty if no optimizer state is stored, or nothing is known of its form.
std::string describe_resharding(const StoredForm& form);

}  // namespace dckpt
