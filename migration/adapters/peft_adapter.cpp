#include "migration/adapters/peft_adapter.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/readable_file.h"
#include "strategies/formats/json/json.h"
#include "strategies/safetensors/hub_cache.h"
#include "strategies/safetensors/model_files.h"
#include "strategies/safetensors/safetensors_reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxConfig = std::uint64_t{16} << 20;
constexpr std::string_view kBaseLayer = ".base_layer";

/// A part of a module, told by the end of its key.
struct PartName {
  std::string_view suffix;
  bool embedding;
  std::optional<std::size_t> LoraModule::*position;
};
constexpr std::array<PartName, 5> kParts{{
    {".lora_A.weight", false, &LoraModule::a},
    {".lora_B.weight", false, &LoraModule::b},
    {".lora_B.bias", false, &LoraModule::bias},
    {".lora_embedding_A", true, &LoraModule::a},
    {".lora_embedding_B", true, &LoraModule::b},
}};

PeftConfig read_config(const Storage& folder) {
  if (!folder.stat(kAdapterConfigFile))
    throw_error(ErrorCode::kIncomplete, {.file = folder.display_path("")},
                "the folder of an adapter has to hold {}, as PEFT's "
                "save_pretrained writes it, and this one does not",
                kAdapterConfigFile);
  const auto file = folder.open(kAdapterConfigFile);
  return parse_peft_config(parse_json(read_file(*file, kMaxConfig), file->name()), file->name());
}

void require_weights(const Storage& folder) {
  if (folder.stat(kAdapterFile)) return;
  if (folder.stat(kTorchAdapterFile))
    throw_error(ErrorCode::kUnsupported, {.file = folder.display_path("")},
                "the weights of the adapter are a pickle of torch.save ({}); load the adapter "
                "with PEFT and write it with save_pretrained, which makes {}",
                kTorchAdapterFile, kAdapterFile);
  throw_error(ErrorCode::kIncomplete, {.file = folder.display_path("")},
              "the folder of an adapter has to hold {}, and this one does not", kAdapterFile);
}

/// Divides the tensors of an adapter among its modules.
class Sorting {
 public:
  explicit Sorting(PeftAdapter& adapter) : adapter_(adapter) {}

  void run() {
    const std::vector<TensorStorageMetadata>& tensors = adapter_.reader->metadata().tensors;
    if (tensors.empty())
      throw_error(ErrorCode::kMismatch, {.file = file()},
                  "the adapter holds no tensors, so there is nothing to merge");
    for (std::size_t i = 0; i < tensors.size(); ++i) sort(tensors[i].key, i);
    problems_.raise_if_any(
        ErrorCode::kMismatch,
        str_format("{}: these tensors do not belong to a LoRA adapter in PEFT's layout, whose keys "
                   "are {}MODULE.lora_A.weight, lora_B.weight and so on; merge it with PEFT and "
                   "convert the result:",
                   file(), kPeftPrefix));
    for (auto& [path, module] : modules_) {
      if (module.a && module.b) continue;
      problems_.add(str_format("{} lacks {}", quote(path), module.a ? "lora_B" : "lora_A"));
    }
    problems_.raise_if_any(
        ErrorCode::kIncomplete,
        str_format("{}: modules of the adapter need lora_A and lora_B:", file()));
    for (auto& [path, module] : modules_) adapter_.modules.push_back(std::move(module));
  }

 private:
  std::string file() const { return adapter_.reader->storage().display_path(kAdapterFile); }

  void sort(const std::string& key, std::size_t position) {
    if (!key.starts_with(kPeftPrefix)) return problems_.add(quote(key));
    std::string path = key.substr(kPeftPrefix.size());
    for (const PartName& part : kParts) {
      if (!path.ends_with(part.suffix)) continue;
      path.resize(path.size() - part.suffix.size());
      LoraModule& module = modules_[path];
      module.path = path;
      module.embedding |= part.embedding;
      module.*part.position = position;
      return;
    }
    if (path.find("lora_") != std::string::npos) return problems_.add(quote(key));
    // Modules with LoRA keep their own parameters one level further down.
    const std::size_t dot = path.rfind('.');
    if (dot != std::string::npos && path.substr(0, dot).ends_with(kBaseLayer))
      path.erase(dot - kBaseLayer.size(), kBaseLayer.size());
    adapter_.whole.push_back({std::move(path), position});
  }

  PeftAdapter& adapter_;
  std::map<std::string, LoraModule> modules_;
  ProblemList problems_;
};

}  // namespace

PeftAdapter open_peft_adapter(std::shared_ptr<const Storage> folder) {
  folder = with_hub_cache(std::move(folder));
  PeftAdapter adapter;
  adapter.config = read_config(*folder);
  require_weights(*folder);
  adapter.reader = open_safetensors(std::move(folder), kAdapterFile);
  Sorting(adapter).run();
  return adapter;
}

bool holds_peft_adapter(const Metadata& metadata) {
  return !metadata.tensors.empty() &&
         std::ranges::all_of(metadata.tensors, [](const TensorStorageMetadata& tensor) {
           return tensor.key.starts_with(kPeftPrefix);
         });
}

}  // namespace dckpt
