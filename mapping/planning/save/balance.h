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

/// The items that are written.
struct ChosenItems {
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<std::uint8_t> chosen;                 ///< for each item, whether its rank writes it
  std::unordered_map<std::uint32_t, Piece> pieces;  ///< for items of which a piece is written
  /// Maps items that store a chunk again to the item that stores it first. Only with `redundant`.
  std::unordered_map<std::uint32_t, std::uint32_t> copy_of;
  std::vector<std::string> problems;
};

/// Chooses the writers of every part, and balances their bytes.
ChosenItems choose_writers(const CollectedItems& collected, std::span<const DedupedKey> deduped,
                           const GlobalPlanOptions& options);

}  // namespace dckpt
