#include "migration/rank_folders/split_ranks.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "mapping/state/sharded_object.h"
#include "migration/rank_folders/parameter_cut.h"
#include "migration/rank_folders/rank_layout.h"
#include "migration/rank_folders/whole_model.h"
#include "strategies/legacy_torch/rank_grid.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

/// A value that belongs to a module.
struct ExtraState {
  ModelKey key;  ///< key with global numbers
  Value value;
};

bool is_model_name(std::string_view name) {
  return name.starts_with("model") &&
         name.find_first_not_of("0123456789", 5) == std::string_view::npos;
}

/// Says what Megatron is to be started with if it would pad the vocabulary otherwise.
void tell_of_padding(const Metadata& metadata, const Value* args, const RankLayout& layout,
                     Findings& findings) {
  const auto multiple = run_arg(args, "make_vocab_size_divisible_by");
  const TensorStorageMetadata* const words = metadata.find_tensor(kWordEmbeddings);
  if (!multiple || *multiple < 1 || words == nullptr || words->global_shape().empty()) return;
  const auto step = checked_mul(*multiple, layout.sizes.tensor);
  const std::int64_t rows = words->global_shape()[0];
  if (!step || rows % *step != 0)
    findings.push_back(
        {FindingCode::kVocabularyPadded,
         str_format("Megatron pads the vocabulary to a multiple of make_vocab_size_divisible_by "
                    "({}) times {} ranks, but it has {} rows; start Megatron with "
                    "--make-vocab-size-divisible-by {}",
                    *multiple, layout.sizes.tensor, rows, rows / layout.sizes.tensor)});
}

/// Returns the common state that the ranks' files share, but for args. `args` are those of `common`
/// (null: there are none).
Value common_of_ranks(Value common, const Value* args, const RankLayout& layout,
                      const WholeModel& whole, const Metadata& metadata, Findings& findings) {
  if (common.is_none()) common = Value::dict();
  if (args == nullptr)
    findings.push_back({FindingCode::kStateMissing,
                        "the checkpoint has no args, so Megatron compares nothing with them and "
                        "--use-checkpoint-args finds none"});
  if (common.mutable_dict().erase("optimizer"))
    findings.push_back(
        {FindingCode::kOptimizerLeftOut,
         "the optimizer's settings are left out with its state; load with --no-load-optim"});
  common.mutable_dict().erase("content_metadata");  // of distributed checkpoints
  for (const auto& [key, value] : common.as_dict()) {
    if (key.is_str() && (is_model_name(key.as_str()) || key.as_str() == "rng_state"))
      throw_error(ErrorCode::kUnsupported, {.key = key.as_str()},
                  "the common state has an entry {}, which belongs to the model in rank folders; "
                  "leave it out",
                  quote(key.as_str()));
  }
  common["checkpoint_version"] = 3.0;
  if (const std::vector<std::string> uneven = uneven_stages(args); !uneven.empty())
    findings.push_back({FindingCode::kLayoutAssumed,
                        str_format("all pipeline stages have {}; start Megatron without {}",
                                   counted(layout.layers_of_chunk() * layout.chunks, "layer"),
                                   quoted_list(uneven))});
  tell_of_padding(metadata, args, layout, findings);
  const auto share = run_arg(args, "expert_tensor_parallel_size");
  if (whole.experts > 0 && share.value_or(layout.sizes.tensor) != layout.sizes.tensor)
    findings.push_back({FindingCode::kLayoutAssumed,
                        "experts are cut for the tensor-parallel ranks of the other parameters "
                        "(expert_tensor_parallel_size)"});
  return common;
}

class Split {
 public:
  Split(const CheckpointReader& model, const RankFolderOptions& options)
      : model_(model),
        metadata_(model.metadata()),
        options_(options),
        original_(model.common_state()),
        common_(original_),
        args_(run_args(original_)) {}

