#include "operations/convert/source/adapter_to_merge.h"

#include <algorithm>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/adapters/merged_adapter.h"
#include "operations/convert/conversion_steps.h"
#include "operations/convert/source/other_models.h"

namespace dckpt {

namespace {

bool has_megatron_keys(const Metadata& model) {
  return std::ranges::any_of(model.tensors, [](const TensorStorageMetadata& tensor) {
    return !is_optimizer_key(tensor.key) && is_megatron_key(tensor.key);
  });
}

/// Requires the model's keys to be Hugging Face's, which adapters name. Messages about single
/// modules would not show this reason.
void require_models_keys(const Metadata& model, const AdapterToMerge& adapter) {
  if (adapter.is_for(model)) return;
  throw_error(ErrorCode::kInvalidArgument, {.file = adapter.folder},
              "the model has Megatron's keys, and the adapter is for a model with "
              "Hugging Face's; name a map to these keys (--map), and convert the result "
              "back if Megatron is to load it");
}

}  // namespace

bool AdapterToMerge::is_for(const Metadata& model) const {
  return fits_adapter(model, adapter) || !has_megatron_keys(model);
}

AdapterToMerge adapter_to_merge(const Location& folder, const ConversionRequest& request) {
  if (!folder.is_directory())
    throw_error(ErrorCode::kIo, {.file = folder.display()},
                "there is no such folder of an adapter; name the folder that holds "
                "adapter_config.json");
  AdapterToMerge opened{.adapter = open_peft_adapter(folder.directory()),
                        .folder = folder.display(),
                        .memory = std::min(kDefaultFactorMemory, request.limits.memory / 8)};
  compare_beside(*opened.adapter.reader, request.checks, request.readers);
  return opened;
}

std::string merge_adapter(Draft& draft, const ConversionRequest&, ConvertReport&) {
  const AdapterToMerge adapter = *std::exchange(draft.adapter, std::nullopt);
  if (holds_peft_adapter(draft.reader->metadata()))
    throw_error(ErrorCode::kInvalidArgument, {.file = draft.reader->storage().display_path("")},
                "the source is an adapter, and adapters are merged into models; name the "
                "folder of the base model as the source");
  require_models_keys(draft.reader->metadata(), adapter);
  with_context({.file = adapter.folder}, [&] {
    show(draft, merged_adapter(std::move(draft.reader), adapter.adapter, adapter.memory));
  });
  return str_format("merges {} of the adapter {}",
                    counted(adapter.adapter.modules.size(), "module"), quote(adapter.folder));
}

}  // namespace dckpt
