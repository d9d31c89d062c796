#pragma once

#include <span>
#include <string>

#include "mapping/base/error.h"
#include "operations/convert/convert_options.h"
#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// A contradiction between options of a conversion, or between an option and the format that is
/// written. The tool, policies and the library refuse by one table; that of option_rules.h has what
/// contradicts itself inside of a policy.
struct ConversionRule {
  /// Returns the reason and the remedy; empty if the rule is kept. `format` is null as long as it
  /// is not known; rules about the format are then kept.
  std::string (*broken)(const ConvertOptions& options, const SaveStrategyEntry* format);
  ErrorCode code = ErrorCode::kInvalidArgument;
};

std::span<const ConversionRule> conversion_rules() noexcept;

/// Throws CheckpointError for the first rule that is broken.
void require_conversion_rules(const ConvertOptions& options, const SaveStrategyEntry* format);

}  // namespace dckpt
