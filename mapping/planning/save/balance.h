#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "mapping/planning/save/collect.h"
#include "mapping/planning/save/dedup.h"
#include "mapping/planning/save/global_plan.h"

namespace dckpt {

/// Which items are written.
struct ChosenItems {
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<std::uint8_t> chosen;                 ///< of each item, whether its rank writes it
  std::unordered_map<std::uint32_t, Piece> pieces;  ///< of items of which a piece is written
  /// Items that store a chunk again → the item that stores it first. Only with `redundant`.
  std::unordered_map<std::uint32_t, std::uint32_t> copy_of;
  std::vector<std::string> problems;
};

/// Chooses the writers of every part, and balances their bytes.
ChosenItems choose_writers(const CollectedItems& collected, std::span<const DedupedKey> deduped,
                           const GlobalPlanOptions& options);

}  // namespace dckpt
