#include "migration/megatron_fsdp/megatron_fsdp.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/geometry/cast.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "migration/megatron_fsdp/recorded_names.h"
#include "migration/optimizer/parameter_groups.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/converted_reader.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kGroups = "optimizer.param_to_group_meta.";
constexpr const char* kReshardable = "fully_reshardable";
constexpr std::uint64_t kMaxRngBytes = std::uint64_t{64} << 20;  // all states together

class FromMegatronFsdp {
 public:
  explicit FromMegatronFsdp(const CheckpointReader& source)
      : source_(source), metadata_(source.metadata()) {}

  Rearrangement run() {
    read_objects();
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) sort_in(i);
    rename_norms();
    const bool stacks = is_homogeneous();
    for (auto& [name, parts] : weights_) {
      const std::size_t first = contents_.tensors.size();
      make(name, std::string(), parts, stacks);
      add_main_parameters(name, parts, stacks, first);
      const auto states = states_.find(name);
      if (states == states_.end()) continue;
      for (auto& [state, of_state] : states->second) make(name, state, of_state, stacks);
      states_.erase(states);
    }
    for (const auto& [name, states] : states_)
      problems_.add(str_format("there is no weight {}, but state of it", quote(name)));
    problems_.raise_if_any(ErrorCode::kMismatch,
                           "the tensors of Megatron-FSDP do not make up those of Megatron-Core:");
    tell_of_kept_precision();
    names_.added_extra_state = !has_extra_state_;
    if (!has_extra_state_) add_extra_states(stacks);
    add_rng();
    const FsdpNames usual = usual_names();
    contents_.common = make_common();
    if (names_ != usual) record(names_, *contents_.common);
    contents_.conventions = Conventions{};
    findings_.push_back(
        {FindingCode::kKeysChanged,
         str_format("keys: Megatron-FSDP's became Megatron-Core's ({})",
                    stacks ? "homogeneous, with an axis for layers" : "with the layers' numbers")});
    return {std::move(contents_), std::move(findings_)};
  }

  /// Returns the casts of weights, by their positions in the result of run().
  std::map<std::uint32_t, ElementConversion> casts() { return std::move(casts_); }

 private:
  struct Part {
    ModelKey part;
    std::size_t tensor = 0;
  };
  using Parts = std::vector<Part>;

  void read_objects() {
    std::unordered_map<std::string_view, const KeyPath*> paths;
    for (const auto& [key, path] : metadata_.paths) paths.emplace(key, &path);
    std::vector<std::pair<KeyPath, Value>> leaves;
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const std::string& key = metadata_.objects[i].key;
      const std::string_view view = key;
      if (ShardedObject::is_unique_key(key)) {
        contents_.objects.push_back({.key = key, .position = i});
        has_extra_state_ |= is_extra_state(key);
      } else if (view.starts_with(kGroups)) {
        const std::string_view rest = unwrapped(view.substr(kGroups.size()));
        const std::size_t dot = rest.rfind('.');
        if (dot == rest.npos) continue;
        options_of(std::string(rest.substr(0, dot)))[std::string(rest.substr(dot + 1)).c_str()] =
            source_.object(i);
      } else {
        const auto path = paths.find(key);
        leaves.emplace_back(path == paths.end() ? KeyPath{key} : *path->second, source_.object(i));
      }
    }
    add_rng_tensors(paths, leaves);
    common_ = unflatten_state_dict(leaves);
    if (!common_.is_dict()) common_ = Value::dict();
    core_ = take_core_names(common_);
    Value* const optimizer = common_.mutable_dict().find("optimizer");
    if (optimizer != nullptr && optimizer->is_dict()) *optimizer = with_numbers(*optimizer);
    plain_ = !parameter_groups(common_).empty() && optimizer_sharding(common_).empty();
    args_ = run_args(common_);
  }

  /// Returns a key without the modules around the model, and records their number.
  std::string_view unwrapped(std::string_view key) {
    const std::string_view inner = without_wrappers(key);
    wrappers_ = static_cast<int>((key.size() - inner.size()) / std::string_view("module.").size());
    return inner;
  }

  /// Returns a parameter's options, which are kept in the order of their first appearance.
  Value& options_of(const std::string& parameter) {
    const auto [found, added] = option_index_.try_emplace(parameter, options_.size());
    if (added) options_.push_back(Value::dict());
    return options_[found->second];
  }

  void add_rng_tensors(const std::unordered_map<std::string_view, const KeyPath*>& paths,
                       std::vector<std::pair<KeyPath, Value>>& leaves) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      const auto path = paths.find(tensor.key);
      if (!is_rng(tensor.key) || path == paths.end()) continue;
      bytes += tensor.nbytes();
      if (bytes > kMaxRngBytes)
        throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                    "the RNG states are larger than {}", human_bytes(kMaxRngBytes));
      leaves.emplace_back(*path->second, Value(read_box(source_, i, whole(tensor.size))));
    }
  }

  static bool is_rng(std::string_view key) { return key.starts_with("rng_state.("); }

  void sort_in(std::size_t tensor) {
    const std::string& key = metadata_.tensors[tensor].key;
    const std::string_view view = key;
    if (is_rng(key)) return;
    if (view.starts_with("model.module.")) {
      ModelKey part = parse_fsdp_key(without_wrappers(view.substr(kModel.size())));
      const std::string name = part.name;
      if (part.expert && !std::exchange(has_experts_, true))
        names_.grouped = view.find(".local_experts.") == view.npos;
      const auto [found, added] = weight_index_.try_emplace(name, weights_.size());
      if (added) weights_.emplace_back(name, Parts{});
      weights_[found->second].second.push_back({std::move(part), tensor});
      return;
    }
    if (view.starts_with(kOptimizerState)) {
      const std::string_view rest = unwrapped(view.substr(kOptimizerState.size()));
      if (const std::size_t dot = rest.rfind('.'); dot != rest.npos) {
        ModelKey part = parse_fsdp_key(rest.substr(0, dot));
        const std::string name = part.name;
        states_[name][std::string(rest.substr(dot + 1))].push_back({std::move(part), tensor});
        return;
      }
    }
    keep(tensor);
  }

  /// Renames norms of local layers, which alone have a norm in front of linear_qkv as a module of
  /// its own. torch_dist uses Transformer Engine's names for them.
  void rename_norms() {
    std::set<std::string> local;
    for (const auto& [name, parts] : weights_) {
      const std::string stack = stack_of(name);
      if (name == stack + ".layers.input_layernorm.weight" &&
          weight_index_.contains(stack + ".layers.self_attention.linear_qkv.weight"))
        local.insert(stack);
    }
    if (local.empty()) return;
    names_.local_norms = true;
    std::map<std::string, std::map<std::string, Parts>> states;
    for (auto& [name, parts] : weights_) {
      if (local.contains(stack_of(name))) name = with_fused_norms(name);
    }
    for (auto& [name, of_name] : states_)
      states.emplace(local.contains(stack_of(name)) ? with_fused_norms(name) : name,
                     std::move(of_name));
    states_ = std::move(states);
    findings_.push_back({FindingCode::kKeysChanged,
                         "norms of Megatron's local layers are called as torch_dist has them"});
  }

  void keep(std::size_t tensor) {
    const TensorStorageMetadata& kept = metadata_.tensors[tensor];
    if (!is_extra_state(kept.key)) names_.others.insert(kept.key);
    contents_.tensors.push_back({.key = kept.key,
                                 .properties = kept.properties,
                                 .size = kept.size,
                                 .parts = {{.target = whole(kept.size),
                                            .tensor = static_cast<std::uint32_t>(tensor),
                                            .source = whole(kept.size)}}});
    findings_.push_back(
        {FindingCode::kKeysKept,
         str_format("{} keeps its key, which is none of Megatron-FSDP's model", quote(kept.key)),
         {kept.key}});
  }

  /// Returns whether all layers have the same tensors, so that Megatron stacks them.
  bool is_homogeneous() const {
    const Value* const content = common_.find(kContentMetadataKey);
    const Value* const apart =
        content == nullptr ? nullptr : content->find("non_homogeneous_layers");
    if (apart != nullptr && *apart == Value(true)) return false;
    // The key is the part of the name in front of the layers.
    std::map<std::string, std::set<std::int64_t>> layers;
    for (const auto& [name, parts] : weights_) {
      for (const Part& part : parts) {
        if (part.part.layer) layers[stack_of(name)].insert(*part.part.layer);
      }
    }
    for (const auto& [name, parts] : weights_) {
      std::map<std::int64_t, std::multiset<Shape>> shapes;
      for (const Part& part : parts) {
        if (part.part.layer) shapes[*part.part.layer].insert(metadata_.tensors[part.tensor].size);
      }
      if (shapes.empty()) continue;
      if (shapes.size() != layers[stack_of(name)].size()) return false;
      for (const auto& [layer, of_layer] : shapes) {
        if (of_layer != shapes.begin()->second) return false;
      }
    }
    return true;
  }

  static std::string stack_of(const std::string& name) {
    return name.substr(0, name.find(".layers."));
  }

  /// Returns the key of a tensor whose layers are not stacked, from its name and layer.
  static std::string key_of(const std::string& name, const ModelKey& part) {
    return fsdp_key({.name = name, .layer = part.layer}, true);
  }

  /// Adds the tensors of a name: one, or one for each layer.
  void make(const std::string& name, const std::string& state, const Parts& parts, bool stacks) {
    std::map<std::int64_t, Parts> by_layer;
    for (const Part& part : parts)
      by_layer[stacks ? -1 : part.part.layer.value_or(-1)].push_back(part);
    for (const auto& [layer, of_layer] : by_layer) {
      const std::string key = stacks ? name : key_of(name, of_layer.front().part);
      if (auto made = join(of_layer, stacks)) {
        made->key = state.empty() ? key : state_key(state, key);
        if (state.empty() && of_layer.front().part.half != 0) names_.halves.insert(key);
        contents_.tensors.push_back(std::move(*made));
      } else {
        problems_.add(str_format(
            "{}: {}", quote(state.empty() ? key : state_key(state, key)),
            "layers, experts or halves are missing, twice there, or of different shapes"));
      }
    }
  }

  std::string state_key(const std::string& state, const std::string& key) const {
    const auto chain = core_.chains.find(key);
    return str_format("{}{}{}.{}", plain_ && chain != core_.chains.end() ? chain->second : "",
                      kOptimizerState, state, key);
  }

  /// Returns the names that a conversion back would choose without a record. Names that cannot be
  /// seen are as usual.
  FsdpNames usual_names() {
    Metadata made;
    for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
      const RearrangedTensor& tensor = contents_.tensors[i];
      made.tensors.push_back({.key = tensor.key,
                              .properties = tensor.properties,
                              .size = tensor.size,
                              .chunks = BoxList(tensor.size.size())});
      if (const auto cast = casts_.find(static_cast<std::uint32_t>(i)); cast != casts_.end())
        made.tensors.back().properties.dtype = cast->second.dtype;
    }
    FsdpNames usual = usual_fsdp_names(made, args_);
    names_.wrappers = wrappers_.value_or(usual.wrappers);
    if (!has_experts_) names_.grouped = usual.grouped;
    return usual;
  }

  /// Returns the tensor that consists of these parts.
  std::optional<RearrangedTensor> join(const Parts& parts, bool stacks) const {
    const TensorStorageMetadata& first = metadata_.tensors[parts.front().tensor];
    std::int64_t layers = 0, experts = 0, halves = 0;
    std::set<std::tuple<std::int64_t, std::int64_t, char>> seen;
    for (const auto& [part, tensor] : parts) {
      if (stacks && part.layer) layers = std::max(layers, *part.layer + 1);
      if (part.expert) experts = std::max(experts, *part.expert + 1);
      if (part.half != 0) halves = 2;
      if (!seen.emplace(part.layer.value_or(-1), part.expert.value_or(-1), part.half).second ||
          metadata_.tensors[tensor].size != first.size ||
          (part.half != 0) != (parts.front().part.half != 0) ||
          part.layer.has_value() != parts.front().part.layer.has_value() ||
          part.expert.has_value() != parts.front().part.expert.has_value())
        return std::nullopt;
    }
    const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(layers, 1)) *
                       static_cast<std::uint64_t>(std::max<std::int64_t>(experts, 1)) *
                       static_cast<std::uint64_t>(std::max<std::int64_t>(halves, 1));
    if (count != parts.size() || (halves != 0 && first.size.empty())) return std::nullopt;
    RearrangedTensor made{.key = {}, .properties = first.properties, .size = {}, .parts = {}};
    if (layers > 0) made.size.push_back(layers);
    if (experts > 0) made.size.push_back(experts);
    const std::size_t stacked = made.size.size();
    made.size.insert(made.size.end(), first.size.begin(), first.size.end());
    if (halves > 0) made.size[stacked] *= 2;
    for (const auto& [part, tensor] : parts) {
      Box target{Shape(stacked, 0), Shape(stacked, 1)};
      std::size_t axis = 0;
      if (layers > 0) target.offsets[axis++] = *part.layer;
      if (experts > 0) target.offsets[axis++] = *part.expert;
      for (const std::int64_t extent : first.size) {
        target.offsets.push_back(0);
        target.sizes.push_back(extent);
      }
      if (part.half == 'v') target.offsets[stacked] = first.size[0];
      TensorPart piece{.target = std::move(target),
                       .tensor = static_cast<std::uint32_t>(tensor),
                       .source = whole(first.size),
                       .axes = std::vector<std::int32_t>(stacked, kNoAxis)};
      for (std::size_t i = 0; i < first.size.size(); ++i)
        piece.axes.push_back(static_cast<std::int32_t>(i));
      made.parts.push_back(std::move(piece));
    }
    return made;
  }

  /// Makes the weights, `first` of `contents_.tensors` and following, the main parameters of a name
  /// that has state.
  void add_main_parameters(const std::string& name, const Parts& parts, bool stacks,
                           std::size_t first) {
    const auto states = states_.find(name);
    if (states == states_.end()) return;
    for (const char* const there : {"param", "fp32_param"}) {
      const auto found = states->second.find(there);
      if (found == states->second.end()) continue;
      if (std::string_view(there) == "fp32_param" && !plain_) {
        states->second["param"] = std::move(found->second);
        states->second.erase("fp32_param");
      }
      return;
    }
    if (plain_ && core_.without_main.contains(contents_.tensors[first].key)) return;
    const DType dtype = compute_dtype(args_);
    for (std::size_t i = first; i < contents_.tensors.size(); ++i) {
      if (contents_.tensors[i].properties.dtype == DType::kFloat32 && dtype != DType::kFloat32)
        casts_.emplace(static_cast<std::uint32_t>(i), ElementConversion{.dtype = dtype});
    }
    make(name, plain_ ? "fp32_param" : "param", parts, stacks);
    if (!has_main_parameters_ && !run_flag(args_, "bf16") && !run_flag(args_, "fp16"))
      findings_.push_back(
          {FindingCode::kValuesNotCast,
           "weights stay float32, as Megatron-FSDP trains them: no args say another dtype (a map "
           "can "
           "cast them)"});
    has_main_parameters_ = true;
  }

  /// Reports weights that stay float32, since without the optimizer nothing else holds their
  /// values.
  void tell_of_kept_precision() {
    const DType dtype = compute_dtype(args_);
    const auto any = [&](const auto& is) { return std::ranges::any_of(contents_.tensors, is); };
    if (dtype != DType::kFloat32 && any([](const RearrangedTensor& tensor) {
          return tensor.properties.dtype == DType::kFloat32;
        }) &&
        !any([](const RearrangedTensor& tensor) { return is_optimizer_key(tensor.key); }))
      findings_.push_back(
          {FindingCode::kValuesNotCast,
           str_format(
               "weights stay float32, although the run computed in {}: there is no state of an "
               "optimizer that would keep their digits",
               to_string(dtype))});
  }

  /// Adds an extra state without content for every module: Megatron asks for them, and they do no
  /// harm.
  void add_extra_states(bool stacks) {
    std::set<std::string> made;
    const auto add_state = [&](const std::string& module, const std::string& at,
                               const std::string& grid) {
      std::string key = str_format("{}._extra_state/shard_{}_{}", module, at, grid);
      if (made.insert(key).second) contents_.objects.push_back({std::move(key), 0, Value()});
    };
    for (const auto& [name, parts] : weights_) {
      std::string module = name.substr(0, name.rfind('.') == name.npos ? 0 : name.rfind('.'));
      if (module.empty() || (!parts.front().part.layer && !module.ends_with("final_layernorm")))
        continue;
      std::int64_t layers = 0, experts = 0;
      for (const auto& [part, tensor] : parts) {
        if (part.layer) layers = std::max(layers, *part.layer + 1);
        if (part.expert) experts = std::max(experts, *part.expert + 1);
      }
      for (const auto& [part, tensor] : parts) {
        const bool layer_in_grid = stacks && part.layer;
        std::string at = layer_in_grid ? std::to_string(*part.layer) : "";
        std::string grid = layer_in_grid ? std::to_string(layers) : "";
        const std::string key = stacks ? module : key_of(module + ".", part);
        std::string owner = stacks ? module : key.substr(0, key.size() - 1);
        if (const std::size_t attention = owner.find(".self_attention."); attention != owner.npos)
          add_state(owner.substr(0, attention) + ".self_attention.core_attention",
                    at.empty() ? "0" : at, grid.empty() ? "1" : grid);
        if (part.expert) {
          at += (at.empty() ? "" : ".") + std::to_string(*part.expert);
          grid += (grid.empty() ? "" : ".") + std::to_string(experts);
        }
        add_state(owner, at.empty() ? "0" : at, grid.empty() ? "1" : grid);
      }
    }
  }

  /// Makes a grid of objects of the RNG states, which are listed as "(p, t)": [states].
  void add_rng() {
    Value* const states = common_.mutable_dict().find(Value(std::string(kRng)));
    if (states == nullptr || !states->is_dict()) return;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Value> found;
    std::uint64_t stages = 0, ranks = 0;
    for (const auto& [key, state] : states->as_dict()) {
      const std::string_view text = key.is_str() ? std::string_view(key.as_str()) : "";
      const std::size_t comma = text.find(", ");
      if (!text.starts_with("(") || !text.ends_with(")") || comma == text.npos) continue;
      const auto stage = parse_u64(text.substr(1, comma - 1));
      const auto rank = parse_u64(text.substr(comma + 2, text.size() - comma - 3));
      if (!stage || !rank || *stage > INT32_MAX || *rank > INT32_MAX) continue;
      stages = std::max(stages, *stage + 1);
      ranks = std::max(ranks, *rank + 1);
      found.emplace(std::pair(*stage, *rank), state);
    }
    if (found.size() == stages * ranks && found.size() == states->size()) {
      for (auto& [at, state] : found)
        contents_.objects.push_back(
            {str_format("{}/shard_{}.{}_{}.{}", kRng, at.first, at.second, stages, ranks), 0,
             std::move(state)});
    } else {
      findings_.push_back({FindingCode::kStateMissing,
                           "the RNG states are left out: those of some ranks are missing"});
    }
    common_.mutable_dict().erase(Value(std::string(kRng)));
  }

  Value make_common() {
    Value common = std::move(common_);
    const bool has_state = std::ranges::any_of(
        contents_.tensors,
        [](const RearrangedTensor& tensor) { return is_optimizer_key(tensor.key); });
    if ((!has_state && options_.empty()) || plain_) return common;
    if (parameter_groups(common).empty() && !options_.empty()) {
      Value made = groups_of_options();
      Value& there = common["optimizer"];
      if (!there.is_dict()) there = Value::dict();
      for (const auto& [key, value] : made.as_dict()) {
        there.mutable_dict().set(key, value);
        names_.added.insert(str_format("optimizer.{}", *key_text(key)));
      }
    }
    Value& content = common[kContentMetadataKey];
    if (!content.is_dict()) content = Value::dict();
    const auto set = [&](const char* name, Value value) {
      if (!content.contains(name))
        names_.added.insert(str_format("{}.{}", kContentMetadataKey, name));
      content[name] = std::move(value);
    };
    set(kShardingType, kReshardable);
    for (const auto& [name, value] :
         {std::pair("singleton_local_shards", false), std::pair("chained_optim_avoid_prefix", true),
          std::pair("distrib_optim_fully_reshardable_mem_efficient", false)}) {
      if (!content.contains(name)) set(name, value);
    }
    return common;
  }

  /// Returns a chain of optimizers with its numbers, which are text in paths, as integers.
  static Value with_numbers(const Value& optimizer) {
    Dict numbered;
    for (const auto& [key, value] : optimizer.as_dict()) {
      const auto number = key.is_str() ? parse_u64(key.as_str()) : std::nullopt;
      numbered.set(number && *number < 1000 ? Value(*number) : key, value);
    }
    return numbered;
  }

  /// Returns the parameter groups, each different set of options once; those of experts are an
  /// optimizer of their own.
  Value groups_of_options() const {
    std::array<ValueList, 2> groups;  // the second is for experts
    for (const Value& options : options_) {
      const Value* const expert = options.find("is_expert_parallel");
      add_once(groups.at(expert != nullptr && *expert == Value(true) ? 1 : 0), options);
    }
    const auto optimizer = [](ValueList list) {
      return Value::dict(
          {{"optimizer", Value::dict({{"param_groups", Value::list(std::move(list))}})},
           {"param_state_sharding_type", kReshardable}});
    };
    if (groups[1].empty()) return optimizer(std::move(groups[0]));
    return Value::dict(
        {{0, optimizer(std::move(groups[0]))}, {1, optimizer(std::move(groups[1]))}});
  }

  const CheckpointReader& source_;
  const Metadata& metadata_;
  Findings findings_;
  std::vector<std::pair<std::string, Parts>> weights_;  // by Megatron-Core's key, in order
  std::unordered_map<std::string, std::size_t> weight_index_;
  std::map<std::string, std::map<std::string, Parts>> states_;
  std::vector<Value> options_;  // one per parameter
  std::unordered_map<std::string, std::size_t> option_index_;
  Value common_;
  const Value* args_ = nullptr;
  /// The state came from an optimizer that is not distributed, as shown by the common state that a
  /// conversion has kept.
  bool plain_ = false;
  FsdpNames names_;
  CoreNames core_;
  bool has_experts_ = false;
  std::optional<int> wrappers_;
  bool has_extra_state_ = false;
  bool has_main_parameters_ = false;
  ProblemList problems_;
  std::map<std::uint32_t, ElementConversion> casts_;
  RearrangedContents contents_;
};

}  // namespace

View from_megatron_fsdp(std::unique_ptr<CheckpointReader> source) {
  FromMegatronFsdp conversion(*source);
  Rearrangement made = conversion.run();
  View view = rearranged_view(std::move(source), std::move(made));
  view.reader = converted_reader(std::move(view.reader), conversion.casts());
  return view;
}

}  // namespace dckpt
