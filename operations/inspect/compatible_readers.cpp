#include "operations/inspect/compatible_readers.h"

#include <unordered_set>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "migration/optimizer/optimizer_form.h"

namespace dckpt {
namespace {

std::string model_readers(const StoredForm& form) {
  if (!form.readers.empty()) return std::string(form.readers);
  if (form.conventions.megatron_fsdp)
    return "Megatron-Core 0.14 and newer with Megatron-FSDP, PyTorch DCP";
  if (form.conventions.fragments_lost) return "Megatron-Core 0.4 to 0.15";
  if (!form.conventions.records && !form.conventions.keys_are_paths) return "";
  if (!form.conventions.keys_are_paths)
    return form.common_file ? "Megatron-Core 0.6 and newer, PyTorch DCP"
                            : "Megatron-Core 0.19 and newer, PyTorch DCP";
  return "PyTorch DCP; no Megatron-Core as torch_dist";
}

/// Returns the key of an optimizer tensor whose model tensor is missing, as after a rename of one
/// of them; empty if there is none.
std::string_view stray_state(const Metadata& metadata) {
  std::unordered_set<std::string_view> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.insert(tensor.key);
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const std::string_view key = parse_optimizer_state_key(tensor.key).model_key;
    if (!key.empty() && !keys.contains(key)) return tensor.key;
  }
  return {};
}

/// Returns a key of a model that is none of Megatron-Core's; null if some of its keys are theirs.
const std::string* find_strange_key(const Metadata& metadata) {
  const std::string* first = nullptr;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (is_optimizer_key(tensor.key)) continue;
    if (is_megatron_key(tensor.key)) return nullptr;
    if (first == nullptr) first = &tensor.key;
  }
  return first;
}

std::string optimizer_readers(const StoredForm& form, const OptimizerForms& forms) {
  if (form.state_left_out > 0)
    return str_format("nothing, as {} left out",
                      counted(form.state_left_out, "of its tensors and objects is",
                              "of its tensors and objects are"));
  if (!form.readers.empty() || form.conventions.megatron_fsdp) return model_readers(form);
  const std::string sharding = optimizer_sharding(form.common);
  if (form.conventions.keys_are_paths)
    return sharding.empty() ? "PyTorch DCP"
                            : "PyTorch DCP reads it; no Megatron-Core resumes from it before it is "
                              "torch_dist again";
  const bool old_common = form.common_file;
  const std::string none = "no Megatron-Core release";
  if (form.conventions.fragments_lost) {  // zarr, which 0.16 and newer do not read
    if (sharding == kModelSpace) return "Megatron-Core 0.8 to 0.15, under any layout";
    if (sharding == "fully_reshardable") return "Megatron-Core 0.15, under any layout";
    if (sharding == "dp_reshardable")
      return "Megatron-Core 0.15, under the same model parallel sizes";
    if (sharding == kBucketSpace)
      return "Megatron-Core 0.6 to 0.14, under the same model parallel sizes";
    if (sharding == "dp_zero_gather_scatter")
      return "Megatron-Core 0.6 to 0.15, under the same model parallel sizes";
    return none;
  }
  if (sharding == kBucketSpace)
    return old_common ? "Megatron-Core 0.6 to 0.14, under the same model parallel sizes" : none;
  if (sharding == kModelSpace || forms.fragments) {
    if (old_common && forms.fragments && !forms.boxes)
      return "Megatron-Core 0.8 to 0.15, under any layout (0.16 and newer: `dckpt convert "
             "--optimizer fully_reshardable`)";
    return str_format(
        "{}: `dckpt convert --optimizer fully_reshardable` makes what 0.15 and newer resume from, "
        "--optimizer {} what 0.8 to 0.15 do",
        none, kModelSpace);
  }
  const std::string first = old_common ? "0.15" : "0.19";
  if (sharding.empty() || sharding == "fully_reshardable") {
    if (const std::string_view stray = stray_state(form.metadata); !stray.empty())
      return str_format("not known, as {} is of no tensor of the model", quote(stray));
  }
  if (sharding == "fully_reshardable")
    return str_format("Megatron-Core {} and newer, under any layout", first);
  if (sharding == "dp_reshardable")
    return str_format("Megatron-Core {} and newer, under the same model parallel sizes", first);
  if (sharding == "dp_zero_gather_scatter")
    return str_format("Megatron-Core {} and newer, under the same model parallel sizes",
                      old_common ? "0.6" : "0.19");
  if (!sharding.empty())
    return "the releases of Megatron-Core that know the sharding type " + sharding;
  if (run_args(form.common) == nullptr)
    return "not known, as the common state has no args of Megatron";
  return model_readers(form);
}

}  // namespace

Readers readers_of(const StoredForm& form) {
  Readers readers{.model = model_readers(form), .optimizer = ""};
  if (readers.model.empty()) return readers;
  const std::string* const foreign = find_foreign_key(form.metadata);
  if (form.readers.empty() && foreign != nullptr && !form.conventions.keys_are_paths)
    readers.model =
        str_format("{}Megatron-Core finds no keys like {} (dckpt convert --map)",
                   form.conventions.fragments_lost ? "" : "PyTorch DCP; ", quote(*foreign));
  else if (const std::string* const strange = find_strange_key(form.metadata);
           strange != nullptr && form.readers.empty() && !form.conventions.keys_are_paths)
    readers.model += "; no model of Megatron-Core has keys like " + quote(*strange);
  const OptimizerForms forms = optimizer_forms(form.metadata);
  if (forms.any) readers.optimizer = optimizer_readers(form, forms);
  return readers;
}

std::vector<std::string> describe_readers(const StoredForm& form) {
  const Readers readers = readers_of(form);
  std::vector<std::string> sentences;
  if (!readers.model.empty()) sentences.push_back("the model loads in: " + readers.model);
  if (!readers.optimizer.empty())
    sentences.push_back("the optimizer continues in: " + readers.optimizer);
  return sentences;
}

std::string describe_resharding(const StoredForm& form) {
  const OptimizerForms forms = optimizer_forms(form.metadata);
  if (!forms.any) return "";
  const std::string sharding = optimizer_sharding(form.common);
  if (form.conventions.per_rank) return "no, because each rank's part is stored as it was";
  if (form.conventions.keys_are_paths) return "any layout";
  if (sharding == kBucketSpace || sharding == "dp_reshardable" ||
      sharding == "dp_zero_gather_scatter")
    return "DP only; TP, PP, EP after dckpt convert --optimizer fully_reshardable";
  const bool model_space = sharding == kModelSpace || (sharding.empty() && forms.fragments);
  if (model_space && forms.boxes && !form.conventions.fragments_lost)
    return "TP, PP, EP, DP, once converted (dckpt convert --optimizer fully_reshardable)";
  if (model_space || sharding == "fully_reshardable" || (sharding.empty() && forms.boxes))
    return "TP, PP, EP, DP";
  if (sharding.empty()) return "";
  return "no, because nothing is known of the sharding type " + sharding;
}

}  // namespace dckpt
