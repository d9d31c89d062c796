#pragma once

#include <span>
#include <string>
#include <vector>

#include "dist_checkpointing/load/found_tensors.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Returns a table for messages: one line per group of keys with its bytes, each beginning with "\n
/// ".
std::string table_of_bytes(std::span<const FoundTensor> tensors);

/// Returns the tensors that no rank requested. State of modules that belongs to no parameter
/// (`_extra_state`) comes and goes with the hardware and does not count.
std::vector<FoundTensor> not_requested(std::span<const FoundTensor> found);

/// Returns the tensors of `resumed_from` that a planned save of all ranks lacks: neither stored
/// under their keys, nor in the common state under their paths.
std::vector<FoundTensor> dropped_tensors(std::span<const FoundTensor> resumed_from,
                                         const Metadata& planned, const Value* common);

}  // namespace dckpt
