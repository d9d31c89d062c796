#include "dist_checkpointing/inspect/optimizer_form.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/chunk_geometry.h"
#include "mapping/planning/reformulation.h"
#include "strategies/contract/run_args.h"

namespace dckpt {
namespace {

constexpr std::string_view kModelSpace = "fully_sharded_model_space";
constexpr std::string_view kBucketSpace = "fully_sharded_bucket_space";
/// Of Hugging Face's models, and of Megatron-FSDP.
constexpr std::array<std::string_view, 4> kForeignKeys = {"model.embed_tokens.", "model.layers.",
                                                          "transformer.h.", "model.module."};
/// Names of state tensors, of the optimizers of torch, Apex and Megatron.
constexpr std::array<std::string_view, 9> kStates = {
    "param",   "fp32_param",      "master_param", "exp_avg", "exp_avg_sq",
    "exp_inf", "momentum_buffer", "sum",          "step"};
constexpr std::int64_t kMaxCells = std::int64_t{1} << 24;  // of one tensor

/// Axes in front that Megatron's local tensors lack, each index a cell of its own: of layers that
/// are stacked, and of experts.
std::size_t prepended_axes(std::string_view key) {
  constexpr std::string_view kLayers = ".layers.";
  const std::size_t layers = key.find(kLayers);
  const std::size_t next = layers + kLayers.size();
  const bool stacked = layers != std::string_view::npos && next < key.size() &&
                       std::isdigit(static_cast<unsigned char>(key[next])) == 0;
  return (stacked ? 1U : 0U) + (key.find(".experts.") != std::string_view::npos ? 1U : 0U);
}

/// The tensor cut into `cell`s, each one fragment; bytes come from wherever the source has them.
TensorStorageMetadata reformulated(const TensorStorageMetadata& tensor, const Shape& cell) {
  TensorStorageMetadata out = tensor;
  Shape grid = tensor.size;
  for (std::size_t axis = 0; axis < grid.size(); ++axis) grid[axis] /= cell[axis];
  if (numel(grid) > kMaxCells) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("the tensor would be cut into {} cells",
                                     grouped(static_cast<std::uint64_t>(numel(grid)))),
                          {.key = tensor.key});
  }
  out.flattened_shape = tensor.size;
  out.size = reformulated_size(tensor.size, grid);
  out.chunks = BoxList(out.size.size());
  out.places.clear();
  const auto cells = static_cast<std::size_t>(numel(grid));
  Box chunk{Shape(out.size.size(), 0), Shape(out.size.size(), 1)};
  chunk.sizes.back() = out.size.back();
  for (std::size_t i = 0; i < cells; ++i) {
    out.chunks.push_back(chunk);
    out.places.push_back(tensor.places[i * tensor.places.size() / cells]);
    for (std::size_t axis = grid.size(); axis-- > 0;) {
      if (++chunk.offsets[axis] < grid[axis]) break;
      chunk.offsets[axis] = 0;
    }
  }
  return out;
}

/// Whether optimizer tensors hold fragments, or boxes, or both.
struct Forms {
  bool any = false;
  bool fragments = false;
  bool boxes = false;  ///< of tensors that the optimizer holds for a model tensor
};

Forms optimizer_forms(const Metadata& metadata) {
  Forms forms;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!is_optimizer_key(tensor.key)) continue;
    forms.any = true;
    forms.fragments |= tensor.flattened_shape.has_value();
    forms.boxes |=
        !tensor.flattened_shape && !parse_optimizer_state_key(tensor.key).model_key.empty();
  }
  for (const BytesStorageMetadata& object : metadata.objects)
    forms.any |= is_optimizer_key(object.key);
  return forms;
}

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

/// A tensor of the optimizer whose tensor of the model is not there, as after a rename of one of
/// them; empty if there is none.
std::string_view stray_state(const Metadata& metadata) {
  std::unordered_set<std::string_view> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.insert(tensor.key);
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const std::string_view key = parse_optimizer_state_key(tensor.key).model_key;
    if (!key.empty() && !keys.contains(key)) return tensor.key;
  }
  return {};
}

