// What Megatron-Core looks for, for each optimizer of a chain ("chained_C." if there are several)
// and each rank I of those that share the model:
//
//   [chained_C.]optimizer.distributed.dp_group_idx_I
//     .gbuf_idx_G.dtype_(P, G).bucket_idx_B.NAME    tensors of one axis: "param" and the moments
//     .optimizer, .grad_scaler                      objects: what the optimizer keeps beside them
//     .per_bucket_numel[_unpadded]                  objects: for each buffer {(P, G): [elements]}
//   optimizer[.C].param_state_sharding_type         in the common state, dp_reshardable
//   content_metadata.distrib_optim_sharding_type    the same

#include "dist_checkpointing/rewrite/into_buckets.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/rewrite/bucket_layout.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "strategies/concatenated/concatenated_reader.h"
#include "strategies/contract/run_args.h"
#include "strategies/rearranged/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kParam = "param";
/// Elements; the shares of ranks that have fewer are written together. Readers take any chunks.
constexpr std::int64_t kSmallestChunk = 256;
constexpr const char* kSharding = "param_state_sharding_type";
constexpr const char* kDpReshardable = "dp_reshardable";

/// Positions of a model tensor's state, by name.
using States = std::map<std::string, std::uint32_t, std::less<>>;

class IntoBuckets {
 public:
  IntoBuckets(std::unique_ptr<CheckpointReader> source, const RunArguments& run)
      : source_(std::move(source)),
        metadata_(source_->metadata()),
        common_(source_->common_state()),
        run_(run) {
    collect_state();
    const auto any = [&](std::string_view text) {
      return std::ranges::any_of(trained_, [&](std::uint32_t tensor) {
        return metadata_.tensors[tensor].key.find(text) != std::string::npos;
      });
    };
    settings_ = bucket_settings(common_, run_, any(".experts."), any(".layer_norm_"));
    groups_ = lay_out_buckets(metadata_, trained_, settings_);
    optimizers_ = groups_.empty() ? 1 : groups_.back().chain + 1;
  }

  std::unique_ptr<CheckpointReader> run(std::vector<std::string>& remarks) {
    keep_the_rest();
    std::vector<ConcatenatedTensor> tensors;
    for (const LaidOutGroup& group : groups_) {
      add_tensors(group, tensors);
      add_objects(group);
    }
    problems_.raise_if_any(ErrorCode::kMismatch, "state of the optimizer is not complete:");
    // Last: the buckets come after the source's tensors.
    auto position = static_cast<std::uint32_t>(metadata_.tensors.size());
    for (const ConcatenatedTensor& tensor : tensors) {
      const Box all{{0}, {tensor.size}};
      contents_.tensors.push_back(
          {.key = tensor.key,
           .properties = tensor.properties,
           .size = {tensor.size},
           .parts = {{.target = all, .tensor = position++, .source = all}}});
    }
    contents_.common = common(remarks);
    remarks.push_back(str_format(
        "the optimizer's state became {} for {} in {}", kDpReshardable, sizes(),
        settings_.bucket_size == 0
            ? "one bucket per buffer (no overlap_grad_reduce)"
            : str_format("buckets from {} on", counted(settings_.bucket_size, "element"))));
    return rearranged_reader(concatenated_reader(std::move(source_), std::move(tensors)),
                             std::move(contents_));
  }

