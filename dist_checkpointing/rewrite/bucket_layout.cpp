// Megatron-Core 0.15 and newer, DistributedDataParallel and _ParamAndGradBuffer: a rank's
// parameters, from the model's last to its first, each on a multiple of 64 elements. Dense ones and
// experts (of expert parallel runs) have buffers of their own, and so has each pair of dtypes and
// each chunk of a virtual pipeline. On the first pipeline stage a bucket is complete once it has
// `bucket_size` elements; its end is padded for the ranks that share it.

#include "dist_checkpointing/rewrite/bucket_layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "dist_checkpointing/rewrite/module_order.h"
#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "strategies/contract/run_args.h"
#include "strategies/legacy_torch/parameter_cut.h"

namespace dckpt {
namespace {

constexpr std::int64_t kParameterStart = 64;  // multiples, in elements
constexpr std::int64_t kBucketEnd = 128;
constexpr std::int64_t kLargeBucketEnd = 1 << 16;
constexpr std::int64_t kMostRanks = 1 << 20;                     // of a run
constexpr std::int64_t kMostParameters = std::int64_t{1} << 21;  // of all ranks together
constexpr std::int64_t kMostVisits = std::int64_t{1} << 31;
constexpr std::string_view kExperts = ".mlp.experts.experts.";

constexpr const char* kTensor = "tensor_model_parallel_size";
constexpr const char* kPipeline = "pipeline_model_parallel_size";
constexpr const char* kVirtual = "virtual_pipeline_model_parallel_size";
constexpr const char* kExpert = "expert_model_parallel_size";
constexpr const char* kExpertTensor = "expert_tensor_parallel_size";
constexpr const char* kData = "data_parallel_size";
constexpr const char* kContext = "context_parallel_size";
constexpr const char* kInstances = "num_distributed_optimizer_instances";
constexpr const char* kOverlap = "overlap_grad_reduce";
constexpr const char* kBucketSize = "ddp_bucket_size";
constexpr const char* kLargeMultiples = "ddp_pad_buckets_for_high_nccl_busbw";
constexpr const char* kImplementation = "transformer_impl";
constexpr const char* kGrouped = "moe_grouped_gemm";
constexpr const char* kFloatGradients = "accumulate_allreduce_grads_in_fp32";
constexpr std::array kArguments{kTensor,       kPipeline,      kVirtual,        kExpert,
                                kExpertTensor, kData,          kContext,        kInstances,
                                kOverlap,      kBucketSize,    kLargeMultiples, kImplementation,
                                kGrouped,      kFloatGradients};
/// Under these, stages or buckets follow other rules.
constexpr std::array kOtherRules{"decoder_first_pipeline_num_layers",
                                 "decoder_last_pipeline_num_layers",
                                 "account_for_embedding_in_pipeline_split",
                                 "account_for_loss_in_pipeline_split",
                                 "pipeline_model_parallel_layout",
                                 "ddp_num_buckets",
                                 "overlap_param_gather_with_optimizer_step",
                                 "fp8_param_gather",
                                 "fp4_param_gather",
                                 "moe_use_legacy_grouped_gemm",
                                 "use_megatron_fsdp"};

bool is_set(const Value* value) {
  return value != nullptr && !value->is_none() && *value != Value(false) && *value != Value(0);
}

class Arguments {
 public:
  Arguments(const Value& common, const RunArguments& given)
      : stored_(run_args(common)), given_(given) {}

  [[noreturn]] static void ask(const char* name, const char* value) {
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("how the optimizer's buckets lie depends on the run that resumes, and the "
                   "checkpoint's args do not say its {}; say it (convert --arg {}={})",
                   name, name, value));
  }

  const Value* find(const char* name) const {
    const auto found = given_.find(name);
    return found == given_.end() ? stored(name) : &found->second;
  }

  std::optional<std::int64_t> number(const char* name) const {
    const Value* const found = find(name);
    if (found == nullptr || found->is_none()) return std::nullopt;
    if (found->is(Value::Kind::kBool)) return found->as_bool() ? 1 : 0;
    if (found->is_int()) return found->as_int();
    if (*found == Value("true") || *found == Value("True")) return 1;  // as people type them
    if (*found == Value("false") || *found == Value("False")) return 0;
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("{}: found {}, expected a number", name,
                                     found->is_str() ? quote(found->as_str()) : "something else"));
  }

