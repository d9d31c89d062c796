#include "strategies/registry.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/zarr/zarr_reader.h"

namespace dckpt {
namespace {

bool holds(std::span<const FileInfo> entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(), [&](const FileInfo& entry) { return entry.name == name; });
}

std::unique_ptr<CheckpointReader> open_dcp(std::shared_ptr<Storage> storage, const OpenHints& hints) {
  return open_torch_dist(std::move(storage), {.recover_flattened_shapes = hints.recover_flattened_shapes});
}

std::vector<Format> builtin_formats() {
  std::vector<Format> formats;
  formats.push_back({"torch_dist", "Megatron-Core's distributed checkpoints (0.6 and newer)", {1}, true, {}, open_dcp});
  formats.push_back({"zarr", "Megatron-Core's zarr backend (up to 0.15)", {1}, false, {}, [](std::shared_ptr<Storage> storage, const OpenHints&) { return open_zarr(std::move(storage)); }});
  formats.push_back({"torch", "Megatron's oldest format (mp_rank_*/model_optim_rng.pt), and single torch.save files", {}, false,
                     [](std::span<const FileInfo> entries) { return std::any_of(entries.begin(), entries.end(), [](const FileInfo& entry) { return is_rank_folder(entry.name); }); },
                     [](std::shared_ptr<Storage> storage, const OpenHints& hints) { return open_legacy_torch(std::move(storage), hints.file); }});
  formats.push_back({"dcp", "plain PyTorch DCP directories, torch_dcp, fsdp_dtensor", {}, true, [](std::span<const FileInfo> entries) { return holds(entries, kMetadataFile); }, open_dcp});
  return formats;
}

// Never destroyed: readers may outlive static destruction.
std::vector<Format>& formats() {
  static auto* const instance = new std::vector<Format>(builtin_formats());
  return *instance;
}

}  // namespace

void register_format(Format format) {
  std::vector<Format>& all = formats();
  const auto same = std::find_if(all.begin(), all.end(), [&](const Format& existing) { return existing.name == format.name; });
  if (same != all.end()) {
    *same = std::move(format);
  } else {
    all.push_back(std::move(format));
  }
}

std::span<const Format> registered_formats() { return formats(); }

const Format& find_format(const std::string& name, std::optional<int> version) {
  std::vector<std::string> names;
  for (const Format& format : formats()) {
    if (format.name == name && (!version || std::find(format.versions.begin(), format.versions.end(), *version) != format.versions.end())) return format;
    std::string shown = format.name;
    for (const int known : format.versions) shown += " version " + std::to_string(known);
    names.push_back(shown);
  }
  std::string message = "no strategy reads backend " + quoted(name) + (version ? " version " + std::to_string(*version) : "") + "; there are: " + quoted_list(names, 20);
  if (const auto close = nearest(name, names)) message += " (did you mean " + quoted(*close) + "?)";
  throw CheckpointError(ErrorCode::kUnsupported, message);
}

}  // namespace dckpt