 private:
  void collect_state() {
    std::unordered_map<std::string_view, std::uint32_t> models;
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      if (!is_state(metadata_.tensors[i].key)) models.emplace(metadata_.tensors[i].key, i);
    }
    ProblemList lost;
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const OptimizerStateKey parts = parse_optimizer_state_key(metadata_.tensors[i].key);
      if (parts.model_key.empty()) continue;
      const auto model = models.find(parts.model_key);
      if (model == models.end())
        lost.add(str_format("{}: there is no {}", quote(metadata_.tensors[i].key),
                            quote(std::string(parts.model_key))));
      else
        states_[model->second].emplace(parts.name, i);
    }
    lost.raise_if_any(ErrorCode::kMismatch, "state of the optimizer belongs to no model tensor:");
    for (const auto& [model, states] : states_) trained_.push_back(model);
    if (trained_.empty()) throw CheckpointError(ErrorCode::kMismatch, "the optimizer has no state");
  }

  static bool is_state(std::string_view key) {
    return !parse_optimizer_state_key(key).model_key.empty();
  }

  /// The model, and whatever is not the state of one of its tensors.
  void keep_the_rest() {
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      if (is_state(tensor.key)) continue;
      const Box all = whole(tensor.global_shape());
      contents_.tensors.push_back(
          {.key = tensor.key,
           .properties = tensor.properties,
           .size = tensor.global_shape(),
           .parts = {{.target = all, .tensor = static_cast<std::uint32_t>(i), .source = all}}});
    }
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i)
      contents_.objects.push_back({.key = metadata_.objects[i].key, .position = i});
    for (const auto& [key, path] : metadata_.paths) {
      if (!is_state(key)) contents_.paths.emplace_back(key, path);
    }
  }

  std::string prefix(const LaidOutGroup& group) const {
    return str_format("{}optimizer.distributed.dp_group_idx_{}",
                      optimizers_ > 1 ? str_format("chained_{}.", group.chain) : std::string(),
                      group.index);
  }

  static std::string name_of(DType dtype) { return "torch." + std::string(to_string(dtype)); }

  void add_tensors(const LaidOutGroup& group, std::vector<ConcatenatedTensor>& tensors) {
    for (std::size_t g = 0; g < group.buffers.size(); ++g) {
      const LaidOutBuffer& buffer = group.buffers[g];
      for (std::size_t b = 0; b < buffer.buckets.size(); ++b) {
        const LaidOutBucket& bucket = buffer.buckets[b];
        const States& first = states_.at(bucket.parts.front().tensor);
        const std::int64_t share = bucket.padded / bucket.ranks;
        const std::int64_t together = (kSmallestChunk + share - 1) / share;
        if (!first.contains(kParam))
          problems_.add(str_format("{} has no main parameters (\"param\")",
                                   quote(metadata_.tensors[bucket.parts.front().tensor].key)));
        for (const auto& [name, position] : first) {
          ConcatenatedTensor tensor{
              .key = str_format("{}.gbuf_idx_{}.dtype_({}, {}).bucket_idx_{}.{}", prefix(group), g,
                                name_of(buffer.parameters), name_of(buffer.gradients), b, name),
              .properties = metadata_.tensors[position].properties,
              .size = bucket.used,
              .parts = {},
              .chunk = bucket.padded / bucket.ranks * together};
          for (const LaidOutBucket::Part& part : bucket.parts) {
            const States& states = states_.at(part.tensor);
            const auto state = states.find(name);
            if (state == states.end() || states.size() != first.size()) {
              problems_.add(str_format("{} does not have what {} has",
                                       quote(metadata_.tensors[part.tensor].key),
                                       quote(metadata_.tensors[bucket.parts.front().tensor].key)));
              break;
            }
            tensor.parts.push_back({part.begin, state->second, part.box});
          }
          for (std::int64_t begin = 0, rank = 0; begin < bucket.used;
               begin += tensor.chunk, rank += together)
            tensor.ranks.push_back(static_cast<int>(group.index + group.count * rank));
          tensors.push_back(std::move(tensor));
        }
      }
    }
  }

  /// The common state of one optimizer.
  const Value* optimizer(std::int64_t chain) const {
    const Value* const all = common_.find("optimizer");
    if (all == nullptr || !all->is_dict()) return nullptr;
    std::int64_t members = 0;
    for (const auto& [key, value] : all->as_dict()) members += key.is_int() ? 1 : 0;
    if (std::max<std::int64_t>(members, 1) != optimizers_)
      throw CheckpointError(
          ErrorCode::kUnsupported,
          str_format("the checkpoint's common state is that of {}, but a run with "
                     "expert_model_parallel_size {} has {}; keep expert parallelism on or off",
                     counted(std::max<std::int64_t>(members, 1), "optimizer"), settings_.expert,
                     optimizers_));
    return members == 0 ? all : all->find(Value(chain));
  }

  void add_objects(const LaidOutGroup& group) {
    const auto add = [&](const char* name, Value value) {
      contents_.objects.push_back(
          {.key = str_format("{}.{}/shard_0_1", prefix(group), name), .value = std::move(value)});
    };
    const Value* const of_group = optimizer(group.chain);
    for (const char* const name : {"optimizer", "grad_scaler"}) {
      const Value* const found = of_group == nullptr ? nullptr : of_group->find(name);
      if (found != nullptr) add(name, *found);
    }
    ValueList padded;
    ValueList used;
    for (const LaidOutBuffer& buffer : group.buffers) {
      const auto counts = [&](std::int64_t LaidOutBucket::*elements) {
        ValueList list;
        for (const LaidOutBucket& bucket : buffer.buckets) list.emplace_back(bucket.*elements);
        return Value::dict(
            {{Value::tuple({Global{"torch", std::string(to_string(buffer.parameters))},
                            Global{"torch", std::string(to_string(buffer.gradients))}}),
              Value::list(std::move(list))}});
      };
      padded.push_back(counts(&LaidOutBucket::padded));
      used.push_back(counts(&LaidOutBucket::used));
    }
    add("per_bucket_numel", Value::list(std::move(padded)));
    add("per_bucket_numel_unpadded", Value::list(std::move(used)));
  }

  Value common(std::vector<std::string>& remarks) const {
    Value common = common_;
    // Not copies of one value, which a pickle would store as one dict: Megatron merges into each.
    const auto form = [] { return Value::dict({{kSharding, kDpReshardable}}); };
    Value all = optimizers_ == 1 ? form() : Value::dict();
    for (std::int64_t i = 0; optimizers_ > 1 && i < optimizers_; ++i)
      all.mutable_dict().set(i, form());
    Dict& root = common.mutable_dict();
    root.set("optimizer", std::move(all));
    Dict& content = root["content_metadata"].mutable_dict();
    content.set("distrib_optim_sharding_type", kDpReshardable);
    content.erase("distrib_optim_fully_reshardable_mem_efficient");
    if (Value* const args = root.find("args"); args != nullptr) set_args(*args, remarks);
    return common;
  }

  /// Megatron compares its own sizes with those of the args. If these are not the same, it takes no
  /// state of random number generators, which each rank has.
  void set_args(Value& args, std::vector<std::string>& remarks) const {
    const Value* const stored = run_args(common_);
    if (stored == nullptr) return;
    Dict& entries =
        args.is_dict() ? args.mutable_dict() : args.mutable_opaque().states.front().mutable_dict();
    for (const auto& [name, value] : run_) {
      const Value* const old = entries.find(Value(name));
      const bool flag = old != nullptr && old->is(Value::Kind::kBool) && value.is_int();
      entries.set(name, flag ? Value(value != Value(0)) : value);
    }
    const auto has = [&](const char* name, std::int64_t size) {
      return run_arg(stored, name).value_or(size) == size;
    };
    if (!has("virtual_pipeline_model_parallel_size", settings_.virtual_pipeline))
      entries.set("virtual_pipeline_model_parallel_size",
                  settings_.virtual_pipeline > 1 ? Value(settings_.virtual_pipeline) : Value());
    if (!has("expert_tensor_parallel_size", settings_.expert_tensor))
      entries.set("expert_tensor_parallel_size", settings_.expert_tensor);
    const std::int64_t ranks =
        settings_.tensor * settings_.pipeline * settings_.data * settings_.context;
    if (!has("world_size", ranks)) entries.set("world_size", ranks);
    if (has("tensor_model_parallel_size", settings_.tensor) &&
        has("pipeline_model_parallel_size", settings_.pipeline))
      return;
    entries.set("no_save_rng", true);
    remarks.emplace_back(
        "the state of random number generators (rng_state) belongs to the ranks of another layout; "
        "the args say no_save_rng, so that Megatron starts new ones");
    remarks.emplace_back(
        "the model's chunks are those of that layout, too, so what lies in these buckets cannot be "
        "found by values: for --optimizer keep the source");
  }

  std::string sizes() const {
    std::string text =
        str_format("TP {}, PP {}, DP {}", settings_.tensor, settings_.pipeline, settings_.data);
    if (settings_.virtual_pipeline > 1) text += str_format(", VP {}", settings_.virtual_pipeline);
    if (settings_.expert > 1)
      text += str_format(", EP {}, ETP {}", settings_.expert, settings_.expert_tensor);
    return text;
  }

  std::unique_ptr<CheckpointReader> source_;
  const Metadata& metadata_;
  Value common_;
  const RunArguments& run_;
  std::map<std::uint32_t, States> states_;  // by the model's tensor
  std::vector<std::uint32_t> trained_;
  BucketSettings settings_;
  std::vector<LaidOutGroup> groups_;
  std::int64_t optimizers_ = 1;
  RearrangedContents contents_{.tensors = {}};
  ProblemList problems_;
};

}  // namespace

std::unique_ptr<CheckpointReader> into_buckets(std::unique_ptr<CheckpointReader> source,
                                               const RunArguments& run,
                                               std::vector<std::string>& remarks) {
  return IntoBuckets(std::move(source), run).run(remarks);
}

}  // namespace dckpt
