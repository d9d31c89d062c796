#pragma once

#include <cstdint>

namespace dckpt {

/// Bytes of staging memory of each read that a view makes: of a few rows, or of a tile.
constexpr std::uint64_t kRowStaging = std::uint64_t{256} << 10;
constexpr std::uint64_t kTileStaging = std::uint64_t{1} << 20;

}  // namespace dckpt