  std::int64_t size(const char* name, std::optional<std::int64_t> usual) const {
    const std::optional<std::int64_t> found = number(name);
    if (!found && !usual) ask(name, "N");
    const std::int64_t size = found.value_or(usual.value_or(1));
    if (size < 1 || size > kMostRanks)
      throw CheckpointError(
          ErrorCode::kInvalidArgument,
          str_format("{} is {}, expected a number from 1 to {}", name, size, kMostRanks));
    return size;
  }

  bool is_given(const char* name) const { return given_.contains(name); }

  const Value* stored(const char* name) const {
    return stored_ == nullptr ? nullptr : stored_->find(name);
  }

 private:
  const Value* stored_;
  const RunArguments& given_;
};

void check_names(const RunArguments& given) {
  for (const auto& [name, value] : given) {
    if (std::ranges::find(kArguments, name) == kArguments.end())
      throw CheckpointError(
          ErrorCode::kInvalidArgument,
          str_format(
              "{} is none of the arguments that decide how the optimizer's buckets lie: {}",
              quote(name),
              quoted_list(std::vector<std::string>(kArguments.begin(), kArguments.end()), 20)));
  }
}

std::int64_t rounded_up(std::int64_t number, std::int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

/// A parameter of the model, of one layer and one expert, whatever ranks hold it.
struct Parameter {
  ModulePlace place;
  std::uint32_t tensor = 0;
  std::optional<std::int64_t> expert{};
  bool has_expert_axis = false;
  bool shared_embedding = false;  ///< fills a bucket of its own
};

/// A parameter as a rank has it.
struct LocalParameter {
  const Parameter* parameter = nullptr;
  std::vector<Box> boxes;  ///< one after the other
  std::int64_t elements = 0;
};

class Layout {
 public:
  Layout(const Metadata& metadata, std::span<const std::uint32_t> trained,
         const BucketSettings& settings)
      : metadata_(metadata), settings_(settings) {
    for (const std::uint32_t tensor : trained) by_key_.emplace(key(tensor), tensor);
    count_layers(trained);
    for (const std::uint32_t tensor : trained) add(tensor);
    unknown_.raise_if_any(
        ErrorCode::kUnsupported,
        "where Megatron puts the state of these is not known here, so the optimizer cannot be laid "
        "into buckets; convert to fully_reshardable, from which Megatron-Core 0.15 and newer "
        "resume, too:");
    std::ranges::stable_sort(parameters_, {}, [&](const Parameter& parameter) {
      const std::int64_t expert = parameter.expert.value_or(0);
      const bool grouped = settings_.grouped_experts;
      const ModulePlace& at = parameter.place;
      return std::tuple(at.layer, at.module, grouped ? 0 : expert, at.name, at.parameter,
                        grouped ? expert : 0);
    });
    tie_embeddings();
    check_stages();
  }

  std::vector<LaidOutGroup> run() {
    std::vector<LaidOutGroup> groups;
    const bool chain = has_experts_ && settings_.expert > 1;
    for (std::int64_t optimizer = 0; optimizer < (chain ? 2 : 1); ++optimizer) {
      const bool of_experts = optimizer == 1;
      const std::int64_t tensor = of_experts ? settings_.expert_tensor : settings_.tensor;
      const std::int64_t expert = of_experts ? settings_.expert : 1;
      const std::int64_t count = tensor * expert * settings_.pipeline;
      require_few(count);
      for (std::int64_t index = 0; index < count; ++index) {
        rank_ = {index % tensor, index / tensor % expert, index / (tensor * expert)};
        LaidOutGroup group{optimizer, index, count, {}};
        for (std::int64_t chunk = 0; chunk < settings_.virtual_pipeline; ++chunk)
          add_buffers(group, chunk, chain);
        groups.push_back(std::move(group));
      }
    }
    return groups;
  }

 private:
  struct Rank {
    std::int64_t tensor = 0;
    std::int64_t expert = 0;
    std::int64_t pipeline = 0;
  };

  const std::string& key(std::uint32_t tensor) const { return metadata_.tensors[tensor].key; }
  const Shape& shape(std::uint32_t tensor) const {
    return metadata_.tensors[tensor].global_shape();
  }

  [[noreturn]] void fail(std::uint32_t tensor, const std::string& message) const {
    throw CheckpointError(ErrorCode::kMismatch, message, {.key = key(tensor)});
  }

  void count_layers(std::span<const std::uint32_t> trained) {
    for (const std::uint32_t tensor : trained) {
      const ModulePlace place = module_place(key(tensor), 0);
      if (!place.known || place.layer == ModulePlace::kBeforeLayers ||
          place.layer == ModulePlace::kAfterLayers)
        continue;
      if (!place.stacked) {
        layers_ = std::max(layers_, place.layer + 1);
      } else if (!shape(tensor).empty()) {
        layers_ = std::max(layers_, shape(tensor)[0]);
      }
    }
  }

  void add(std::uint32_t tensor) {
    const std::string& name = key(tensor);
    const ModulePlace place = module_place(name, 0, settings_.local);
    if (!place.known || !tensor_parallel(name)) return unknown_.add(quote(name));
    if (name.ends_with("_down_proj.weight") && settings_.tensor > 1 && is_cut(tensor))
      return unknown_.add(quote(name) + ", which ranks share instead of having copies");
    Parameter parameter{.place = place, .tensor = tensor};
    std::int64_t experts = 1;
    if (const std::size_t at = name.find(kExperts); at != std::string::npos) {
      std::string_view rest = std::string_view(name).substr(at + 1);
      parameter.expert = take_index(rest, kExperts.substr(1)).value_or(0);
      parameter.has_expert_axis = rest.starts_with("mlp.");  // no number was taken
    } else if (name.find(".mlp.experts.") != std::string::npos) {
      return unknown_.add(quote(name));
    }
    const std::size_t axes = prepended(parameter);
    if (shape(tensor).size() < axes + 1 || shape(tensor).size() > axes + 2)
      fail(tensor, str_format("the shape {} is not that of a parameter{}{}",
                              to_string(shape(tensor)), place.stacked ? " of stacked layers" : "",
                              parameter.expert ? " of experts" : ""));
    if (parameter.has_expert_axis) experts = shape(tensor)[axes - 1];
    const std::int64_t layers = place.stacked ? shape(tensor)[0] : 1;
    if (place.stacked && layers != layers_)
      fail(tensor, str_format("has {} layers, the model {}", layers, layers_));
    if (parameter.expert) count_experts(parameter, experts);
    const auto places = checked_mul(layers, experts);
    if (!places || *places > kMostParameters - static_cast<std::int64_t>(parameters_.size()))
      fail(tensor, "the model has too many parameters");
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (place.stacked) parameter.place = module_place(name, layer, settings_.local);
      for (std::int64_t expert = 0; expert < experts; ++expert) {
        if (parameter.has_expert_axis) parameter.expert = expert;
        parameters_.push_back(parameter);
      }
    }
  }

  /// Whether its chunks are parts of matrices.
  bool is_cut(std::uint32_t tensor) const {
    const TensorStorageMetadata& stored = metadata_.tensors[tensor];
    const std::size_t dims = stored.size.size();
    for (std::size_t i = 0; !stored.flattened_shape && dims >= 2 && i < stored.chunks.size(); ++i) {
      const ShapeView sizes = stored.chunks.sizes(i);
      if (sizes[dims - 1] != stored.size[dims - 1] || sizes[dims - 2] != stored.size[dims - 2])
        return true;
    }
    return false;
  }

  void count_experts(const Parameter& parameter, std::int64_t experts) {
    has_experts_ = true;
    if (parameter.has_expert_axis && experts % settings_.expert != 0)
      fail(parameter.tensor,
           str_format("{} experts cannot be shared by {} ranks (expert_model_parallel_size)",
                      experts, settings_.expert));
    experts_ = std::max(experts_, parameter.has_expert_axis ? experts : *parameter.expert + 1);
  }

  static std::size_t prepended(const Parameter& parameter) {
    return (parameter.place.stacked ? 1U : 0U) + (parameter.has_expert_axis ? 1U : 0U);
  }

  /// With tied weights, the last stage has a copy of the word embeddings for its output.
  void tie_embeddings() {
    if (settings_.pipeline == 1 || by_key_.contains("output_layer.weight")) return;
    const auto words = std::ranges::find_if(parameters_, [&](const Parameter& parameter) {
      return key(parameter.tensor) == "embedding.word_embeddings.weight";
    });
    if (words == parameters_.end()) return;
    words->shared_embedding = true;
    Parameter copy = *words;
    copy.place = module_place("output_layer.weight", 0);
    parameters_.push_back(copy);
  }

  void check_stages() const {
    const std::int64_t stages = settings_.pipeline * settings_.virtual_pipeline;
    if (layers_ % stages == 0 && (layers_ > 0 || stages == 1)) return;
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format(
            "{} layers cannot be shared evenly by {} pipeline stages "
            "(pipeline_model_parallel_size{})",
            layers_, stages,
            settings_.virtual_pipeline > 1 ? " · virtual_pipeline_model_parallel_size" : ""));
  }

  void require_few(std::int64_t ranks) const {
    const auto chunks = checked_mul(ranks, settings_.virtual_pipeline);
    const auto visits =
        chunks ? checked_mul(*chunks, static_cast<std::int64_t>(parameters_.size())) : chunks;
    if (visits && *visits <= kMostVisits) return;
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("{} ranks have too many parameters together",
                                     grouped(static_cast<std::uint64_t>(ranks))));
  }

  bool is_in_chunk(const Parameter& parameter, std::int64_t chunk) const {
    const std::int64_t stages = settings_.pipeline * settings_.virtual_pipeline;
    const std::int64_t stage = chunk * settings_.pipeline + rank_.pipeline;
    const std::int64_t layer = parameter.place.layer;
    if (layer == ModulePlace::kBeforeLayers) return stage == 0;
    if (layer == ModulePlace::kAfterLayers) return stage == stages - 1;
    return layer / (layers_ / stages) == stage;
  }

  /// A rank's part of an axis, as `parts` of equal sizes that are cut one by one.
  void cut(LocalParameter& local, const Box& whole_box, std::size_t axis, std::int64_t parts,
           std::int64_t ranks) const {
    const std::int64_t extent = whole_box.sizes[axis];
    if (extent % (parts * ranks) != 0)
      fail(local.parameter->tensor,
           str_format("{} rows or columns{} cannot be shared by {} ranks ({})", extent,
                      parts > 1 ? " of a gate and what it gates" : "", ranks,
                      local.parameter->expert ? kExpertTensor : kTensor));
    const std::int64_t size = extent / (parts * ranks);
    for (std::int64_t part = 0; part < parts; ++part) {
      Box box = whole_box;
      box.offsets[axis] += (part * ranks + rank_.tensor) * size;
      box.sizes[axis] = size;
      local.boxes.push_back(std::move(box));
    }
  }

  bool is_gated(const Parameter& parameter) const {
    const std::optional<std::string> partner = gated_partner(key(parameter.tensor));
    const TensorStorageMetadata* const second = partner ? metadata_.find_tensor(*partner) : nullptr;
    if (second == nullptr || second->global_shape().size() < 2) return false;
    return dckpt::is_gated(ShapeView(shape(parameter.tensor)).subspan(prepended(parameter)),
                           ShapeView(second->global_shape()).last(2));
  }

  LocalParameter local(const Parameter& parameter) const {
    LocalParameter local{.parameter = &parameter, .boxes = {}};
    Box box = whole(shape(parameter.tensor));
    std::size_t axis = 0;
    const auto one = [&](std::int64_t index) {
      box.offsets[axis] = index;
      box.sizes[axis++] = 1;
    };
    if (parameter.place.stacked) one(parameter.place.layer);
    if (parameter.has_expert_axis) one(*parameter.expert);
    const std::int64_t ranks = parameter.expert ? settings_.expert_tensor : settings_.tensor;
    switch (*tensor_parallel(key(parameter.tensor))) {
      case TensorParallel::kReplicated: local.boxes.push_back(std::move(box)); break;
      case TensorParallel::kRows: cut(local, box, axis, is_gated(parameter) ? 2 : 1, ranks); break;
      case TensorParallel::kColumns:
        if (axis + 1 >= box.dims()) fail(parameter.tensor, "a matrix is expected");
        cut(local, box, axis + 1, 1, ranks);
        break;
    }
    for (const Box& piece : local.boxes) local.elements += numel(piece.sizes);
    return local;
  }

  void add_buffers(LaidOutGroup& group, std::int64_t chunk, bool chain) {
    const bool of_experts = group.chain == 1;
    const std::int64_t local_experts = std::max<std::int64_t>(experts_ / settings_.expert, 1);
    std::vector<std::pair<LaidOutBuffer, std::vector<LocalParameter>>> buffers;
    for (const Parameter& parameter : parameters_) {
      if (!is_in_chunk(parameter, chunk)) continue;
      if (of_experts != (chain && parameter.expert)) continue;
      if (of_experts && *parameter.expert / local_experts != rank_.expert) continue;
      const DType dtype = metadata_.tensors[parameter.tensor].properties.dtype;
      auto buffer = std::ranges::find_if(
          buffers, [&](const auto& entry) { return entry.first.parameters == dtype; });
      if (buffer == buffers.end()) {
        const bool half = dtype == DType::kFloat16 && settings_.float16_gradients;
        buffer = buffers.insert(buffers.end(),
                                {LaidOutBuffer{dtype, half ? dtype : DType::kFloat32, {}}, {}});
      }
      if (++placed_ > kMostParameters) fail(parameter.tensor, "ranks have too many parameters");
      buffer->second.push_back(local(parameter));
    }
    for (auto& [buffer, parameters] : buffers) {
      fill(buffer, parameters, of_experts, chunk);
      group.buffers.push_back(std::move(buffer));
    }
  }

  std::int64_t sharing_ranks(bool of_experts) const {
    const std::int64_t dense = settings_.data * settings_.context;
    const std::int64_t all =
        of_experts ? dense * settings_.tensor / (settings_.expert_tensor * settings_.expert)
                   : dense;
    return std::max<std::int64_t>(all / settings_.instances, 1);
  }

  void fill(LaidOutBuffer& buffer, std::span<const LocalParameter> parameters, bool of_experts,
            std::int64_t chunk) const {
    const std::int64_t ranks = sharing_ranks(of_experts);
    const std::int64_t end_multiple =
        std::lcm(ranks, settings_.large_multiples ? kLargeBucketEnd : kBucketEnd);
    const bool one_bucket = settings_.bucket_size == 0 || rank_.pipeline > 0 || chunk > 0;
    LaidOutBucket bucket{.ranks = ranks};
    const auto complete = [&](std::int64_t end) {
      bucket.used = end;
      bucket.padded = rounded_up(end, end_multiple);
      buffer.buckets.push_back(std::move(bucket));
      bucket = {.ranks = ranks};
    };
    std::int64_t at = 0;  // in the bucket
    for (auto local = parameters.rbegin(); local != parameters.rend(); ++local) {
      const bool alone = local->parameter->shared_embedding;
      at = rounded_up(at, kParameterStart);
      if (alone && !bucket.parts.empty()) {
        complete(at);
        at = 0;
      }
      if (local->elements > INT64_MAX / 4 - at)
        fail(local->parameter->tensor, "a buffer would have too many elements");
      for (const Box& box : local->boxes) {
        bucket.parts.push_back({at, local->parameter->tensor, box});
        at += numel(box.sizes);
      }
      if (alone || (!one_bucket && at >= settings_.bucket_size)) {
        complete(at);
        at = 0;
      }
    }
    if (!bucket.parts.empty()) complete(at);
  }

  const Metadata& metadata_;
  const BucketSettings& settings_;
  std::unordered_map<std::string_view, std::uint32_t> by_key_;
  std::vector<Parameter> parameters_;  // in Megatron's order
  ProblemList unknown_;
  std::int64_t layers_ = 0;
  std::int64_t experts_ = 0;
  std::int64_t placed_ = 0;
  bool has_experts_ = false;
  Rank rank_;
};

