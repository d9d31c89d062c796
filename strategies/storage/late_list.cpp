#include "strategies/storage/late_list.h"

#include <algorithm>
#include <string>
#include <utility>

namespace dckpt {

std::vector<FileInfo> list_with(const Storage& storage,
                                const std::vector<std::string_view>& names) {
  std::vector<FileInfo> entries = storage.list("");
  if (storage.capabilities().rename) return entries;
  for (const std::string_view name : names) {
    if (std::ranges::find(entries, name, &FileInfo::name) != entries.end()) continue;
    if (auto found = storage.stat(std::string(name))) entries.push_back(*std::move(found));
  }
  std::ranges::sort(entries, {}, &FileInfo::name);
  return entries;
}

}  // namespace dckpt
