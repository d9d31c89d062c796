#include "strategies/contract/common_state.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {

CommonState::CommonState(Value value)
    : value_(std::move(value)), archive_(save_torch_file(value_)) {}

CommonForm common_form(Compat compat) noexcept {
  return compat == Compat::kMegatron ? CommonForm::kFile : CommonForm::kObject;
}

Bytes stored_object(const Value& value, const Conventions& conventions) {
  return save_torch_file(conventions.objects_in_lists ? Value::list({value}) : value);
}

Value unwrap_object(const Value& stored) {
  return stored.is_list() && stored.size() == 1 ? stored.items()[0] : stored;
}

std::optional<CommonObject> take_common_object(Metadata& metadata) {
  const auto found =
      std::ranges::find(metadata.objects, kCommonStateKey, &BytesStorageMetadata::key);
  if (found == metadata.objects.end()) return std::nullopt;
  CommonObject taken{std::move(*found), static_cast<std::size_t>(found - metadata.objects.begin())};
  metadata.objects.erase(found);
  std::erase_if(metadata.paths, [&](const auto& path) { return path.first == taken.object.key; });
  return taken;
}

std::vector<BytesStorageMetadata> take_common_values(Metadata& metadata) {
  std::unordered_set<std::string> keys;
  for (auto& [key, path] : std::exchange(metadata.common_paths, {})) keys.insert(std::move(key));
  std::vector<BytesStorageMetadata> taken;
  std::erase_if(metadata.objects, [&](BytesStorageMetadata& object) {
    if (!keys.contains(object.key)) return false;
    taken.push_back(std::move(object));
    return true;
  });
  std::erase_if(metadata.paths, [&](const auto& path) { return keys.contains(path.first); });
  return taken;
}

Value read_common_file(const ReadableFile& file) {
  return with_context({.file = file.name()}, [&] { return require_dict(load_torch_file(file)); });
}

Value require_dict(Value common) {
  if (common.is_dict()) return common;
  throw_error(ErrorCode::kCorrupt,
              std::string("the common state is not a dict but ") + to_string(common.kind()));
}

}  // namespace dckpt
