#pragma once

#include <optional>
#include <string_view>

namespace dckpt {

/// Returns the rank in a data file's name: "__12_0.distcp" → 12, also with a prefix before the
/// underscores. Empty for other names.
std::optional<int> rank_of_file(std::string_view name);

}  // namespace dckpt
