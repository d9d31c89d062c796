#include "strategies/legacy_torch/split_ranks.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/state/sharded_object.h"
#include "strategies/contract/run_args.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/legacy_torch/model_keys.h"
#include "strategies/legacy_torch/parameter_cut.h"
#include "strategies/legacy_torch/rank_grid.h"
#include "strategies/rearranged/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::int64_t kMostModules = 1'000'000;            // layers, experts
constexpr std::int64_t kMostParts = std::int64_t{1} << 24;  // tensors in all files

/// Args of a run whose pipeline stages have different numbers of layers.
constexpr std::array kUnevenStages{
    "num_virtual_stages_per_pipeline_rank",    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",        "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"};

constexpr std::string_view kWordEmbeddings = "embedding.word_embeddings.weight";
constexpr std::string_view kOutputLayer = "output_layer.weight";

/// A parameter of the whole model.
struct Parameter {
  std::uint32_t tensor = 0;  ///< position in the model's metadata
  ModelKey key;              ///< with global numbers; none for an axis of its own
  bool layers = false;       ///< the first axis is that of the layers
  bool experts = false;      ///< the next axis is that of the experts
  Shape shape{};             ///< without these
  ParameterCut cut{};

  std::size_t leading() const { return (layers ? 1U : 0U) + (experts ? 1U : 0U); }
};

/// A value that belongs to a module.
struct ExtraState {
  ModelKey key;  ///< with global numbers
  Value value;
};

bool is_flag(const Value* args, const char* name, bool wanted) {
  const Value* const found = args == nullptr ? nullptr : args->find(name);
  return found != nullptr && *found == Value(wanted);
}

class Split {
 public:
  Split(const CheckpointReader& model, const RankFolderOptions& options,
        std::vector<std::string>& remarks)
      : model_(model),
        metadata_(model.metadata()),
        options_(options),
        remarks_(remarks),
        original_(model.common_state()),
        common_(original_),
        args_(run_args(original_)) {}

  RearrangedContents run() {
    choose_sizes();
    collect_parameters();
    count();
    require_few_parts();
    choose_names();
    cut_parameters();
    read_objects();
    prepare_common();
    for (std::int64_t pipeline = 0; pipeline < sizes_.pipeline; ++pipeline) {
      for (std::int64_t expert = 0; expert < sizes_.expert; ++expert) {
        for (std::int64_t tensor = 0; tensor < sizes_.tensor; ++tensor)
          add_file({tensor, pipeline, expert});
      }
    }
    contents_.common = Value();
    contents_.conventions = kRankFolderConventions;
    return std::move(contents_);
  }

 private:
  [[noreturn]] void refuse(const std::string& message, const std::string& key = "") const {
    throw CheckpointError(ErrorCode::kInvalidArgument, message, {.key = key});
  }
  [[noreturn]] static void unsupported(const std::string& message, const std::string& key) {
    throw CheckpointError(ErrorCode::kUnsupported, message, {.key = key});
  }

  // What is to be written.

  void choose_sizes() {
    std::vector<std::string> of_run;
    const auto size = [&](std::optional<std::int64_t> given, const char* name) {
      const auto saved = given ? given : run_arg(args_, name);
      if (!given && saved.value_or(1) != 1) of_run.push_back(str_format("{} {}", name, *saved));
      if (saved.value_or(1) >= 1 && saved.value_or(1) <= kMostRankFolders) return saved.value_or(1);
      refuse(str_format("{}: found {}, expected a number from 1 to {}", name, *saved,
                        kMostRankFolders));
    };
    sizes_.tensor = size(options_.tensor_model_parallel_size, "tensor_model_parallel_size");
    sizes_.pipeline = size(options_.pipeline_model_parallel_size, "pipeline_model_parallel_size");
    sizes_.expert = size(options_.expert_model_parallel_size, "expert_model_parallel_size");
    const bool own_chunks =
        options_.virtual_pipeline_model_parallel_size || options_.pipeline_model_parallel_size;
    chunks_ = size(own_chunks ? options_.virtual_pipeline_model_parallel_size.value_or(1)
                              : options_.virtual_pipeline_model_parallel_size,
                   "virtual_pipeline_model_parallel_size");
    if (sizes_.tensor * sizes_.pipeline > kMostRankFolders ||
        sizes_.tensor * sizes_.pipeline * sizes_.expert > kMostRankFolders)
      refuse(str_format("tensor {}, pipeline {} and expert {} make more than {} rank folders",
                        sizes_.tensor, sizes_.pipeline, sizes_.expert, kMostRankFolders));
    if (chunks_ > 1 && sizes_.pipeline == 1)
      refuse("virtual_pipeline_model_parallel_size: a single pipeline stage has no chunks");
    if (!of_run.empty())
      remarks_.push_back("parallel sizes that no option gives are those of the run: " +
                         quoted_list(of_run));
  }

  void collect_parameters() {
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      refuse_optimizer(tensor.key);
      Parameter parameter{.tensor = i, .key = parse_model_key(tensor.key, false)};
      parameter.layers = has_layer_axis(parameter.key);
      parameter.experts = has_expert_axis(parameter.key);
      const Shape& shape = tensor.global_shape();
      if (shape.size() < parameter.leading())
        unsupported("the tensor has too few axes for its layers and experts", tensor.key);
      parameter.shape.assign(shape.begin() + static_cast<std::ptrdiff_t>(parameter.leading()),
                             shape.end());
      parameters_.push_back(std::move(parameter));
    }
    if (parameters_.empty()) refuse("there is no parameter of a model to write");
  }

  static bool has_layer_axis(const ModelKey& key) {
    return !key.layer && key.name.starts_with(kLayersPrefix);
  }
  static bool has_expert_axis(const ModelKey& key) {
    return !key.expert && key.name.find(".experts.experts.") != std::string::npos;
  }

  static void refuse_optimizer(const std::string& key) {
    if (!key.starts_with("optimizer.") && !key.starts_with("chained_")) return;
    unsupported(
        "rank folders are written without an optimizer; leave its state out (--exclude "
        "'optimizer*', and 'chained_*' of a chain), and load with --no-load-optim",
        key);
  }

  void count() {
    const auto agree = [&](std::int64_t& count, std::int64_t found, const Parameter& parameter,
                           const char* what) {
      if (count == 0) count = found;
      if (count != found || found > kMostModules)
        unsupported(str_format("the tensor is of {} {}, others of {} (at most {})", found, what,
                               count, kMostModules),
                    metadata_.tensors[parameter.tensor].key);
    };
    std::int64_t numbered = 0;
    for (const Parameter& parameter : parameters_) {
      const Shape& shape = metadata_.tensors[parameter.tensor].global_shape();
      if (parameter.layers) agree(layers_, shape[0], parameter, "layers");
      if (parameter.key.layer) numbered = std::max(numbered, *parameter.key.layer + 1);
      if (parameter.experts) agree(experts_, shape[parameter.leading() - 1], parameter, "experts");
    }
    layers_ = std::max(layers_, numbered);
    const std::int64_t stages = sizes_.pipeline * chunks_;
    if (layers_ % stages != 0 || layers_ < std::min<std::int64_t>(stages, 2))
      refuse(str_format(
          "{} layers cannot be shared out evenly to {} pipeline stages{}; give a "
          "pipeline_model_parallel_size (--pipeline-parallel) that divides them",
          layers_, sizes_.pipeline, chunks_ > 1 ? str_format(" of {} chunks", chunks_) : ""));
    if (sizes_.expert > 1 && (experts_ == 0 || experts_ % sizes_.expert != 0))
      refuse(
          str_format("{} experts cannot be shared out evenly to {} ranks; give an "
                     "expert_model_parallel_size (--expert-parallel) that divides them",
                     experts_, sizes_.expert));
  }

  /// Sizes may come from args, and tensors without elements have any shape.
  void require_few_parts() const {
    std::int64_t parts = 0;
    for (const Parameter& parameter : parameters_) {
      const std::int64_t modules =
          (parameter.layers ? layers_ : 1) * (parameter.experts ? experts_ : 1);
      const std::int64_t copies =
          sizes_.tensor * (parameter.experts || parameter.key.expert ? 1 : sizes_.expert);
      if (modules > kMostParts || (parts += modules * copies) > kMostParts)
        refuse(str_format("rank folders for these sizes hold more than {} tensors",
                          grouped(static_cast<std::uint64_t>(kMostParts))));
    }
  }

  void choose_names() {
    const Value* const found = args_ == nullptr ? nullptr : args_->find("transformer_impl");
    std::optional<TransformerImpl> impl = options_.transformer_impl;
    if (!impl && found != nullptr && found->is_str())
      impl = value_of(kTransformerImplNames, found->as_str());
    if (!impl)
      refuse(
          "whether the model is built of Transformer Engine's modules decides what parameters are "
          "called in rank folders, and the checkpoint's args do not say it; give a "
          "transformer_impl (--transformer-impl): local or transformer_engine");
    names_.local_norms = impl == TransformerImpl::kLocal;
    names_.grouped_experts = experts_ > 0 && is_flag(args_, "moe_grouped_gemm", true);
    if (names_.grouped_experts &&
        (names_.local_norms || is_flag(args_, "moe_use_legacy_grouped_gemm", true)))
      refuse(
          "the experts of GroupedMLP (moe_grouped_gemm without Transformer Engine) lie in one "
          "matrix, which is not written");
  }

  void cut_parameters() {
    std::map<std::pair<std::string, std::int64_t>, const Shape*> shapes;
    const auto place = [](const Parameter& parameter, std::string name) {
      return std::pair{std::move(name), parameter.key.layer.value_or(-1)};
    };
    for (const Parameter& parameter : parameters_)
      shapes[place(parameter, parameter.key.name)] = &parameter.shape;
    require_whole_heads();
    for (Parameter& parameter : parameters_) {
      const std::string& key = metadata_.tensors[parameter.tensor].key;
      const auto axis = tensor_parallel(parameter.key.name);
      if (!axis && sizes_.tensor > 1)
        unsupported(str_format("how {} tensor-parallel ranks share this parameter is not known; "
                               "leave it out (--exclude), or write one (--tensor-parallel 1)",
                               sizes_.tensor),
                    key);
      parameter.cut.axis = axis.value_or(TensorParallel::kReplicated);
      if (const auto partner = gated_partner(parameter.key.name)) {
        const auto fc2 = shapes.find(place(parameter, *partner));
        parameter.cut.gated = fc2 != shapes.end() && is_gated(parameter.shape, *fc2->second);
      }
      if (!local_shape(parameter.cut, parameter.shape, sizes_.tensor))
        refuse(str_format("{} cannot be shared out evenly to {} tensor-parallel ranks; give a "
                          "tensor_model_parallel_size (--tensor-parallel) that divides it",
                          to_string(parameter.shape), sizes_.tensor),
               key);
    }
    const auto share = run_arg(args_, "expert_tensor_parallel_size");
    if (experts_ > 0 && share.value_or(sizes_.tensor) != sizes_.tensor)
      remarks_.emplace_back(
          "experts are cut for the tensor-parallel ranks of the other parameters "
          "(expert_tensor_parallel_size)");
  }

  /// A rank has whole groups of query, key and value.
  void require_whole_heads() const {
    for (const char* const name : {"num_query_groups", "num_attention_heads"}) {
      const auto heads = run_arg(args_, name);
      if (!heads || *heads < 1) continue;
      if (*heads % sizes_.tensor == 0) return;
      if (std::string_view(name) == "num_query_groups" &&
          !is_flag(args_, "group_query_attention", true) &&
          args_->find("group_query_attention") != nullptr)
        continue;
      refuse(
          str_format("{} {} cannot be shared out evenly to {} tensor-parallel ranks; give a "
                     "tensor_model_parallel_size (--tensor-parallel) that divides it",
                     name, *heads, sizes_.tensor));
    }
  }

  // Objects and the common state.

  void read_objects() {
    std::vector<std::string> left_out;
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const std::string& name = metadata_.objects[i].key;
      refuse_optimizer(name);
      const auto object = ShardedObject::parse_unique_key(name);
      if (object && object->key == "rng_state") {
        if (equal(object->global_shape, Shape{sizes_.pipeline, sizes_.tensor}))
          rng_states_[{object->global_offset[0], object->global_offset[1]}] = model_.object(i);
      } else if (object && object->key.ends_with(kExtraStateSuffix)) {
        ExtraState extra{parse_model_key(object->key, false), model_.object(i)};
        const Shape& offset = object->global_offset;
        const bool by_layer = has_layer_axis(extra.key);
        if (has_expert_axis(extra.key)) extra.key.expert = offset.back();
        if (by_layer) extra.key.layer = offset.front();
        const bool of_model = extra.key.layer.value_or(0) < std::max<std::int64_t>(layers_, 1) &&
                              extra.key.expert.value_or(0) < std::max<std::int64_t>(experts_, 1);
        if (!of_model || offset.size() < (by_layer ? 1U : 0U) + (extra.key.expert ? 1U : 0U))
          left_out.push_back(name);
        else
          extra_states_.push_back(std::move(extra));
      } else {
        left_out.push_back(name);
      }
    }
    if (rng_states_.size() != static_cast<std::size_t>(sizes_.pipeline * sizes_.tensor)) {
      rng_states_.clear();
      remarks_.emplace_back(
          "there are no states of random number generators for these tensor and pipeline ranks; "
          "load with --no-load-rng");
    }
    if (!left_out.empty())
      remarks_.push_back(
          str_format("left out, as rank folders have no place for them: {} objects, {}",
                     grouped(left_out.size()), quoted_list(left_out)));
  }

  void prepare_common() {
    if (common_.is_none()) common_ = Value::dict();
    if (args_ == nullptr)
      remarks_.emplace_back(
          "the checkpoint has no args, so Megatron compares nothing with them and "
          "--use-checkpoint-args finds none");
    if (common_.mutable_dict().erase("optimizer"))
      remarks_.emplace_back(
          "the optimizer's settings are left out with its state; load with --no-load-optim");
    common_.mutable_dict().erase("content_metadata");  // of distributed checkpoints
    for (const auto& [key, value] : common_.as_dict()) {
      if (key.is_str() && (is_model_name(key.as_str()) || key.as_str() == "rng_state"))
        unsupported(str_format("the common state has an entry {}, which is the model's in rank "
                               "folders; leave it out",
                               quote(key.as_str())),
                    key.as_str());
    }
    common_["checkpoint_version"] = 3.0;
    if (const std::vector<std::string> uneven = uneven_stages(); !uneven.empty())
      remarks_.push_back(str_format("all pipeline stages have {} layers; start Megatron without {}",
                                    layers_of_chunk() * chunks_, quoted_list(uneven)));
    remark_padding();
  }

  static bool is_model_name(std::string_view name) {
    return name.starts_with("model") &&
           name.find_first_not_of("0123456789", 5) == std::string_view::npos;
  }

  void remark_padding() {
    const auto multiple = run_arg(args_, "make_vocab_size_divisible_by");
    const TensorStorageMetadata* const words = metadata_.find_tensor(kWordEmbeddings);
    if (!multiple || *multiple < 1 || words == nullptr || words->global_shape().empty()) return;
    const auto step = checked_mul(*multiple, sizes_.tensor);
    const std::int64_t rows = words->global_shape()[0];
    if (!step || rows % *step != 0)
      remarks_.push_back(
          str_format("Megatron pads the vocabulary to a multiple of make_vocab_size_divisible_by "
                     "({}) times {} ranks, but it has {} rows; start Megatron with "
                     "--make-vocab-size-divisible-by {}",
                     *multiple, sizes_.tensor, rows, rows / sizes_.tensor));
  }

  /// Those of kUnevenStages that the run had.
  std::vector<std::string> uneven_stages() const {
    std::vector<std::string> names;
    for (const char* const name : kUnevenStages) {
      const Value* const value = args_ == nullptr ? nullptr : args_->find(name);
      if (value != nullptr && !value->is_none() && *value != Value(false)) names.emplace_back(name);
    }
    return names;
  }

  /// The args of a rank. Sizes that follow from others stay where they fit.
  Value args_of(const ModelParallelRank& rank) const {
    Value args = common_.at("args");
    Value& attributes = args.is_dict() ? args : args.mutable_opaque().states.front();
    Dict& all = attributes.mutable_dict();
    const auto set = [&](const char* name, Value value) {
      if (all.find(Value(name)) != nullptr) all.set(name, std::move(value));
    };
    all.set("tensor_model_parallel_size", sizes_.tensor);
    all.set("pipeline_model_parallel_size", sizes_.pipeline);
    if (sizes_.expert > 1) all.set("expert_model_parallel_size", sizes_.expert);
    if (chunks_ > 1) all.set("virtual_pipeline_model_parallel_size", chunks_);
    set("expert_model_parallel_size", sizes_.expert);
    set("expert_tensor_parallel_size", sizes_.tensor);
    set("virtual_pipeline_model_parallel_size", chunks_ > 1 ? Value(chunks_) : Value());
    set("num_layers_per_virtual_pipeline_stage",
        chunks_ > 1 ? Value(layers_ / sizes_.pipeline / chunks_) : Value());
    for (const std::string& name : uneven_stages())
      all.set(name, all.find(Value(name))->is(Value::Kind::kBool) ? Value(false) : Value());
    set("ckpt_format", "torch");
    set("use_dist_ckpt", false);
    if (options_.transformer_impl)
      set("transformer_impl", name_of(kTransformerImplNames, *options_.transformer_impl));

    const std::int64_t context = std::clamp<std::int64_t>(
        run_arg(args_, "context_parallel_size").value_or(1), 1, kMostRankFolders);
    const std::int64_t least = sizes_.tensor * context * sizes_.expert;
    const std::int64_t world = run_arg(args_, "world_size").value_or(0);
    const std::int64_t of_stage =
        world > 0 && world % (least * sizes_.pipeline) == 0 ? world / sizes_.pipeline : least;
    set("world_size", of_stage * sizes_.pipeline);
    set("data_parallel_size", of_stage / sizes_.tensor / context);
    set("rank", rank.pipeline * of_stage + rank.expert * context * sizes_.tensor + rank.tensor);
    return args;
  }

  // The files.

  std::int64_t layers_of_chunk() const { return layers_ / (sizes_.pipeline * chunks_); }

  std::string folder_of(const ModelParallelRank& rank) const {
    std::vector<int> numbers{static_cast<int>(rank.tensor)};
    if (sizes_.pipeline > 1) numbers.push_back(static_cast<int>(rank.pipeline));
    if (sizes_.expert > 1) numbers.push_back(static_cast<int>(rank.expert));
    return rank_folder_name(numbers);
  }

  void add_file(const ModelParallelRank& rank) {
    const std::string folder = folder_of(rank);
    Value state = common_;
    if (args_ != nullptr) state["args"] = args_of(rank);
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const std::string name = chunks_ > 1 ? "model" + std::to_string(chunk) : "model";
      state[Value(name)] = add_model(rank, chunk * sizes_.pipeline + rank.pipeline,
                                     str_format("{}/{}.", folder, name));
    }
    const auto rng = rng_states_.find({rank.pipeline, rank.tensor});
    if (rng != rng_states_.end()) state["rng_state"] = rng->second;
    contents_.objects.push_back({.key = folder + "/" + kRankFile, .value = std::move(state)});
  }

  /// Adds the parameters of a chunk under `prefix`, and returns what stands for the chunk in the
  /// rank's state.
  Value add_model(const ModelParallelRank& rank, std::int64_t stage, const std::string& prefix) {
    Value model = Value::dict();
    const auto add = [&](const Parameter& parameter, const ModelKey& key, std::int64_t layer,
                         std::int64_t expert) {
      const std::string path = rank_path(key, names_);
      if (model.contains(Value(path)))
        unsupported(
            str_format("two parameters would be {} in rank folders; leave one out (--exclude)",
                       quote(path)),
            metadata_.tensors[parameter.tensor].key);
      model[Value(path)] = Value();
      contents_.tensors.push_back(part_of(parameter, prefix + path, rank, layer, expert));
    };
    const std::int64_t first = stage * layers_of_chunk();
    for (const Parameter& parameter : parameters_) {
      if (!parameter.layers && !is_on_stage(parameter.key, stage)) continue;
      ModelKey key = parameter.key;
      for (std::int64_t layer = 0; layer < (parameter.layers ? layers_of_chunk() : 1); ++layer) {
        if (parameter.layers) key.layer = layer;
        if (parameter.key.layer) key.layer = *parameter.key.layer - first;
        const std::int64_t experts = parameter.experts ? experts_ / sizes_.expert : 1;
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
    const std::int64_t experts = experts_ / sizes_.expert;
    for (const ExtraState& extra : extra_states_) {
      if (!is_on_stage(extra.key, stage)) continue;
      ModelKey key = extra.key;
      if (key.layer) *key.layer -= stage * layers_of_chunk();
      if (key.expert) {
        if (experts == 0 || *key.expert / experts != rank.expert) continue;
        *key.expert %= experts;
      }
      model[Value(rank_path(key, names_))] = extra.value;
    }
    // Not in distributed checkpoints, but where modules have such state this one has it.
    const Value output(kOutputExtraState);
    if (is_last(stage) && !extra_states_.empty() && !model.contains(output))
      model[output] = Value();
  }

  bool is_last(std::int64_t stage) const { return stage == sizes_.pipeline * chunks_ - 1; }

  bool is_on_stage(const ModelKey& key, std::int64_t stage) const {
    if (key.layer) return *key.layer / std::max<std::int64_t>(layers_of_chunk(), 1) == stage;
    if (key.name.starts_with("embedding.")) return stage == 0;
    constexpr std::array<std::string_view, 3> kEnd{"decoder.final_layernorm.",
                                                   "decoder.final_norm.", "output_layer."};
    if (std::ranges::any_of(kEnd, [&](std::string_view at) { return key.name.starts_with(at); }))
      return is_last(stage);
    if (sizes_.pipeline * chunks_ == 1) return true;
    unsupported(str_format("on which of {} pipeline stages this belongs is not known; leave it out "
                           "(--exclude), or write one stage (--pipeline-parallel 1)",
                           sizes_.pipeline),
                key.name);
  }

  const Parameter& words() const {
    return *std::ranges::find(parameters_, kWordEmbeddings,
                              [](const Parameter& parameter) { return parameter.key.name; });
  }
  /// Whether the embeddings are also the output layer.
  bool is_tied() const {
    return metadata_.find_tensor(kOutputLayer) == nullptr &&
           metadata_.find_tensor(kWordEmbeddings) != nullptr &&
           !is_flag(args_, "untie_embeddings_and_output_weights", true);
  }

  RearrangedTensor part_of(const Parameter& parameter, std::string key,
                           const ModelParallelRank& rank, std::int64_t layer,
                           std::int64_t expert) const {
    RearrangedTensor made{.key = std::move(key),
                          .properties = metadata_.tensors[parameter.tensor].properties,
                          .size = *local_shape(parameter.cut, parameter.shape, sizes_.tensor),
                          .parts = {}};
    const std::size_t leading = parameter.leading();
    for (CutPart& piece : cut_parts(parameter.cut, made.size, rank.tensor, sizes_.tensor)) {
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

  const CheckpointReader& model_;
  const Metadata& metadata_;
  const RankFolderOptions& options_;
  std::vector<std::string>& remarks_;
  const Value original_;  // common state
  Value common_;          // of all ranks, except args
  const Value* args_;
  ModelParallelRank sizes_;  // how many there are
  std::int64_t chunks_ = 1;  // of each stage
  ModuleNames names_;
  std::vector<Parameter> parameters_;
  std::int64_t layers_ = 0;
  std::int64_t experts_ = 0;
  std::vector<ExtraState> extra_states_;
  std::map<std::pair<std::int64_t, std::int64_t>, Value> rng_states_;  // by stage and tensor rank
  RearrangedContents contents_{};
};

}  // namespace

std::unique_ptr<CheckpointReader> split_ranks(std::unique_ptr<CheckpointReader> model,
                                              const RankFolderOptions& options,
                                              std::vector<std::string>& remarks) {
  RearrangedContents contents = Split(*model, options, remarks).run();
  return rearranged_reader(std::move(model), std::move(contents));
}

}  // namespace dckpt
