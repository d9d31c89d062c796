#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "dist_checkpointing/rewrite/map_source.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

// What a conversion reads: its source, seen through what its options ask for.

/// Throws CheckpointError (cancelled) if a stop was requested.
void require_not_stopped(const ConvertOptions& options);

/// The source under the keys that the map gives, which decide the format if no option does, with
/// the patterns that are left for these keys.
MappedSource open_source(const Location& source, ConvertOptions& options, ConvertReport& report);

/// A folder for transformers has the keys of its models. A copy of such a folder stays as it is.
/// Throws CheckpointError (invalid argument) for Megatron's, with the maps that fit.
void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ConvertTarget& target, const ConvertOptions& options);

/// Models are what Hugging Face folders hold: the optimizer stays behind unless it is asked for.
void leave_optimizer(const CheckpointReader& reader, const ConvertTarget& target, bool optimizer,
                     KeyFilter& keys, std::vector<std::string>& remarks);

/// The source as the target's format names things: Megatron-Core's or Megatron-FSDP's keys, and the
/// optimizer's state in the form that is asked for, of which `of_optimizer` tells. `keys`: what is
/// taken of it.
std::unique_ptr<CheckpointReader> in_target_form(std::unique_ptr<CheckpointReader> reader,
                                                 const ConvertTarget& target,
                                                 const ConvertOptions& options,
                                                 const KeyFilter& keys,
                                                 std::vector<std::string>& of_optimizer,
                                                 std::vector<std::string>& remarks);

}  // namespace dckpt
