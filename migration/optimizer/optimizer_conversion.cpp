// The state that Megatron-Core looks for when it resumes:
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

#include "migration/optimizer/optimizer_conversion.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/renamed_path.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/optimizer/optimizer_buckets.h"
#include "strategies/tensor_io/lost_data.h"
#include "strategies/views/gathered_state.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kContentMetadata = "content_metadata";
constexpr const char* kMemEfficient = "distrib_optim_fully_reshardable_mem_efficient";
constexpr const char* kDefaultConfig = "default_config";

std::string state_key(OptimizerSharding wanted, std::string_view name, std::string_view model_key) {
  if (name == "param" || name == "fp32_param")
    name = wanted == OptimizerSharding::kFullyReshardable ? "param" : "fp32_param";
  return optimizer_state_key(name, model_key);
}

std::string key_for(OptimizerSharding wanted, const std::string& key) {
  const OptimizerStateKey state = parse_optimizer_state_key(key);
  return state.model_key.empty() ? key : state_key(wanted, state.name, state.model_key);
}

/// Converts the parts of an optimizer's common state that a release looks at. `optimizer` is one of
/// a chain, or the only one.
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
    throw_error(ErrorCode::kUnsupported,
                "the checkpoint has no distributed optimizer that could become {}; state of "
                "other optimizers has the model's shapes and resumes as it is",
                name);
  throw_error(
      ErrorCode::kUnsupported,
      "the optimizer's state is {}, from which this build cannot make {}; to get it, resume once "
      "in Megatron-Core 0.15 or newer under the same parallel sizes and save with "
      "--dist-ckpt-optim-fully-reshardable",
      sharding, name);
}

RearrangedTensor same_tensor(const Metadata& metadata, std::size_t position, std::string key) {
  const TensorStorageMetadata& tensor = metadata.tensors[position];
  const Shape& shape = tensor.global_shape();
  return {.key = std::move(key),
          .properties = tensor.properties,
          .size = shape,
          .parts = {{.target = whole(shape),
                     .tensor = static_cast<std::uint32_t>(position),
                     .source = whole(shape)}}};
}

/// Returns contents in which state with keys of its own has the wanted keys.
RearrangedContents rename_state(const Metadata& metadata, OptimizerSharding wanted) {
  std::unordered_map<std::string_view, const Shape*> models;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (parse_optimizer_state_key(tensor.key).model_key.empty())
      models.emplace(tensor.key, &tensor.global_shape());
  }
  RearrangedContents contents;
  std::unordered_map<std::string, std::string> names;  // source's by the result's
  ProblemList shapes;
  ProblemList twice;
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
    contents.tensors.push_back(same_tensor(metadata, i, std::move(key)));
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
  return contents;
}

/// Adds the state of one tensor of the model, whose chunks are found in buckets.
void add_state(std::span<const BucketPlace> places, const Metadata& metadata,
               std::span<const StoredBucket> buckets, OptimizerSharding wanted,
               ProblemList& problems, RearrangedContents& contents) {
  const TensorStorageMetadata& model = metadata.tensors[places[0].tensor];
  std::int64_t found = 0;
  for (const BucketPlace& place : places) found += numel(place.chunk.sizes);
  if (found != numel(model.size)) {
    problems.add(str_format("{} of the {} of {} have state",
                            grouped(static_cast<std::uint64_t>(found)),
                            counted(numel(model.size), "element"), quote(model.key)));
    return;
  }
  for (const auto& [name, position] : buckets[places[0].bucket].state) {
    RearrangedTensor tensor{.key = state_key(wanted, name, model.key),
                            .properties = metadata.tensors[position].properties,
                            .size = model.size,
                            .parts = {}};
    for (const BucketPlace& place : places) {
      const auto& state = buckets[place.bucket].state;
      const auto source = state.find(name);
      if (source == state.end()) {
        problems.add(str_format("{} has no {} in {}bucket_idx_{}", quote(model.key), quote(name),
                                buckets[place.bucket].buffer, buckets[place.bucket].index));
        return;
      }
      tensor.parts.push_back({.elements = TensorPart::Elements::kInOrder,
                              .target = place.chunk,
                              .tensor = source->second,
                              .source = {{place.begin}, {numel(place.chunk.sizes)}}});
    }
    contents.tensors.push_back(std::move(tensor));
  }
}

constexpr std::string_view kInGroups = "optimizer.distributed.dp_group_idx_";

bool is_in_groups(std::string_view key) {
  return is_optimizer_key(key) && key.find(kInGroups) != std::string_view::npos;
}

/// Throws if any data is lost on which the search depends; the search itself does not read all of
/// it.
void require_all_values(const CheckpointReader& source) {
  Metadata needed = source.metadata();
  std::erase_if(needed.objects,
                [](const BytesStorageMetadata& object) { return !is_in_groups(object.key); });
  require_no_lost_data(
      source, needed,
      "the optimizer's state is in buckets, which are recognized by the model's values, so it "
      "cannot change its form when some of either are lost; convert what is whole as it is "
      "(--allow-partial without --optimizer)");
}

