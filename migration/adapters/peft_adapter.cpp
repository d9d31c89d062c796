#include "migration/adapters/peft_adapter.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "mapping/base/counted.h"
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
constexpr double kMostRank = 1 << 20;
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
    take_experts();
    problems_.raise_if_any(
        ErrorCode::kUnsupported,
        str_format("{}: of 'target_parameters', only gate_up_proj and down_proj of experts can be "
                   "merged here; merge the adapter with PEFT and convert the result:",
                   file()));
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

  /// Takes the modules whose parameters are targets out of `modules_`.
  void take_experts() {
    std::map<std::string, std::vector<LoraModule>> wrapped;  // the outermost first
    for (auto at = modules_.begin(); at != modules_.end();) {
      std::string path = at->first;
      while (path.ends_with(kBaseLayer)) path.resize(path.size() - kBaseLayer.size());
      if (targets_of(path).empty()) {
        ++at;
        continue;
      }
      wrapped[path].push_back(std::move(at->second));
      at = modules_.erase(at);
    }
    if (wrapped.empty() && !adapter_.config.target_parameters.empty())
      problems_.add(str_format("the adapter has nothing for {}",
                               quoted_list(adapter_.config.target_parameters.names)));
    for (const auto& [path, levels] : wrapped) add_experts(path, levels);
  }

  /// Returns the parameters of a module that are targets, in the order in which PEFT wraps them.
  std::vector<std::string> targets_of(const std::string& path) const {
    std::vector<std::string> names;
    for (const ExpertParameter& parameter : kExpertParameters) {
      if (adapter_.config.target_parameters.has(str_format("{}.{}", path, parameter.name)))
        names.emplace_back(parameter.name);
    }
    return names;
  }

  void add_experts(const std::string& path, const std::vector<LoraModule>& levels) {
    const std::vector<std::string> targets = targets_of(path);
    if (levels.size() != targets.size())
      return problems_.add(str_format("{} has {} of LoRA for {}", quote(path),
                                      counted(levels.size(), "level"), quoted_list(targets)));
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const LoraModule& level = levels[levels.size() - 1 - i];
      ExpertLora lora{.module = path, .parameter = targets[i]};
      const Shape& a = shape_of(*level.a);
      const Shape& b = shape_of(*level.b);
      const double rank = adapter_.config.rank_of(lora.path());
      if (rank <= kMostRank) lora.rank = static_cast<std::int64_t>(rank);
      if (level.bias || level.embedding || a.size() != 2 || b.size() != 2 || a[0] != b[1] ||
          static_cast<double>(lora.rank) != rank || a[0] % lora.rank != 0) {
        problems_.add(
            str_format("{} has lora_A of the shape {} and lora_B of {}{}; expected "
                       "(experts · {}, in) and (out, {} · experts)",
                       quote(lora.path()), to_string(a), to_string(b),
                       level.bias ? " with a bias" : "", rank, rank));
        continue;
      }
      lora.a = *level.a;
      lora.b = *level.b;
      lora.experts = a[0] / lora.rank;
      lora.in = a[1];
      lora.out = b[0];
      adapter_.experts.push_back(std::move(lora));
    }
  }

  const Shape& shape_of(std::size_t position) const {
    return adapter_.reader->metadata().tensors[position].global_shape();
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
