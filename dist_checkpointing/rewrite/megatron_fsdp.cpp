#include "dist_checkpointing/rewrite/megatron_fsdp.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/rewrite/megatron_fsdp_keys.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "strategies/contract/common_state.h"
#include "strategies/contract/run_args.h"
#include "strategies/rearranged/rearranged_reader.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kState = "optimizer.state.";
constexpr std::string_view kGroups = "optimizer.param_to_group_meta.";
constexpr std::string_view kRng = "rng_state";
constexpr const char* kReshardable = "fully_reshardable";
constexpr const char* kShardingType = "distrib_optim_sharding_type";
constexpr const char* kDecay = "wd_mult";
constexpr std::uint64_t kMaxRngBytes = std::uint64_t{64} << 20;  // of all states together

bool is_extra_state(std::string_view key) {
  return key.find("._extra_state") != key.npos;
}

/// Main parameters, by the names of DistributedOptimizer and of the others.
bool is_main_parameter(std::string_view state) {
  return state == "param" || state == "fp32_param";
}

std::optional<bool> flag(const Value* args, const char* name) {
  const Value* const found = args == nullptr ? nullptr : args->find(name);
  return found != nullptr && found->is(Value::Kind::kBool) ? std::optional(found->as_bool())
                                                           : std::nullopt;
}

/// The dtype in which a run with these args computes; float32 if they do not say.
DType compute_dtype(const Value* args) {
  if (flag(args, "bf16").value_or(false)) return DType::kBFloat16;
  return flag(args, "fp16").value_or(false) ? DType::kFloat16 : DType::kFloat32;
}

/// Megatron makes a handful.
constexpr std::size_t kMaxGroups = 1000;
void add_once(std::vector<Value>& groups, Value options) {
  if (std::ranges::find(groups, options) != groups.end()) return;
  if (groups.size() == kMaxGroups)
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("the optimizer has more than {} different parameter groups",
                                     grouped(kMaxGroups)));
  groups.push_back(std::move(options));
}

/// Every list of parameter groups in the optimizer's common state, of one or of a chain of several.
std::vector<Value> parameter_groups(const Value& common) {
  std::vector<Value> groups;
  const auto add = [&](const Value& optimizer) {
    const Value* const inner = optimizer.find("optimizer");
    const Value* const found = inner == nullptr ? nullptr : inner->find("param_groups");
    if (found == nullptr || !found->is_list()) return;
    for (const Value& group : found->items()) {
      if (!group.is_dict()) continue;
      Value options = group;
      options.mutable_dict().erase("params");
      add_once(groups, std::move(options));
    }
  };
  const Value* const optimizer = common.find("optimizer");
  if (optimizer == nullptr || !optimizer->is_dict()) return groups;
  add(*optimizer);
  for (const auto& [number, member] : optimizer->as_dict()) {
    if (number.is_int()) add(member);
  }
  return groups;
}

std::pair<std::string, KeyPath> named(KeyPath path) {
  std::string name = dotted_name(path);
  return {std::move(name), std::move(path)};
}

// ---------------------------------------------------------------- to Megatron-FSDP

class ToMegatronFsdp {
 public:
  ToMegatronFsdp(const CheckpointReader& source, const FsdpSaveOptions& options,
                 std::vector<std::string>& remarks)
      : source_(source),
        metadata_(source.metadata()),
        common_(source.common_state()),
        remarks_(remarks),
        options_(options) {}

