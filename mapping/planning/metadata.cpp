#include "mapping/planning/metadata.h"

#include <algorithm>

namespace dckpt {
namespace {

template <typename Entries>
auto* find(Entries& entries, std::string_view key) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

const TensorStorageMetadata* Metadata::find_tensor(std::string_view key) const {
  return find(tensors, key);
}
const BytesStorageMetadata* Metadata::find_object(std::string_view key) const {
  return find(objects, key);
}

}  // namespace dckpt
