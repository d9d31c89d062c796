#pragma once

#include <string_view>
#include <vector>

#include "strategies/storage/storage.h"

namespace dckpt {

/// Returns the entries of the root in name order. Includes those of `names` that exist even if the
/// list is late, as it may be in a storage without rename.
std::vector<FileInfo> list_with(const Storage& storage, const std::vector<std::string_view>& names);

}  // namespace dckpt