std::string optimizer_readers(const StoredForm& form, const Forms& forms) {
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

OptimizerStateKey parse_optimizer_state_key(std::string_view key) {
  if (!is_optimizer_key(key)) return {};
  constexpr std::string_view kState = "optimizer.state.";
  const std::size_t state = key.find(kState);
  if (state == std::string_view::npos) return {};
  key.remove_prefix(state + kState.size());
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

std::string optimizer_sharding(const Value& common) {
  const auto text = [](const Value* dict, const char* name) -> std::string {
    const Value* const value = dict != nullptr && dict->is_dict() ? dict->find(name) : nullptr;
    return value != nullptr && value->is_str() ? value->as_str() : "";
  };
  if (!common.is_dict()) return "";
  const Value* const optimizer = common.find("optimizer");
  std::string found = text(optimizer, "param_state_sharding_type");
  if (found.empty() && optimizer != nullptr && optimizer->is_dict()) {  // a chain of optimizers
    for (const auto& [number, member] : optimizer->as_dict()) {
      if (found.empty()) found = text(&member, "param_state_sharding_type");
    }
  }
  return found.empty() ? text(common.find("content_metadata"), "distrib_optim_sharding_type")
                       : found;
}

std::size_t reformulate_optimizer_state(Metadata& metadata, const Value& common,
                                        bool fragments_lost) {
  const std::string sharding = optimizer_sharding(common);
  const Forms forms = optimizer_forms(metadata);
  if (sharding == kBucketSpace && fragments_lost && forms.any && !forms.fragments) {
    throw CheckpointError(
        ErrorCode::kUnsupported,
        "the optimizer's state is in bucket space (fully_sharded_bucket_space), "
        "whose fragments cannot be flattened anew; write it as boxes (--flattened "
        "boxes), or leave the optimizer out (--exclude 'optimizer.*')");
  }
  if (sharding != kModelSpace) return 0;
  std::unordered_map<std::string_view, const TensorStorageMetadata*> models;
  for (const TensorStorageMetadata& tensor : metadata.tensors) models.emplace(tensor.key, &tensor);
  std::size_t count = 0;
  std::vector<TensorStorageMetadata> out = metadata.tensors;
  for (TensorStorageMetadata& tensor : out) {
    const std::string_view key = parse_optimizer_state_key(tensor.key).model_key;
    if (tensor.flattened_shape || key.empty()) continue;
    if (numel(tensor.size) == 0) continue;
    const auto model = models.find(key);
    std::optional<Shape> cell;
    if (model != models.end() && equal(model->second->size, tensor.size))
      cell = regular_chunk(*model->second);
    if (!cell) cell = regular_chunk(tensor).value_or(tensor.size);
    std::fill_n(cell->begin(), std::min(prepended_axes(key), cell->size()), 1);
    tensor = reformulated(tensor, *cell);
    ++count;
  }
  metadata.tensors = std::move(out);
  return count;
}

const std::string* find_foreign_key(const Metadata& metadata) {
  const auto foreign = std::ranges::find_if(metadata.tensors, [](const auto& tensor) {
    return std::ranges::any_of(
        kForeignKeys, [&](std::string_view prefix) { return tensor.key.starts_with(prefix); });
  });
  return foreign == metadata.tensors.end() ? nullptr : &foreign->key;
}

bool is_megatron_key(std::string_view key) {
  constexpr std::array<std::string_view, 3> kBegins{"embedding.word_embeddings.", "output_layer.",
                                                    "decoder.final_layernorm."};
  constexpr std::array<std::string_view, 3> kParts{".self_attention.linear_", ".mlp.linear_fc",
                                                   ".mlp.experts.experts."};
  return std::ranges::any_of(kBegins, [&](auto begin) { return key.starts_with(begin); }) ||
         std::ranges::any_of(kParts, [&](auto part) { return key.find(part) != key.npos; });
}

Readers readers_of(const StoredForm& form) {
  Readers readers{.model = model_readers(form), .optimizer = ""};
  if (readers.model.empty()) return readers;
  const std::string* const foreign = find_foreign_key(form.metadata);
  if (form.readers.empty() && foreign != nullptr && !form.conventions.keys_are_paths)
    readers.model =
        str_format("{}Megatron-Core finds no keys like {} (dckpt convert --map)",
                   form.conventions.fragments_lost ? "" : "PyTorch DCP; ", quote(*foreign));
  const Forms forms = optimizer_forms(form.metadata);
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
  const Forms forms = optimizer_forms(form.metadata);
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

std::vector<std::string> optimizer_states(const Metadata& metadata) {
  std::unordered_set<std::string_view> models;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    if (!is_optimizer_key(tensor.key)) models.insert(tensor.key);
  std::set<std::string_view> names;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!is_optimizer_key(tensor.key)) continue;
    const OptimizerStateKey parts = parse_optimizer_state_key(tensor.key);
    const std::string_view key = tensor.key;
    const std::string_view last = key.substr(key.rfind('.') + 1);
    if (models.contains(parts.model_key) || std::ranges::find(kStates, parts.name) != kStates.end())
      names.insert(parts.name);
    else if (std::ranges::find(kStates, last) != kStates.end())
      names.insert(last);
  }
  return {names.begin(), names.end()};
}

}  // namespace dckpt
