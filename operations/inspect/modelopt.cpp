#include "operations/inspect/modelopt.h"

#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "operations/inspect/inspect.h"

namespace dckpt {
namespace {

constexpr const char* kFolder = "modelopt_state";
constexpr const char* kRunConfig = "modelopt_run_config.yaml";

/// Reads {"modelopt_version": …, "modelopt_state_dict": [(mode, …), …]}.
ModelOptState described(std::string place, const Value& state) {
  ModelOptState described{.place = std::move(place)};
  const Value* const version = state.find("modelopt_version");
  if (version != nullptr && version->is_str()) described.version = version->as_str();
  const Value* const modes = state.find("modelopt_state_dict");
  if (modes == nullptr || !modes->is_list()) return described;
  for (const Value& mode : modes->items()) {
    if (mode.is_sequence() && mode.size() > 0 && mode.items().front().is_str())
      described.modes.push_back(mode.items().front().as_str());
  }
  return described;
}

std::shared_ptr<Storage> folder_in(const Storage& storage) {
  const std::optional<FileInfo> found = storage.stat(kFolder);
  if (!found || found->kind != FileInfo::Kind::kDirectory) return nullptr;
  // Readers provide their storage for reading only.
  return std::const_pointer_cast<Storage>(storage.shared_from_this())->subtree(kFolder);
}

}  // namespace

std::optional<ModelOptState> modelopt_state(const CheckpointReader& reader) {
  if (reader.info().single_file) return std::nullopt;
  if (auto folder = folder_in(reader.storage()); folder && !folder->list("").empty()) {
    try {
      return described(kFolder, open_checkpoint(Location(std::move(folder)))->common_state());
    } catch (const CheckpointError&) {
      return ModelOptState{.place = kFolder};  // the checkpoint itself may be sound
    }
  }
  const Value common = reader.common_state();
  for (const char* const name : {kFolder, "modelopt_state_0"}) {
    if (const Value* const entry = common.find(name)) return described(name, *entry);
  }
  return std::nullopt;
}

std::vector<std::string> modelopt_files(const Storage& storage) {
  std::vector<std::string> files;
  if (const std::optional<FileInfo> config = storage.stat(kRunConfig);
      config && config->kind == FileInfo::Kind::kRegular)
    files.emplace_back(kRunConfig);
  if (const auto folder = folder_in(storage)) {
    for (const FileSummary& file : list_files(*folder))
      files.push_back(std::string(kFolder) + "/" + file.name);
  }
  return files;
}

}  // namespace dckpt
