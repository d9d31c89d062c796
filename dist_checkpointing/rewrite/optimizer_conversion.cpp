// What Megatron-Core looks for when it resumes:
//
//                                     0.8 to 0.15                 0.15 and newer
//   main parameters of K              optimizer.state.            optimizer.state.
//                                     fp32_param.K, flattened     param.K, of K's shape
//   other state X of K                optimizer.state.X.K         the same, of K's shape
//   optimizer[.i].param_state_        fully_sharded_model_space   fully_reshardable
//   sharding_type
//   content_metadata (from 0.13 on)   distrib_optim_sharding_type: the same; of the newer one also
//                                     distrib_optim_fully_reshardable_mem_efficient
//   param_groups                                                  default_config
//
// An optimizer that is a chain of several (experts) has a dict of them, by number. Their keys begin
// with "chained_i." unless content_metadata says chained_optim_avoid_prefix.

#include "dist_checkpointing/rewrite/optimizer_conversion.h"

#include <unordered_map>
#include <utility>

#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/rewrite/copy_contents.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "strategies/rearranged/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kState = "optimizer.state.";
constexpr std::string_view kContentMetadata = "content_metadata";
constexpr const char* kMemEfficient = "distrib_optim_fully_reshardable_mem_efficient";
constexpr const char* kDefaultConfig = "default_config";

std::string key_for(OptimizerSharding wanted, const std::string& key) {
  const OptimizerStateKey state = parse_optimizer_state_key(key);
  if (state.model_key.empty()) return key;
  std::string_view name = state.name;
  if (name == "param" || name == "fp32_param")
    name = wanted == OptimizerSharding::kFullyReshardable ? "param" : "fp32_param";
  return str_format("{}{}.{}", kState, name, state.model_key);
}

/// What of an optimizer's common state a release looks at. `optimizer`: one of a chain, or the only
/// one.
void convert_optimizer(Value& optimizer, OptimizerSharding wanted) {
  Dict& entries = optimizer.mutable_dict();
  entries.set("param_state_sharding_type", name_of(kOptimizerShardingNames, wanted));
  Value* const inner = entries.find("optimizer");
  if (inner == nullptr || !inner->is_dict()) return;
  Value* const groups = inner->mutable_dict().find("param_groups");
  if (groups == nullptr || !groups->is_list()) return;
  for (Value& group : groups->mutable_items()) {
    if (!group.is_dict()) continue;
    Dict& options = group.mutable_dict();
    if (wanted == OptimizerSharding::kFullyShardedModelSpace) {
      options.erase(kDefaultConfig);
    } else if (options.find(kDefaultConfig) == nullptr) {
      const Value* const decoupled = options.find("is_decoupled_lr");
      options.set(kDefaultConfig, decoupled == nullptr || *decoupled != Value(true));
    }
  }
}

Value common_for(OptimizerSharding wanted, Value common) {
  Dict& root = common.mutable_dict();
  if (Value* const optimizer = root.find("optimizer");
      optimizer != nullptr && optimizer->is_dict()) {
    bool chain = false;
    Dict& members = optimizer->mutable_dict();
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!members.items()[i].first.is_int() || !members.items()[i].second.is_dict()) continue;
      chain = true;
      convert_optimizer(members.value_at(i), wanted);
    }
    if (!chain) convert_optimizer(*optimizer, wanted);
  }
  Value& content = root[kContentMetadata];
  if (!content.is_dict()) content = Value::dict();
  Dict& entries = content.mutable_dict();
  entries.set("distrib_optim_sharding_type", name_of(kOptimizerShardingNames, wanted));
  entries.set("chained_optim_avoid_prefix", true);
  if (entries.find("singleton_local_shards") == nullptr)
    entries.set("singleton_local_shards", false);
  if (wanted == OptimizerSharding::kFullyShardedModelSpace)
    entries.erase(kMemEfficient);
  else if (entries.find(kMemEfficient) == nullptr)
    entries.set(kMemEfficient, false);
  return common;
}

[[noreturn]] void refuse(const std::string& sharding, OptimizerSharding wanted) {
  const std::string_view name = name_of(kOptimizerShardingNames, wanted);
  if (sharding.empty())
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("the checkpoint has no distributed optimizer that could become {}; state of "
                   "other optimizers has the model's shapes and resumes as it is",
                   name));
  throw CheckpointError(
      ErrorCode::kUnsupported,
      str_format("the optimizer's state is {}: its parameters lie one after the other in buckets, "
                 "in an order that only the job which saved it knows; to get {}, resume it once in "
                 "Megatron-Core 0.15 or newer under the same parallel sizes and save it with "
                 "--dist-ckpt-optim-fully-reshardable",
                 sharding, name));
}

}  // namespace

std::unique_ptr<CheckpointReader> with_optimizer_sharding(std::unique_ptr<CheckpointReader> source,
                                                          OptimizerSharding wanted,
                                                          std::vector<std::string>& remarks) {
  const Value common = source->common_state();
  const std::string sharding = optimizer_sharding(common);
  const auto known = value_of(kOptimizerShardingNames, sharding);
  if (!known) refuse(sharding, wanted);

  const Metadata& metadata = source->metadata();
  std::unordered_map<std::string_view, const Shape*> models;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (parse_optimizer_state_key(tensor.key).model_key.empty())
      models.emplace(tensor.key, &tensor.global_shape());
  }
  RearrangedContents contents;
  std::unordered_map<std::string, std::string> names;  // source's by the result's
  ProblemList shapes;
  ProblemList twice;
  std::size_t renamed = 0;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[i];
    const Shape& shape = tensor.global_shape();
    std::string key = key_for(wanted, tensor.key);
    const auto model = models.find(parse_optimizer_state_key(key).model_key);
    if (model != models.end() && *model->second != shape)
      shapes.add(str_format("{} has {}, {} has {}", quote(tensor.key), to_string(shape),
                            quote(std::string(model->first)), to_string(*model->second)));
    const auto [first, added] = names.try_emplace(key, tensor.key);
    if (!added)
      twice.add(str_format("{} and {} both become {}", quote(first->second), quote(tensor.key),
                           quote(key)));
    renamed += key != tensor.key ? 1 : 0;
    contents.tensors.push_back({.key = std::move(key),
                                .properties = tensor.properties,
                                .size = shape,
                                .parts = {{.target = whole(shape),
                                           .tensor = static_cast<std::uint32_t>(i),
                                           .source = whole(shape)}}});
  }
  shapes.raise_if_any(ErrorCode::kMismatch,
                      "state of the optimizer does not have the shape of its model tensor:");
  twice.raise_if_any(ErrorCode::kMismatch, "state of two optimizers has the same keys:");
  for (std::size_t i = 0; i < metadata.objects.size(); ++i)
    contents.objects.push_back({.key = metadata.objects[i].key, .position = i});
  for (const auto& [key, path] : metadata.paths) {
    std::string name = key_for(wanted, key);
    KeyPath to = name == key ? path : renamed_path(path, name);
    contents.paths.emplace_back(std::move(name), std::move(to));
  }
  contents.common = common_for(wanted, common);
  if (*known != wanted)
    remarks.push_back(str_format("the optimizer's state became {}; {} keys were renamed",
                                 name_of(kOptimizerShardingNames, wanted), grouped(renamed)));
  return rearranged_reader(std::move(source), std::move(contents));
}

}  // namespace dckpt