  RearrangedContents run() {
    if (!common_.is_dict()) common_ = Value::dict();
    args_ = run_args(common_);
    require_form();
    find_state();
    groups_ = parameter_groups(common_);
    for (int i = 0; i < wrapper_count(); ++i) wrappers_ += "module.";
    grouped_ = flag(args_, "moe_grouped_gemm").value_or(true);
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      const std::string& key = metadata_.tensors[i].key;
      if (is_extra_state(key))
        keep(i);
      else if (!is_optimizer_key(key))
        add_weight(i);
    }
    add_common();
    add_objects();
    describe();
    return std::move(contents_);
  }

 private:
  struct State {
    std::string name;
    std::size_t tensor = 0;
  };

  /// A part of a tensor: a layer's, an expert's.
  struct Piece {
    FsdpPart part;
    Box box;                  ///< in the tensor
    std::size_t stacked = 0;  ///< axes in front that it lacks
  };

  void require_form() const {
    const Value* const content = common_.find(kContentMetadataKey);
    const Value* const singleton =
        content == nullptr ? nullptr : content->find("singleton_local_shards");
    if (singleton != nullptr && *singleton == Value(true))
      throw CheckpointError(
          ErrorCode::kUnsupported,
          "experts and halves of gated matrices are tensors of their own here "
          "(singleton_local_shards), from which fsdp_dtensor is not made; first give them axes "
          "(--map NAME --set layout=non-homogeneous)");
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      for (const std::string_view split : {".mixer.", ".in_proj.weight.", ".conv1d.weight."}) {
        if (tensor.key.find(split) != std::string::npos)
          throw CheckpointError(ErrorCode::kUnsupported,
                                "fsdp_dtensor is not made of models with Mamba or gated delta net "
                                "layers, whose projections it stores joined",
                                {.key = tensor.key});
      }
    }
  }

  /// Of each tensor of the model, what the optimizer has for it.
  void find_state() {
    std::unordered_map<std::string_view, std::size_t> models;
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      if (!is_optimizer_key(metadata_.tensors[i].key)) models.emplace(metadata_.tensors[i].key, i);
    }
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      if (!is_optimizer_key(tensor.key)) continue;
      const OptimizerStateKey key = parse_optimizer_state_key(tensor.key);
      const auto model = models.find(key.model_key);
      if (model == models.end() || tensor.flattened_shape ||
          metadata_.tensors[model->second].size != tensor.size)
        refuse_state(tensor.key);
      states_[model->second].push_back({std::string(key.name), i});
    }
    for (const BytesStorageMetadata& object : metadata_.objects) {
      if (is_optimizer_key(object.key)) refuse_state(object.key);
    }
  }

  [[noreturn]] void refuse_state(const std::string& key) const {
    const std::string sharding = optimizer_sharding(common_);
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("fsdp_dtensor holds the optimizer's state in the shapes of the model, but here "
                   "it is {}; add --optimizer fully_reshardable, or first leave it out (--exclude "
                   "'optimizer.*', in a conversion of its own)",
                   sharding.empty() ? "not" : sharding),
        {.key = key});
  }

  int wrapper_count() const {
    if (options_.wrappers > 0) return options_.wrappers;
    const bool said = flag(args_, "bf16") || flag(args_, "fp16");
    return (said ? compute_dtype(args_) != DType::kFloat32 : has_half_precision()) ? 3 : 2;
  }

  bool has_half_precision() const {
    return std::ranges::any_of(metadata_.tensors, [](const TensorStorageMetadata& tensor) {
      return !is_optimizer_key(tensor.key) && !is_extra_state(tensor.key) &&
             (tensor.properties.dtype == DType::kBFloat16 ||
              tensor.properties.dtype == DType::kFloat16);
    });
  }

  /// Whether linear_fc1's `key` has a gate in front: args say it, or twice as many rows as
  /// linear_fc2 has columns.
  bool is_gated(const std::string& key) const {
    if (!is_gated_key(key)) return false;
    if (const auto swiglu = flag(args_, "swiglu")) return *swiglu;
    std::string first = key.substr(0, key.rfind('.')) + ".weight";
    std::string second = first;
    second.replace(second.rfind(".linear_fc1."), 12, ".linear_fc2.");
    const TensorStorageMetadata* const one = metadata_.find_tensor(first);
    const TensorStorageMetadata* const two = metadata_.find_tensor(second);
    return one != nullptr && two != nullptr && one->size.size() >= 2 && !two->size.empty() &&
           *(one->size.end() - 2) == 2 * two->size.back();
  }

  std::vector<Piece> pieces_of(const TensorStorageMetadata& tensor) const {
    const bool layers = has_layer_axis(tensor.key);
    const bool experts = has_expert_axis(tensor.key);
    const std::size_t stacked = (layers ? 1U : 0U) + (experts ? 1U : 0U);
    if (tensor.size.size() < stacked)
      throw CheckpointError(ErrorCode::kMismatch,
                            str_format("the shape {} has no axes for {}", to_string(tensor.size),
                                       layers && experts ? "layers and experts"
                                       : layers          ? "layers"
                                                         : "experts"),
                            {.key = tensor.key});
    std::vector<Piece> pieces;
    for (std::int64_t layer = 0; layer < (layers ? tensor.size[0] : 1); ++layer) {
      for (std::int64_t expert = 0; expert < (experts ? tensor.size[stacked - 1] : 1); ++expert) {
        Piece piece{
            .part = {.key = options_.names == NormNames::kLocal ? norm_of_local_layer(tensor.key)
                                                                : tensor.key},
            .box = whole(tensor.size),
            .stacked = stacked};
        if (layers) piece.part.layer = layer;
        if (experts) piece.part.expert = expert;
        for (std::size_t axis = 0; axis < stacked; ++axis) {
          piece.box.offsets[axis] = axis == 0 && layers ? layer : expert;
          piece.box.sizes[axis] = 1;
        }
        pieces.push_back(std::move(piece));
      }
    }
    return pieces;
  }

  void add(std::size_t from, const Piece& piece, KeyPath path) {
    const TensorStorageMetadata& tensor = metadata_.tensors[from];
    Shape size(piece.box.sizes.begin() + static_cast<std::ptrdiff_t>(piece.stacked),
               piece.box.sizes.end());
    TensorPart part{
        .target = whole(size), .tensor = static_cast<std::uint32_t>(from), .source = piece.box};
    for (std::size_t axis = piece.stacked; axis < piece.box.dims(); ++axis)
      part.axes.push_back(static_cast<std::int32_t>(axis));
    contents_.paths.push_back(named(std::move(path)));
    contents_.tensors.push_back({.key = contents_.paths.back().first,
                                 .properties = tensor.properties,
                                 .size = std::move(size),
                                 .parts = {std::move(part)}});
  }

  void add_weight(std::size_t model) {
    const TensorStorageMetadata& tensor = metadata_.tensors[model];
    const auto found = states_.find(model);
    const std::span<const State> states =
        found == states_.end() ? std::span<const State>() : found->second;
    std::size_t weight = model;
    for (const State& state : states) {
      if (is_main_parameter(state.name)) weight = state.tensor;
    }
    if (weight != model) ++main_parameters_;
    const bool gated = is_gated(tensor.key);
    for (const Piece& piece : pieces_of(tensor)) {
      if (!states.empty()) add_group(piece);
      for (const Piece& stored : gated ? halves_of(piece) : std::vector{piece}) {
        const std::string key = fsdp_key(stored.part, grouped_);
        add(weight, stored, {"model", "module." + key});
        for (const State& state : states) {
          if (!is_main_parameter(state.name))
            add(state.tensor, stored, {"optimizer", "state", wrappers_ + key, state.name});
        }
      }
    }
  }

  static std::vector<Piece> halves_of(const Piece& piece) {
    const std::int64_t rows = piece.stacked < piece.box.dims() ? piece.box.sizes[piece.stacked] : 1;
    if (rows % 2 != 0)
      throw CheckpointError(ErrorCode::kMismatch,
                            str_format("a gated matrix has an even number of rows, not {}", rows),
                            {.key = piece.part.key});
    std::vector<Piece> halves{piece, piece};
    for (std::size_t i = 0; i < 2; ++i) {
      halves[i].part.half = i == 0 ? 'w' : 'v';
      halves[i].box.sizes[piece.stacked] = rows / 2;
      halves[i].box.offsets[piece.stacked] = static_cast<std::int64_t>(i) * (rows / 2);
    }
    return halves;
  }

  /// The options of the group that a parameter is in: Megatron puts biases and what has one axis
  /// into groups without weight decay, and experts and embeddings into groups of their own.
  void add_group(const Piece& piece) {
    if (groups_.empty()) return;
    const std::string key = fsdp_key(piece.part, grouped_);
    const bool vector = piece.box.dims() - piece.stacked == 1 || key.ends_with(".bias");
    const bool norm = key.find("q_layernorm.") != key.npos || key.find("k_layernorm.") != key.npos;
    const bool decays =
        !vector || (norm && flag(args_, "apply_wd_to_qk_layernorm").value_or(false));
    const bool embeds = key.ends_with("word_embeddings.weight") || key == "output_layer.weight";
    std::vector<const Value*> candidates;
    for (const Value& group : groups_) candidates.push_back(&group);
    const auto choose = [&](const std::function<bool(const Value&)>& fits) {
      std::vector<const Value*> chosen;
      for (const Value* const group : candidates) {
        if (fits(*group)) chosen.push_back(group);
      }
      if (!chosen.empty()) candidates = std::move(chosen);
    };
    const auto is = [](const Value& group, const char* name, const Value& value) {
      const Value* const found = group.find(name);
      return found != nullptr && *found == value;
    };
    choose([&](const Value& group) { return is(group, kDecay, 0.0) != decays; });
    choose([&](const Value& group) {
      return is(group, "is_expert_parallel", true) == piece.part.expert.has_value();
    });
    choose([&](const Value& group) { return is(group, "is_decoupled_lr", true) == embeds; });
    if (candidates.size() != 1) {
      ambiguous_.add(str_format("{}: {} groups", quote(key), candidates.size()));
      return;
    }
    meta_.emplace_back(wrappers_ + key, *candidates.front());
  }

  void keep(std::size_t tensor) {
    const TensorStorageMetadata& kept = metadata_.tensors[tensor];
    add(tensor, {.part = {.key = kept.key}, .box = whole(kept.size)}, {kept.key});
    ++others_;
  }

  void add_common() {
    ambiguous_.raise_if_any(ErrorCode::kMismatch,
                            "these parameters fit several groups of the optimizer "
                            "(param_groups in the common state), so their options are not known:");
    if (common_.find("checkpoint_version") == nullptr) common_["checkpoint_version"] = 3.0;
    if (Value* const content = common_.mutable_dict().find(kContentMetadataKey);
        content != nullptr && content->is_dict() && content->contains(kShardingType))
      (*content)[kShardingType] = "fsdp_dtensor";
    for (auto& [name, group] : meta_) {
      Value& optimizer = common_["optimizer"];
      if (!optimizer.is_dict()) optimizer = Value::dict();
      Value& meta = optimizer["param_to_group_meta"];
      if (meta.is_none()) meta = Value::dict();
      meta[name.c_str()] = std::move(group);
    }
  }

  void add_objects() {
    std::set<std::string_view> kinds;
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const std::string& key = metadata_.objects[i].key;
      const auto object = ShardedObject::parse_unique_key(key);
      if (object && object->key == kRng && object->global_offset.size() == 2) {
        const Shape& at = object->global_offset;
        Value& states = common_[std::string(kRng).c_str()];
        if (states.is_none()) states = Value::dict();
        states[str_format("({}, {})", at[0], at[1]).c_str()] = source_.object(i);
        continue;
      }
      contents_.objects.push_back({.key = key, .position = i});
      contents_.paths.emplace_back(key, KeyPath{key});
      ++others_;
    }
    for (FlatLeaf& leaf : flatten_state_dict(common_, FlattenRule::kKeepEmpty)) {
      contents_.paths.emplace_back(leaf.name, std::move(leaf.path));
      contents_.objects.push_back({.key = std::move(leaf.name), .value = std::move(leaf.value)});
    }
    contents_.common = Value();
    contents_.conventions = kDcpConventions;
    contents_.conventions->megatron_fsdp = true;
  }

  void describe() {
    remarks_.push_back(
        str_format("keys: Megatron-Core's became Megatron-FSDP's (fsdp_dtensor), with the state "
                   "of the optimizer under '{}…'",
                   wrappers_));
    if (main_parameters_ > 0)
      remarks_.push_back(str_format(
          "weights: {} tensors are the optimizer's main parameters, as Megatron-FSDP has them; the "
          "model's own, which Megatron makes of these, are left out",
          grouped(main_parameters_)));
    if (others_ > 0)
      remarks_.push_back(str_format(
          "{} objects (extra state and others) keep their keys, under which Megatron-FSDP does not "
          "look for them",
          grouped(others_)));
    if (!states_.empty() && groups_.empty())
      remarks_.push_back(
          "the common state has no param_groups of the optimizer, which Megatron-FSDP asks for");
    if (std::ranges::any_of(metadata_.tensors, [](const TensorStorageMetadata& tensor) {
          return tensor.key.starts_with("mtp.");
        }))
      remarks_.push_back(
          "layers of multi-token prediction keep their names, as Megatron-Core 0.16 has them");
  }

  const CheckpointReader& source_;
  const Metadata& metadata_;
  Value common_;
  const Value* args_ = nullptr;
  std::vector<std::string>& remarks_;
  FsdpSaveOptions options_;
  std::map<std::size_t, std::vector<State>> states_;  // by the model's tensor
  std::vector<Value> groups_;
  std::vector<std::pair<std::string, Value>> meta_;  // of parameters
  std::string wrappers_;
  bool grouped_ = true;
  std::uint64_t main_parameters_ = 0;
  std::uint64_t others_ = 0;
  ProblemList ambiguous_;
  RearrangedContents contents_;
};