  Rearrangement run() {
    for (const TensorStorageMetadata& tensor : metadata_.tensors) refuse_optimizer(tensor.key);
    layout_ = choose_rank_layout(options_, args_);
    if (!layout_.of_run.empty())
      findings_.push_back({FindingCode::kLayoutAssumed,
                           "parallel sizes that no option gives are those of the run: " +
                               quoted_list(layout_.of_run)});
    whole_ = whole_model(metadata_, args_, layout_);
    choose_names();
    read_objects();
    common_ = common_of_ranks(std::move(common_), args_, layout_, whole_, metadata_, findings_);
    for (std::int64_t pipeline = 0; pipeline < layout_.sizes.pipeline; ++pipeline) {
      for (std::int64_t expert = 0; expert < layout_.sizes.expert; ++expert) {
        for (std::int64_t tensor = 0; tensor < layout_.sizes.tensor; ++tensor)
          add_file({tensor, pipeline, expert});
      }
    }
    contents_.common = Value();
    contents_.conventions = kRankFolderConventions;
    return {std::move(contents_), std::move(findings_)};
  }

 private:
  static void refuse_optimizer(const std::string& key) {
    if (!is_optimizer_key(key)) return;
    throw_error(ErrorCode::kUnsupported, {.key = key},
                "rank folders are written without an optimizer; leave its state out (--exclude "
                "'optimizer*', and 'chained_*' of a chain), and load with --no-load-optim");
  }

  void choose_names() {
    const Value* const found = args_ == nullptr ? nullptr : args_->find("transformer_impl");
    std::optional<TransformerImpl> impl = options_.transformer_impl;
    if (!impl && found != nullptr && found->is_str())
      impl = value_of(kTransformerImplNames, found->as_str());
    if (!impl)
      throw_error(
          ErrorCode::kInvalidArgument,
          "whether the model is built of Transformer Engine's modules decides what parameters are "
          "called in rank folders, and the checkpoint's args do not say it; give a "
          "transformer_impl (--transformer-impl): local or transformer_engine");
    names_.local_norms = impl == TransformerImpl::kLocal;
    names_.grouped_experts = whole_.experts > 0 && is_flag_set(args_, "moe_grouped_gemm");
    if (names_.grouped_experts &&
        (names_.local_norms || is_flag_set(args_, "moe_use_legacy_grouped_gemm")))
      throw_error(
          ErrorCode::kInvalidArgument,
          "the experts of GroupedMLP (moe_grouped_gemm without Transformer Engine) lie in one "
          "matrix, which is not written");
  }

  // Objects and the common state.

