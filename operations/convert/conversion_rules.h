#pragma once

#include <span>
#include <string>

#include "operations/convert/conversion_request.h"
#include "operations/convert/conversion_steps.h"
#include "operations/convert/convert_options.h"

namespace dckpt {

/// A contradiction between options of a conversion. The tool, policies and the library refuse by
/// one table; that of option_rules.h has what contradicts itself inside of a policy. Returns the
/// reason and the remedy; empty if the rule is kept.
using ConversionRule = std::string (*)(const ConvertOptions& options);

std::span<const ConversionRule> conversion_rules() noexcept;

/// Throws CheckpointError (invalid argument) for the first rule that is broken.
void require_conversion_rules(const ConvertOptions& options);

/// A contradiction between what is requested and the opened source, or the format that is chosen.
/// Throws CheckpointError with the reason and the remedy if it is broken.
using TargetRule = void (*)(const Draft& draft, const ConversionRequest& request);

std::span<const TargetRule> target_rules() noexcept;

/// Throws CheckpointError for the first rule that is broken. `draft` has a source and a target.
void require_target_rules(const Draft& draft, const ConversionRequest& request);

}  // namespace dckpt
