#include "migration/megatron_fsdp/megatron_fsdp.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "migration/megatron_fsdp/recorded_names.h"
#include "migration/optimizer/parameter_groups.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr const char* kDecay = "wd_mult";

/// Returns whether the state is the main parameters, as named by DistributedOptimizer or by other
/// optimizers.
bool is_main_parameter(std::string_view state) {
  return state == "param" || state == "fp32_param";
}

std::pair<std::string, KeyPath> named(KeyPath path) {
  std::string name = dotted_name(path);
  return {std::move(name), std::move(path)};
}

class ToMegatronFsdp {
 public:
  ToMegatronFsdp(const CheckpointReader& source, const FsdpSaveOptions& options)
      : source_(source),
        metadata_(source.metadata()),
        common_(source.common_state()),
        options_(options) {}

  Rearrangement run() {
    if (!common_.is_dict()) common_ = Value::dict();
    args_ = run_args(common_);
    require_megatron_keys();
    require_form();
    find_state();
    choose_names();
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      const std::string& key = metadata_.tensors[i].key;
      if (is_extra_state(key) || names_.others.contains(key))
        keep(i);
      else if (!is_optimizer_key(key))
        add_weight(i);
    }
    add_common();
    add_objects();
    describe();
    return {std::move(contents_), std::move(findings_)};
  }

 private:
  struct State {
    std::string name;
    std::size_t tensor = 0;
  };

  /// A part of a tensor: that of a layer, or of an expert.
  struct Piece {
    ModelKey part;
    Box box;                  ///< box in the tensor
    std::size_t stacked = 0;  ///< axes in front that it lacks
  };

  void require_megatron_keys() const {
    const std::string* foreign = find_foreign_key(metadata_);
    std::vector<std::string> keys;
    bool found = false;
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      if (is_optimizer_key(tensor.key) || is_extra_state(tensor.key)) continue;
      keys.push_back(tensor.key);
      found |= is_megatron_key(tensor.key);
      if (tensor.key.starts_with("model.") || tensor.key.starts_with("module."))
        foreign = &tensor.key;
    }
    if (keys.empty() || (found && foreign == nullptr)) return;
    throw_error(ErrorCode::kUnsupported, {.key = foreign != nullptr ? *foreign : keys.front()},
                "fsdp_dtensor is made of Megatron-Core's keys, and Megatron-FSDP would not find "
                "this model under its own: {}; a map gives Hugging Face's keys these names "
                "(--map), load.rename of a policy takes a prefix off in a conversion of its "
                "own, and --to dcp keeps the keys as they are for PyTorch DCP",
                quoted_list(keys));
  }

  void require_form() const {
    const Value* const content = common_.find(kContentMetadataKey);
    const Value* const singleton =
        content == nullptr ? nullptr : content->find("singleton_local_shards");
    if (singleton != nullptr && *singleton == Value(true))
      throw_error(
          ErrorCode::kUnsupported,
          "experts and halves of gated matrices are tensors of their own here "
          "(singleton_local_shards), from which fsdp_dtensor is not made; first give them axes "
          "(--map NAME --set layout=non-homogeneous)");
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      for (const std::string_view split : {".mixer.", ".in_proj.weight.", ".conv1d.weight."}) {
        if (tensor.key.find(split) != std::string::npos)
          throw_error(
              ErrorCode::kUnsupported, {.key = tensor.key},
              "fsdp_dtensor cannot be made of models with Mamba or gated delta net layers, whose "
              "projections it stores joined; other formats hold them (--to torch_dist, --to dcp)");
      }
    }
  }

  /// Finds the optimizer state of each tensor of the model.
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
      if (const std::size_t chained = tensor.key.find("optimizer."); chained > 0)
        core_.chains.emplace(key.model_key, tensor.key.substr(0, chained));
    }
    for (const BytesStorageMetadata& object : metadata_.objects) {
      if (is_optimizer_key(object.key)) refuse_state(object.key);
    }
  }

  [[noreturn]] void refuse_state(const std::string& key) const {
    const std::string sharding = optimizer_sharding(common_);
    const std::string why =
        sharding.empty()
            ? "takes the state of Megatron's optimizers, optimizer.state.NAME.KEY in the shape of "
              "the model's tensor KEY, and this is that of another one, from which Megatron-FSDP "
              "cannot resume;"
            : str_format(
                  "holds the optimizer's state in the shapes of the model, but here it is "
                  "{}; add --optimizer fully_reshardable, or",
                  sharding);
    throw_error(ErrorCode::kUnsupported, {.key = key},
                "fsdp_dtensor {} first leave it out (--exclude '{}*', in a conversion of its "
                "own)",
                why, key.substr(0, key.find('.') + 1));
  }

  void choose_names() {
    names_ = usual_fsdp_names(metadata_, args_);
    groups_ = parameter_groups(common_);
    if (const auto recorded = take_fsdp_names(common_)) {
      names_ = *recorded;
      for (const std::string& path : names_.added) remove_entry(common_, path);
    }
    args_ = run_args(common_);
    if (options_.wrappers > 0) names_.wrappers = options_.wrappers;
    names_.local_norms |= options_.names == NormNames::kLocal;
    for (int i = 0; i < names_.wrappers; ++i) wrappers_ += "module.";
  }

  std::vector<Piece> pieces_of(const TensorStorageMetadata& tensor) const {
    const bool layers = has_layer_axis(tensor.key);
    const bool experts = has_expert_axis(tensor.key);
    const std::size_t stacked = (layers ? 1U : 0U) + (experts ? 1U : 0U);
    if (tensor.size.size() < stacked)
      throw_error(ErrorCode::kMismatch, {.key = tensor.key}, "the shape {} has no axes for {}",
                  to_string(tensor.size),
                  layers && experts ? "layers and experts"
                  : layers          ? "layers"
                                    : "experts");
    std::vector<Piece> pieces;
    for (std::int64_t layer = 0; layer < (layers ? tensor.size[0] : 1); ++layer) {
      for (std::int64_t expert = 0; expert < (experts ? tensor.size[stacked - 1] : 1); ++expert) {
        Piece piece{
            .part = {.name = names_.local_norms ? with_local_norms(tensor.key) : tensor.key},
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
    if (weight != model)
      ++main_parameters_;
    else if (!states.empty())
      core_.without_main.insert(tensor.key);
    const bool gated = names_.halves.contains(tensor.key);
    for (const Piece& piece : pieces_of(tensor)) {
      if (!states.empty()) add_group(piece);
      for (const Piece& stored : gated ? halves_of(piece) : std::vector{piece}) {
        const std::string key = fsdp_key(stored.part, names_.grouped);
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
      throw_error(ErrorCode::kMismatch, {.key = piece.part.name},
                  "a gated matrix has an even number of rows, not {}", rows);
    std::vector<Piece> halves{piece, piece};
    for (std::size_t i = 0; i < 2; ++i) {
      halves[i].part.half = i == 0 ? 'w' : 'v';
      halves[i].box.sizes[piece.stacked] = rows / 2;
      halves[i].box.offsets[piece.stacked] = static_cast<std::int64_t>(i) * (rows / 2);
    }
    return halves;
  }

  /// Adds the options of a parameter's group: Megatron puts biases and parameters with one axis
  /// into groups without weight decay, and experts and embeddings into groups of their own.
  void add_group(const Piece& piece) {
    if (groups_.empty()) return;
    const std::string key = fsdp_key(piece.part, names_.grouped);
    const bool vector = piece.box.dims() - piece.stacked == 1 || key.ends_with(".bias");
    const bool norm = key.find("q_layernorm.") != key.npos || key.find("k_layernorm.") != key.npos;
    const bool decays =
        !vector || (norm && run_flag(args_, "apply_wd_to_qk_layernorm").value_or(false));
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
      ambiguous_.add(str_format("{}: {}", quote(key), counted(candidates.size(), "group")));
      return;
    }
    meta_.emplace_back(wrappers_ + key, *candidates.front());
  }

  void keep(std::size_t tensor) {
    const TensorStorageMetadata& kept = metadata_.tensors[tensor];
    add(tensor, {.part = {.name = kept.key}, .box = whole(kept.size)}, {kept.key});
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
    name_state_form();
    for (auto& [name, group] : meta_) {
      Value& optimizer = common_["optimizer"];
      if (!optimizer.is_dict()) optimizer = Value::dict();
      Value& meta = optimizer["param_to_group_meta"];
      if (meta.is_none()) meta = Value::dict();
      meta[name.c_str()] = std::move(group);
    }
  }

  /// Names the form of the state: it has the model's shapes, which a conversion back makes of it,
  /// whether or not it came from flattened fragments.
  void name_state_form() {
    Value* const optimizer = common_.mutable_dict().find("optimizer");
    if (optimizer == nullptr || !optimizer->is_dict()) return;
    const auto name = [](Value& member) {
      if (member.is_dict() && member.contains("param_state_sharding_type"))
        member["param_state_sharding_type"] = "fully_reshardable";
    };
    name(*optimizer);
    for (std::size_t i = 0; i < optimizer->size(); ++i) {
      if (optimizer->as_dict().items()[i].first.is_int())
        name(optimizer->mutable_dict().value_at(i));
    }
  }

  void add_objects() {
    std::set<std::string_view> kinds;
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const std::string& key = metadata_.objects[i].key;
      if (names_.added_extra_state && is_extra_state(key)) continue;
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
    record(core_, common_);
    for (FlatLeaf& leaf : flatten_state_dict(common_, FlattenRule::kKeepEmpty)) {
      contents_.paths.emplace_back(leaf.name, std::move(leaf.path));
      contents_.objects.push_back({.key = std::move(leaf.name), .value = std::move(leaf.value)});
    }
    contents_.common = Value();
    contents_.conventions = kDcpConventions;
    contents_.conventions->megatron_fsdp = true;
  }

  void describe() {
    findings_.push_back(
        {FindingCode::kKeysChanged,
         str_format("keys: Megatron-Core's became Megatron-FSDP's (fsdp_dtensor), with the state "
                    "of the optimizer under '{}…'",
                    wrappers_)});
    if (main_parameters_ > 0)
      findings_.push_back(
          {FindingCode::kFormChanged,
           str_format("weights: {} of the optimizer, as Megatron-FSDP has them; the "
                      "model's own, which Megatron makes of these, are left out",
                      counted(main_parameters_, "tensor is a main parameter",
                              "tensors are main parameters"))});
    if (others_ > 0)
      findings_.push_back(
          {FindingCode::kKeysKept,
           str_format("{} (extra state and others), under which Megatron-FSDP does not "
                      "look for them",
                      counted(others_, "object keeps its key", "objects keep their keys"))});
    if (!states_.empty() && groups_.empty())
      findings_.push_back(
          {FindingCode::kStateMissing,
           "the common state has no param_groups of the optimizer, which Megatron-FSDP asks for"});
    if (std::ranges::any_of(metadata_.tensors, [](const TensorStorageMetadata& tensor) {
          return tensor.key.starts_with("mtp.");
        }))
      findings_.push_back(
          {FindingCode::kKeysKept,
           "layers of multi-token prediction keep their names, as Megatron-Core 0.16 has them"});
  }

  const CheckpointReader& source_;
  const Metadata& metadata_;
  Value common_;
  const Value* args_ = nullptr;
  Findings findings_;
  FsdpSaveOptions options_;
  std::map<std::size_t, std::vector<State>> states_;  // by the model's tensor
  std::vector<Value> groups_;
  std::vector<std::pair<std::string, Value>> meta_;  // options of parameters
  std::string wrappers_;
  FsdpNames names_;
  CoreNames core_;
  std::uint64_t main_parameters_ = 0;
  std::uint64_t others_ = 0;
  ProblemList ambiguous_;
  RearrangedContents contents_;
};

}  // namespace

View to_megatron_fsdp(std::unique_ptr<CheckpointReader> source, const FsdpSaveOptions& options) {
  Rearrangement made = ToMegatronFsdp(*source, options).run();
  return rearranged_view(std::move(source), std::move(made));
}

}  // namespace dckpt