void require_few_ranks(const BucketSettings& settings) {
  std::int64_t all = settings.tensor;
  for (const std::int64_t size : {settings.pipeline, settings.context, settings.data}) {
    const std::optional<std::int64_t> product = checked_mul(all, size);
    if (!product || *product > kMostRanks)
      throw CheckpointError(
          ErrorCode::kInvalidArgument,
          str_format("{} {}, {} {}, {} {} and {} {} make more than {} ranks", kTensor,
                     settings.tensor, kPipeline, settings.pipeline, kContext, settings.context,
                     kData, settings.data, kMostRanks));
    all = *product;
  }
}

/// Each rank of the optimizer has an equal part of its buffers.
void require_whole_shares(const BucketSettings& settings) {
  const std::int64_t dense = settings.data * settings.context;
  const std::int64_t of_experts = settings.expert_tensor * settings.expert;
  const bool chain = settings.expert > 1;
  if (chain && dense * settings.tensor % of_experts != 0)
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("{} {}, {} {} and {} {} make {} ranks in each pipeline stage, which {} {} times "
                   "{} {} do not divide",
                   kTensor, settings.tensor, kContext, settings.context, kData, settings.data,
                   dense * settings.tensor, kExpert, settings.expert, kExpertTensor,
                   settings.expert_tensor));
  for (const std::int64_t ranks : {dense, chain ? dense * settings.tensor / of_experts : dense}) {
    if (ranks % settings.instances != 0)
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            str_format("{} {} do not divide the {} ranks that share a buffer",
                                       kInstances, settings.instances, ranks));
  }
}

}  // namespace

