#pragma once

#include <vector>

#include "mapping/base/finding.h"

namespace dckpt {

/// Returns whether a conversion can make findings of this kind. Those of saves and loads, which are
/// neighbors in the enumeration, are not among them, nor are errors, which end it in any case.
constexpr bool is_of_conversions(FindingCode code) noexcept {
  const bool is_of_saves_and_loads =
      code >= FindingCode::kKeysDiffer && code <= FindingCode::kRanksDiffer;
  return !is_of_saves_and_loads && usual_severity(code) != Severity::kError;
}

/// Throws CheckpointError (mismatch) for findings that ConvertChecks::error_on names.
inline void require_none(const std::vector<FindingCode>& error_on, const Findings& findings) {
  refuse(findings, error_on,
         "findings of these kinds are to be errors (--error-on, or error_on of the policy), so "
         "nothing was written:");
}

}  // namespace dckpt