// -------------------------------------------------------------- from Megatron-FSDP

class OfMegatronFsdp {
 public:
  OfMegatronFsdp(const CheckpointReader& source, std::vector<std::string>& remarks)
      : source_(source), metadata_(source.metadata()), remarks_(remarks) {}

  RearrangedContents run() {
    read_objects();
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) sort_in(i);
    rename_norms();
    const bool stacks = is_homogeneous();
    for (auto& [name, parts] : weights_) {
      make(name, std::string(), parts, stacks);
      add_main_parameters(name, parts, stacks);
      const auto states = states_.find(name);
      if (states == states_.end()) continue;
      for (auto& [state, of_state] : states->second) make(name, state, of_state, stacks);
      states_.erase(states);
    }
    for (const auto& [name, states] : states_)
      problems_.add(str_format("there is no weight {}, but state of it", quote(name)));
    problems_.raise_if_any(ErrorCode::kMismatch,
                           "the tensors of Megatron-FSDP do not make up those of Megatron-Core:");
    if (!has_extra_state_) add_extra_states(stacks);
    add_rng();
    contents_.common = make_common();
    contents_.conventions = Conventions{};
    remarks_.push_back(
        str_format("keys: Megatron-FSDP's became Megatron-Core's ({})",
                   stacks ? "homogeneous, with an axis for layers" : "with the layers' numbers"));
    return std::move(contents_);
  }

  std::unordered_map<std::string, DType> casts() { return std::move(casts_); }

 private:
  struct Part {
    FsdpPart part;
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
        const std::string_view rest = without_wrappers(view.substr(kGroups.size()));
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
    args_ = run_args(common_);
  }

  /// A parameter's options, in the order of their first appearance.
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
        throw CheckpointError(
            ErrorCode::kUnsupported,
            str_format("the RNG states are larger than {}", human_bytes(kMaxRngBytes)),
            {.key = tensor.key});
      leaves.emplace_back(*path->second, Value(read_box(source_, i, whole(tensor.size))));
    }
  }

  static bool is_rng(std::string_view key) { return key.starts_with("rng_state.("); }

  void sort_in(std::size_t tensor) {
    const std::string& key = metadata_.tensors[tensor].key;
    const std::string_view view = key;
    if (is_rng(key)) return;
    if (view.starts_with("model.module.")) {
      FsdpPart part = parse_fsdp_key(without_wrappers(view.substr(kModel.size())));
      const std::string name = part.key;
      const auto [found, added] = weight_index_.try_emplace(name, weights_.size());
      if (added) weights_.emplace_back(name, Parts{});
      weights_[found->second].second.push_back({std::move(part), tensor});
      return;
    }
    if (view.starts_with(kState)) {
      const std::string_view rest = without_wrappers(view.substr(kState.size()));
      if (const std::size_t dot = rest.rfind('.'); dot != rest.npos) {
        FsdpPart part = parse_fsdp_key(rest.substr(0, dot));
        const std::string name = part.key;
        states_[name][std::string(rest.substr(dot + 1))].push_back({std::move(part), tensor});
        return;
      }
    }
    keep(tensor);
  }

  /// Of local layers, which alone have a norm in front of linear_qkv as a module of its own;
  /// torch_dist calls theirs as Transformer Engine's.
  void rename_norms() {
    std::set<std::string> local;
    for (const auto& [name, parts] : weights_) {
      const std::string stack = stack_of(name);
      if (name == stack + ".layers.input_layernorm.weight" &&
          weight_index_.contains(stack + ".layers.self_attention.linear_qkv.weight"))
        local.insert(stack);
    }
    if (local.empty()) return;
    std::map<std::string, std::map<std::string, Parts>> states;
    for (auto& [name, parts] : weights_) {
      if (local.contains(stack_of(name))) name = norm_in_torch_dist(name);
    }
    for (auto& [name, of_name] : states_)
      states.emplace(local.contains(stack_of(name)) ? norm_in_torch_dist(name) : name,
                     std::move(of_name));
    states_ = std::move(states);
    remarks_.push_back(
        "norms of Megatron's local layers are called as torch_dist has them; on the way back, the "
        "option names: local of fsdp_dtensor gives them the names of their modules again");
  }

  void keep(std::size_t tensor) {
    const TensorStorageMetadata& kept = metadata_.tensors[tensor];
    contents_.tensors.push_back({.key = kept.key,
                                 .properties = kept.properties,
                                 .size = kept.size,
                                 .parts = {{.target = whole(kept.size),
                                            .tensor = static_cast<std::uint32_t>(tensor),
                                            .source = whole(kept.size)}}});
    remarks_.push_back(
        str_format("{} keeps its key, which is none of Megatron-FSDP's model", quote(kept.key)));
  }

  /// Whether all layers have the same tensors, so that Megatron stacks them.
  bool is_homogeneous() const {
    const Value* const content = common_.find(kContentMetadataKey);
    const Value* const apart =
        content == nullptr ? nullptr : content->find("non_homogeneous_layers");
    if (apart != nullptr && *apart == Value(true)) return false;
    std::map<std::string, std::set<std::int64_t>> layers;  // of what is in front of them
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

  /// Key and layer: the key of a tensor whose layers are not stacked.
  static std::string key_of(const std::string& name, const FsdpPart& part) {
    return fsdp_key({.key = name, .layer = part.layer}, true);
  }

  /// The tensors of a name: one, or one for each layer.
  void make(const std::string& name, const std::string& state, const Parts& parts, bool stacks) {
    std::map<std::int64_t, Parts> by_layer;
    for (const Part& part : parts)
      by_layer[stacks ? -1 : part.part.layer.value_or(-1)].push_back(part);
    for (const auto& [layer, of_layer] : by_layer) {
      const std::string key = stacks ? name : key_of(name, of_layer.front().part);
      if (auto made = join(of_layer, stacks)) {
        made->key = state.empty() ? key : str_format("{}{}.{}", kState, state, key);
        contents_.tensors.push_back(std::move(*made));
      } else {
        problems_.add(str_format(
            "{}: {}", quote(state.empty() ? key : str_format("{}{}.{}", kState, state, key)),
            "layers, experts or halves are missing, twice there, or of different shapes"));
      }
    }
  }

  /// The tensor of which these are all parts.
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

  /// Whether the state came from an optimizer that is not distributed, as the common state that a
  /// conversion has kept shows.
  bool is_plain() const {
    return !parameter_groups(common_).empty() && optimizer_sharding(common_).empty();
  }

  /// The weights are the main parameters of what has state.
  void add_main_parameters(const std::string& name, const Parts& parts, bool stacks) {
    const auto states = states_.find(name);
    if (states == states_.end()) return;
    for (const char* const there : {"param", "fp32_param"}) {
      const auto found = states->second.find(there);
      if (found == states->second.end()) continue;
      if (std::string_view(there) == "fp32_param" && !is_plain()) {
        states->second["param"] = std::move(found->second);
        states->second.erase("fp32_param");
      }
      return;
    }
    make(name, is_plain() ? "fp32_param" : "param", parts, stacks);
    has_main_parameters_ = true;
    const DType dtype = compute_dtype(args_);
    for (const Part& part : parts) {
      if (metadata_.tensors[part.tensor].properties.dtype == DType::kFloat32 &&
          dtype != DType::kFloat32)
        casts_.emplace(stacks ? name : key_of(name, part.part), dtype);
    }
  }

  /// Megatron asks for an extra state of every module; without content they do no harm.
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

  /// "(p, t)": [states] becomes a grid of objects.
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
      remarks_.push_back("the RNG states are left out: those of some ranks are missing");
    }
    common_.mutable_dict().erase(Value(std::string(kRng)));
  }

  Value make_common() {
    Value common = std::move(common_);
    Value* const optimizer = common.mutable_dict().find("optimizer");
    if (optimizer != nullptr && optimizer->is_dict()) *optimizer = with_numbers(*optimizer);
    const bool plain = !parameter_groups(common).empty() && optimizer_sharding(common).empty();
    const bool has_state = std::ranges::any_of(
        contents_.tensors,
        [](const RearrangedTensor& tensor) { return tensor.key.starts_with(kState); });
    if ((!has_state && options_.empty()) || plain) return common;
    if (parameter_groups(common).empty() && !options_.empty()) {
      Value made = groups_of_options();
      Value& there = common["optimizer"];
      if (!there.is_dict()) there = Value::dict();
      for (const auto& [key, value] : made.as_dict()) there.mutable_dict().set(key, value);
    }
    Value& content = common[kContentMetadataKey];
    if (!content.is_dict()) content = Value::dict();
    content[kShardingType] = kReshardable;
    for (const auto& [name, value] :
         {std::pair("singleton_local_shards", false), std::pair("chained_optim_avoid_prefix", true),
          std::pair("distrib_optim_fully_reshardable_mem_efficient", false)}) {
      if (!content.contains(name)) content[name] = value;
    }
    return common;
  }

  /// Numbers of a chain of optimizers, which are text in paths.
  static Value with_numbers(const Value& optimizer) {
    Dict numbered;
    for (const auto& [key, value] : optimizer.as_dict()) {
      const auto number = key.is_str() ? parse_u64(key.as_str()) : std::nullopt;
      numbered.set(number && *number < 1000 ? Value(*number) : key, value);
    }
    return numbered;
  }

  /// Each different set of options once; those of experts are an optimizer of their own.
  Value groups_of_options() const {
    std::array<ValueList, 2> groups;  // of experts: the second
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
  std::vector<std::string>& remarks_;
  std::vector<std::pair<std::string, Parts>> weights_;  // by Megatron-Core's key, in order
  std::unordered_map<std::string, std::size_t> weight_index_;
  std::map<std::string, std::map<std::string, Parts>> states_;
  std::vector<Value> options_;  // of parameters
  std::unordered_map<std::string, std::size_t> option_index_;
  Value common_;
  const Value* args_ = nullptr;
  bool has_extra_state_ = false;
  bool has_main_parameters_ = false;
  ProblemList problems_;
  std::unordered_map<std::string, DType> casts_;
  RearrangedContents contents_;
};

}  // namespace

std::unique_ptr<CheckpointReader> to_megatron_fsdp(std::unique_ptr<CheckpointReader> source,
                                                   const FsdpSaveOptions& options,
                                                   std::vector<std::string>& remarks) {
  RearrangedContents contents = ToMegatronFsdp(*source, options, remarks).run();
  return rearranged_reader(std::move(source), std::move(contents));
}

std::pair<std::unique_ptr<CheckpointReader>, std::unordered_map<std::string, DType>>
from_megatron_fsdp(std::unique_ptr<CheckpointReader> source, std::vector<std::string>& remarks) {
  OfMegatronFsdp conversion(*source, remarks);
  RearrangedContents contents = conversion.run();
  return {rearranged_reader(std::move(source), std::move(contents)), conversion.casts()};
}

}  // namespace dckpt