  void read_objects() {
    std::vector<std::string> left_out;
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const std::string& name = metadata_.objects[i].key;
      refuse_optimizer(name);
      const auto object = ShardedObject::parse_unique_key(name);
      if (object && object->key == "rng_state") {
        if (equal(object->global_shape, Shape{layout_.sizes.pipeline, layout_.sizes.tensor}))
          rng_states_[{object->global_offset[0], object->global_offset[1]}] = model_.object(i);
      } else if (object && object->key.ends_with(kExtraStateSuffix)) {
        ExtraState extra{parse_rank_path(object->key, false), model_.object(i)};
        const Shape& offset = object->global_offset;
        const bool by_layer = has_layer_axis(extra.key);
        if (has_expert_axis(extra.key)) extra.key.expert = offset.back();
        if (by_layer) extra.key.layer = offset.front();
        const bool of_model =
            extra.key.layer.value_or(0) < std::max<std::int64_t>(layout_.layers, 1) &&
            extra.key.expert.value_or(0) < std::max<std::int64_t>(whole_.experts, 1);
        if (!of_model || offset.size() < (by_layer ? 1U : 0U) + (extra.key.expert ? 1U : 0U))
          left_out.push_back(name);
        else
          extra_states_.push_back(std::move(extra));
      } else {
        left_out.push_back(name);
      }
    }
    if (rng_states_.size() !=
        static_cast<std::size_t>(layout_.sizes.pipeline * layout_.sizes.tensor)) {
      rng_states_.clear();
      findings_.push_back(
          {FindingCode::kStateMissing,
           "there are no states of random number generators for these tensor and pipeline ranks; "
           "load with --no-load-rng"});
    }
    if (!left_out.empty())
      findings_.push_back({FindingCode::kKeysDropped,
                           str_format("left out, as rank folders have no place for them: {}, {}",
                                      counted(left_out.size(), "object"), quoted_list(left_out)),
                           left_out});
  }

  // The files.

  std::string folder_of(const ModelParallelRank& rank) const {
    std::vector<int> numbers{static_cast<int>(rank.tensor)};
    if (layout_.sizes.pipeline > 1) numbers.push_back(static_cast<int>(rank.pipeline));
    if (layout_.sizes.expert > 1) numbers.push_back(static_cast<int>(rank.expert));
    return rank_folder_name(numbers);
  }

  void add_file(const ModelParallelRank& rank) {
    const std::string folder = folder_of(rank);
    Value state = common_;
    if (args_ != nullptr) state["args"] = args_of_rank(common_.at("args"), layout_, rank, options_);
    for (std::int64_t chunk = 0; chunk < layout_.chunks; ++chunk) {
      const std::string name = layout_.chunks > 1 ? "model" + std::to_string(chunk) : "model";
      state[Value(name)] = add_model(rank, chunk * layout_.sizes.pipeline + rank.pipeline,
                                     str_format("{}/{}.", folder, name));
    }
    const auto rng = rng_states_.find({rank.pipeline, rank.tensor});
    if (rng != rng_states_.end()) state["rng_state"] = rng->second;
    contents_.objects.push_back({.key = folder + "/" + kRankFile, .value = std::move(state)});
  }

  /// Returns the part of a parameter that a rank has, of one layer and expert if it has such axes.
  RearrangedTensor part_of(const WholeParameter& parameter, std::string key,
                           const ModelParallelRank& rank, std::int64_t layer,
                           std::int64_t expert) const {
    const std::int64_t tensor_ranks = layout_.sizes.tensor;
    RearrangedTensor made{.key = std::move(key),
                          .properties = metadata_.tensors[parameter.tensor].properties,
                          .size = *local_shape(parameter.cut, parameter.shape, tensor_ranks),
                          .parts = {}};
    const std::size_t leading = parameter.leading();
    for (CutPart& piece : cut_parts(parameter.cut, made.size, rank.tensor, tensor_ranks)) {
      Box source{Shape(leading, 0), Shape(leading, 1)};
      if (parameter.layers) source.offsets[0] = layer;
      if (parameter.experts) source.offsets[leading - 1] = expert;
      TensorPart part{.target = std::move(piece.local), .tensor = parameter.tensor};
      for (std::size_t axis = 0; axis < piece.whole.dims(); ++axis) {
        source.offsets.push_back(piece.whole.offsets[axis]);
        source.sizes.push_back(piece.whole.sizes[axis]);
        part.axes.push_back(static_cast<std::int32_t>(leading + axis));
      }
      part.source = std::move(source);
      made.parts.push_back(std::move(part));
    }
    return made;
  }

  /// Adds the parameters of a chunk under `prefix`, and returns the value that stands for the chunk
  /// in the rank's state.
  Value add_model(const ModelParallelRank& rank, std::int64_t stage, const std::string& prefix) {
    Value model = Value::dict();
    const auto add = [&](const WholeParameter& parameter, const ModelKey& key, std::int64_t layer,
                         std::int64_t expert) {
      const std::string path = rank_path(key, names_);
      if (model.contains(Value(path)))
        throw_error(ErrorCode::kUnsupported, {.key = metadata_.tensors[parameter.tensor].key},
                    "two parameters would be {} in rank folders; leave one out (--exclude)",
                    quote(path));
      model[Value(path)] = Value();
      contents_.tensors.push_back(part_of(parameter, prefix + path, rank, layer, expert));
    };
    const std::int64_t first = stage * layout_.layers_of_chunk();
    for (const WholeParameter& parameter : whole_.parameters) {
      if (!parameter.layers && !is_on_stage(parameter.key, stage)) continue;
      ModelKey key = parameter.key;
      for (std::int64_t layer = 0; layer < (parameter.layers ? layout_.layers_of_chunk() : 1);
           ++layer) {
        if (parameter.layers) key.layer = layer;
        if (parameter.key.layer) key.layer = *parameter.key.layer - first;
        const std::int64_t experts = parameter.experts ? whole_.experts / layout_.sizes.expert : 1;
        for (std::int64_t expert = 0; expert < experts; ++expert) {
          if (parameter.experts) key.expert = expert;
          add(parameter, key, first + layer, rank.expert * experts + expert);
        }
      }
    }
    if (is_last(stage) && stage > 0 && is_tied()) add(words(), {std::string(kOutputLayer)}, 0, 0);
    add_extra_states(rank, stage, model);
    return model;
  }

  void add_extra_states(const ModelParallelRank& rank, std::int64_t stage, Value& model) const {
    const std::int64_t experts = whole_.experts / layout_.sizes.expert;
    for (const ExtraState& extra : extra_states_) {
      if (!is_on_stage(extra.key, stage)) continue;
      ModelKey key = extra.key;
      if (key.layer) *key.layer -= stage * layout_.layers_of_chunk();
      if (key.expert) {
        if (experts == 0 || *key.expert / experts != rank.expert) continue;
        *key.expert %= experts;
      }
      model[Value(rank_path(key, names_))] = extra.value;
    }
    // Distributed checkpoints lack this state, but where modules have such state this one has it.
    const Value output(kOutputExtraState);
    if (is_last(stage) && !extra_states_.empty() && !model.contains(output))
      model[output] = Value();
  }

  bool is_last(std::int64_t stage) const { return stage == layout_.stages() - 1; }

  bool is_on_stage(const ModelKey& key, std::int64_t stage) const {
    if (key.layer)
      return *key.layer / std::max<std::int64_t>(layout_.layers_of_chunk(), 1) == stage;
    if (key.name.starts_with("embedding.")) return stage == 0;
    constexpr std::array<std::string_view, 3> kEnd{"decoder.final_layernorm.",
                                                   "decoder.final_norm.", "output_layer."};
    if (std::ranges::any_of(kEnd, [&](std::string_view at) { return key.name.starts_with(at); }))
      return is_last(stage);
    if (layout_.stages() == 1) return true;
    throw_error(ErrorCode::kUnsupported, {.key = key.name},
                "it is not known on which of {} pipeline stages this belongs; leave it out "
                "(--exclude), or write one stage (--pipeline-parallel 1)",
                layout_.sizes.pipeline);
  }

  const WholeParameter& words() const {
    return *std::ranges::find(whole_.parameters, kWordEmbeddings,
                              [](const WholeParameter& parameter) { return parameter.key.name; });
  }
  /// Returns whether the embeddings are also the output layer.
  bool is_tied() const {
    return metadata_.find_tensor(kOutputLayer) == nullptr &&
           metadata_.find_tensor(kWordEmbeddings) != nullptr &&
           !is_flag_set(args_, "untie_embeddings_and_output_weights");
  }

  const CheckpointReader& model_;
  const Metadata& metadata_;
  const RankFolderOptions& options_;
  Findings findings_;
  const Value original_;  // common state
  Value common_;          // shared by all ranks, except args
  const Value* args_;
  RankLayout layout_;
  WholeModel whole_;
  ModuleNames names_;
  std::vector<ExtraState> extra_states_;
  std::map<std::pair<std::int64_t, std::int64_t>, Value> rng_states_;  // by stage and tensor rank
  RearrangedContents contents_{};
};

}  // namespace

View split_ranks(std::unique_ptr<CheckpointReader> model, const RankFolderOptions& options) {
  Rearrangement made = Split(*model, options).run();
  return rearranged_view(std::move(model), std::move(made));
}

}  // namespace dckpt
