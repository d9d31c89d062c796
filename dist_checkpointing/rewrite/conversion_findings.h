#pragma once

#include "mapping/base/finding.h"

namespace dckpt {

/// Returns whether a conversion can make findings of this kind, and not only saves, loads, or
/// checks, whose findings would make a conversion fail in any case.
constexpr bool is_of_conversions(FindingCode code) noexcept {
  switch (code) {
    case FindingCode::kKeysDiffer:
    case FindingCode::kValuesKept:
    case FindingCode::kValuesReplaced:
    case FindingCode::kValuesTruncated:
    case FindingCode::kObjectsNotLoaded:
    case FindingCode::kNothingRequested:
    case FindingCode::kManifestUnusable:
    case FindingCode::kRanksDiffer:
    case FindingCode::kBoxesContradict:
    case FindingCode::kElementsOverlap:
    case FindingCode::kElementsMissing:
    case FindingCode::kNotFinite:
    case FindingCode::kStateImpossible: return false;
    default: return true;
  }
}

}  // namespace dckpt