struct NamedState {
  RearrangedContents contents{};
  Findings findings{};
};

/// Returns the state in buckets under keys derived from the model's.
NamedState name_state(const CheckpointReader& source, std::span<const StoredBucket> buckets,
                      OptimizerSharding wanted, const ReadOptions& read,
                      const std::function<void()>& go_on) {
  const Metadata& metadata = source.metadata();
  auto [places, findings] = find_in_buckets(source, buckets, read, go_on);
  if (places.empty())
    throw_error(ErrorCode::kMismatch,
                "the buckets of the optimizer hold no parameters of the model");
  std::ranges::stable_sort(places, {}, &BucketPlace::tensor);
  RearrangedContents contents;
  ProblemList problems;
  std::vector<std::string> stateless;
  std::size_t first = 0;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
    const std::string& key = metadata.tensors[i].key;
    if (is_in_groups(key)) continue;
    contents.tensors.push_back(same_tensor(metadata, i, key));
    const std::size_t begin = first;
    while (first < places.size() && places[first].tensor == i) ++first;
    if (first > begin)
      add_state(std::span(places).subspan(begin, first - begin), metadata, buckets, wanted,
                problems, contents);
    else if (!is_optimizer_key(key))
      stateless.push_back(key);
  }
  problems.raise_if_any(ErrorCode::kMismatch,
                        "the buckets of the optimizer do not hold the state of the whole model:");
  for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
    if (!is_in_groups(metadata.objects[i].key))
      contents.objects.push_back({.key = metadata.objects[i].key, .position = i});
  }
  for (const auto& [key, path] : metadata.paths) {
    if (!is_in_groups(key)) contents.paths.emplace_back(key, path);
  }
  findings.push_back(
      {FindingCode::kFormChanged,
       str_format("the optimizer's state became {}; the model's values say what lies in its {}",
                  name_of(kOptimizerShardingNames, wanted), counted(buckets.size(), "bucket"))});
  if (!stateless.empty())
    findings.push_back(
        {FindingCode::kStateMissing,
         str_format("no optimizer state for {} (buffers, or parameters that were not "
                    "trained)",
                    quoted_list(stateless)),
         stateless});
  return {std::move(contents), std::move(findings)};
}

/// Returns the common state with the values that each optimizer of the chain keeps apart from
/// tensors: they are objects of its groups, and the forms made here have them in the common state,
/// as the first group does.
Value with_objects_of_groups(const CheckpointReader& source, Value common) {
  if (!common.is_dict()) common = Value::dict();
  const std::vector<BytesStorageMetadata>& objects = source.metadata().objects;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (!is_in_groups(objects[i].key)) continue;
    const std::string_view entry =
        std::string_view(objects[i].key).substr(objects[i].key.find(kInGroups) + kInGroups.size());
    for (const char* const name : {"optimizer", "grad_scaler"}) {
      if (!entry.starts_with(str_format("0.{}/", name))) continue;
      Value* optimizer = &common.mutable_dict()["optimizer"];
      if (!optimizer->is_dict()) *optimizer = Value::dict();
      std::string_view key = objects[i].key;
      if (const auto number = take_chain(key)) {
        optimizer = &optimizer->mutable_dict()[*number];
        if (!optimizer->is_dict()) *optimizer = Value::dict();
      }
      optimizer->mutable_dict().set(name, source.object(i));
    }
  }
  return common;
}

}  // namespace

View with_optimizer_sharding(std::unique_ptr<CheckpointReader> source, OptimizerSharding wanted,
                             const ReadOptions& read, const std::function<void()>& go_on) {
  Value common = source->common_state();
  const std::string sharding = optimizer_sharding(common);
  RearrangedContents contents;
  Findings findings;
  const auto stored = value_of(kOptimizerShardingNames, sharding);
  if (stored) {
    contents = rename_state(source->metadata(), wanted);
    if (stored != wanted)
      findings.push_back(
          {FindingCode::kFormChanged, str_format("the optimizer's state became {}",
                                                 name_of(kOptimizerShardingNames, wanted))});
  } else {
    require_all_values(*source);
    source = open_gathered_state(std::move(source));
    const std::vector<StoredBucket> buckets = optimizer_buckets(*source);
    if (buckets.empty()) refuse(sharding, wanted);
    NamedState named = name_state(*source, buckets, wanted, read, go_on);
    contents = std::move(named.contents);
    findings = std::move(named.findings);
    common = with_objects_of_groups(*source, std::move(common));
  }
  contents.common = common_for(wanted, std::move(common));
  return {rearranged_reader(std::move(source), std::move(contents)), std::move(findings)};
}

}  // namespace dckpt