BucketSettings bucket_settings(const Value& common, const RunArguments& given, bool experts,
                               bool fused_norms) {
  check_names(given);
  const Arguments args(common, given);
  for (const char* const name : kOtherRules) {
    if (is_set(args.stored(name)))
      throw CheckpointError(
          ErrorCode::kUnsupported,
          str_format("the run had {}, under which the optimizer's buckets lie as is not known "
                     "here; convert to fully_reshardable, from which Megatron-Core 0.15 and newer "
                     "resume, too",
                     name));
  }
  const auto flag = [&](const char* name) { return args.number(name).value_or(0) != 0; };
  BucketSettings settings;
  settings.tensor = args.size(kTensor, std::nullopt);
  settings.pipeline = args.size(kPipeline, std::nullopt);
  // The chunks of another number of stages mean nothing.
  const bool other_stages = args.is_given(kPipeline) && !args.is_given(kVirtual);
  settings.virtual_pipeline = other_stages ? 1 : args.size(kVirtual, 1);
  if (settings.virtual_pipeline > 1 && settings.pipeline == 1)
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("{} is {}, but a single pipeline stage has no chunks",
                                     kVirtual, settings.virtual_pipeline));
  settings.data = args.size(kData, std::nullopt);
  settings.context = args.size(kContext, 1);
  settings.instances = args.size(kInstances, 1);
  if (experts) {
    settings.expert = args.size(kExpert, std::nullopt);
    // Megatron writes into the args that it is the same, as it is where nobody says it.
    const std::optional<std::int64_t> of_experts = args.number(kExpertTensor);
    const bool follows = !args.is_given(kExpertTensor) && args.is_given(kTensor) &&
                         of_experts == run_arg(run_args(common), kTensor);
    settings.expert_tensor = follows ? settings.tensor : args.size(kExpertTensor, settings.tensor);
    const std::optional<std::int64_t> grouped = args.number(kGrouped);
    if (!grouped) Arguments::ask(kGrouped, "0, or 1");
    settings.grouped_experts = grouped != 0;
  }
  require_few_ranks(settings);
  require_whole_shares(settings);
  const Value* const implementation = args.find(kImplementation);
  if (implementation == nullptr || implementation->is_none()) {
    // Where Megatron's own layers have their norms, the checkpoint does not tell.
    if (fused_norms) Arguments::ask(kImplementation, "transformer_engine, or local");
  } else {
    settings.local = *implementation == Value("local");
    if (!settings.local && *implementation != Value("transformer_engine"))
      throw CheckpointError(ErrorCode::kUnsupported,
                            str_format("in which order a model of this {} declares its parameters "
                                       "is not known here; known are local and transformer_engine",
                                       kImplementation));
  }
  settings.large_multiples = flag(kLargeMultiples);
  settings.float16_gradients = !flag(kFloatGradients);
  const std::optional<std::int64_t> bucket_size = args.number(kBucketSize);
  const bool overlap = flag(kOverlap);
  if (args.is_given(kBucketSize) && (!overlap || *bucket_size < 1))
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("{} is {}; it needs {}=1 (without it there is one bucket per "
                                     "buffer) and a number from 1 on",
                                     kBucketSize, *bucket_size, kOverlap));
  if (overlap)
    settings.bucket_size = std::max<std::int64_t>(
        bucket_size.value_or(std::max<std::int64_t>(40'000'000, 1'000'000 * settings.data)), 1);
  const std::optional<std::int64_t> groups = args.number("num_query_groups");
  if (is_set(args.stored("group_query_attention")) && groups && *groups % settings.tensor != 0)
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("how {} ranks share {} query groups is not known here ({})",
                                     settings.tensor, *groups, kTensor));
  return settings;
}

std::vector<LaidOutGroup> lay_out_buckets(const Metadata& metadata,
                                          std::span<const std::uint32_t> trained,
                                          const BucketSettings& settings) {
  return Layout(metadata, trained, settings).run();
}

}  // namespace dckpt
