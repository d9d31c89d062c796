#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "operations/convert/conversion_facts.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// The leftovers of an interrupted conversion.
struct Interrupted {
  std::string directory;           ///< hidden, beside the target
  std::optional<Location> pool{};  ///< of the workers that shared it; empty if it was one process
  std::uint64_t files = 0;         ///< that are finished
  std::uint64_t bytes = 0;         ///< in these files
};

/// Returns the leftovers beside `target` of a conversion with these facts, or of a pool whose facts
/// are `shared`; of several, the one that had finished the most. Throws CheckpointError: (mismatch)
/// naming the differences if there are only others; (unsupported) if there are only those of an
/// earlier build, or a pool of one; (aborted) if workers of its pool are still at work.
std::optional<Interrupted> find_interrupted(const Location& target, const ConversionFacts& facts,
                                            const ConversionFacts& shared);

}  // namespace dckpt
