#include "migration/rank_folders/joined_model.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/run_args.h"

namespace dckpt {
namespace {

constexpr std::int64_t kMaxQkvRows = std::int64_t{1} << 20;  // for one rank

}  // namespace

JoinedModel::JoinedModel(const RankFiles& files) : files_(files), metadata_(files.metadata()) {
  collect_parameters();
  number_layers();
  number_experts();
  group();
}

void JoinedModel::fail(ErrorCode code, const std::string& message, std::uint32_t tensor) const {
  throw_error(code, {.key = metadata_.tensors[tensor].key}, message);
}

void JoinedModel::collect_parameters() {
  bool fused_norms = false;
  bool fused_qkv = false;
  for (const TensorStorageMetadata& tensor : metadata_.tensors) {
    fused_norms |= tensor.key.find(".linear_qkv.layer_norm_weight") != std::string::npos;
    fused_qkv |= tensor.key.find(".linear_qkv.weight") != std::string::npos ||
                 tensor.key.find(".query_key_value.weight") != std::string::npos;
  }
  local_norms_ = fused_qkv && !fused_norms;
  for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
    const RankFiles::File& file = files_.file_of(i);
    const auto path = file.is_main ? split_model_path(files_.path_in_file(i)) : std::nullopt;
    if (!path) continue;
    ModelKey key = parse_rank_path(path->second, local_norms_);
    if (key.name.ends_with(kExtraStateSuffix)) continue;
    parameters_.push_back({i, file.rank, path->first, std::move(key)});
  }
}

/// Gives layers their global numbers. Stages hold consecutive layers; the chunks of a virtual
/// pipeline go round the stages.
void JoinedModel::number_layers() {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;  // by chunk and stage
  for (const LocalParameter& parameter : parameters_) {
    if (!parameter.key.layer) continue;
    std::int64_t& count = counts[{parameter.chunk, parameter.rank.pipeline}];
    count = std::max(count, *parameter.key.layer + 1);
  }
  std::int64_t next = 0;
  for (auto& [stage, count] : counts) next += std::exchange(count, next);
  layers_ = next;
  first_layer_ = std::move(counts);
  const auto wanted = run_arg(files_.args(), "num_layers");
  if (wanted && layers_ > 0 && *wanted != layers_)
    throw_error(ErrorCode::kCorrupt, "the ranks hold {}, but their args say num_layers: {}",
                counted(layers_, "layer"), *wanted);
  for (LocalParameter& parameter : parameters_) {
    if (parameter.key.layer)
      *parameter.key.layer += first_layer_.at({parameter.chunk, parameter.rank.pipeline});
  }
}

void JoinedModel::number_experts() {
  for (const LocalParameter& parameter : parameters_) {
    if (parameter.key.expert) local_experts_ = std::max(local_experts_, *parameter.key.expert + 1);
  }
  for (LocalParameter& parameter : parameters_) {
    if (parameter.key.expert) *parameter.key.expert += parameter.rank.expert * local_experts_;
  }
}

/// Groups the parts of each key, without copies that other ranks hold.
void JoinedModel::group() {
  using Part = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;
  std::map<Part, const LocalParameter*> seen;
  for (const LocalParameter& parameter : parameters_) {
    if (is_tied_copy(parameter)) continue;
    require_known_experts(parameter);
    const auto split = split_of(parameter);
    const std::int64_t part = split == TensorParallel::kReplicated ? 0 : parameter.rank.tensor;
    const auto [first, added] =
        seen.emplace(Part{parameter.key.name, parameter.key.layer.value_or(-1),
                          parameter.key.expert.value_or(-1), part},
                     &parameter);
    if (!added) {
      require_copy(*first->second, parameter);
      continue;
    }
    auto& parts = groups_[parameter.key.name];
    if (parts.empty()) order_.push_back(parameter.key.name);
    parts.push_back(&parameter);
  }
  homogeneous_ = true;
  for (const auto& [name, parts] : groups_) {
    if (!parts.front()->key.layer) continue;
    std::set<std::int64_t> layers;
    for (const LocalParameter* part : parts) {
      layers.insert(*part->key.layer);
      homogeneous_ = homogeneous_ && shape(*part) == shape(*parts.front());
    }
    homogeneous_ = homogeneous_ && static_cast<std::int64_t>(layers.size()) == layers_;
  }
}

/// Checks that `other` is a copy of `first`: ranks of one stage hold copies of what they do not
/// share out, and the last stage holds one of the embeddings. Everything else with the same key is
/// another parameter.
void JoinedModel::require_copy(const LocalParameter& first, const LocalParameter& other) const {
  const bool one_stage = first.rank.pipeline == other.rank.pipeline && first.chunk == other.chunk &&
                         first.rank != other.rank;
  if (one_stage || first.key.name.starts_with("embedding.")) return;
  fail(ErrorCode::kUnsupported,
       str_format("this parameter and {} would both be {} in the joined checkpoint; models of this "
                  "kind are not joined, but each rank's file can be opened by its own path",
                  quote(metadata_.tensors[first.tensor].key), quote(first.key.name)),
       other.tensor);
}

void JoinedModel::require_known_experts(const LocalParameter& parameter) const {
  const std::string& name = parameter.key.name;
  if (name.ends_with(".experts.weight1") || name.ends_with(".experts.weight2"))
    fail(ErrorCode::kUnsupported,
         "the experts of GroupedMLP lie in one matrix, which is not taken apart; each rank's file "
         "can be opened by its own path",
         parameter.tensor);
  if (!parameter.key.expert) return;
  const auto share =
      run_arg(files_.args(), "expert_tensor_parallel_size").value_or(files_.sizes().tensor);
  if (share != files_.sizes().tensor)
    fail(ErrorCode::kUnsupported,
         str_format("experts are shared by {} tensor-parallel ranks, other parameters by {}; such "
                    "ranks are not joined, but each rank's file can be opened by its own path",
                    share, files_.sizes().tensor),
         parameter.tensor);
  if (files_.args() == nullptr && files_.ambiguous_folders())
    fail(ErrorCode::kUnsupported,
         "without args, the second number of the folders may be that of a pipeline stage or of an "
         "expert-parallel rank; each rank's file can be opened by its own path",
         parameter.tensor);
}

/// Returns whether this is the last stage's copy of embeddings that are also the output layer.
bool JoinedModel::is_tied_copy(const LocalParameter& parameter) const {
  const bool untied = files_.flag("untie_embeddings_and_output_weights");
  return parameter.key.name.starts_with("word_embeddings_for_head.") ||
         (!untied && files_.args() != nullptr && parameter.key.name == "output_layer.weight");
}

TensorParallel JoinedModel::split_of(const LocalParameter& parameter) const {
  const auto split = tensor_parallel(parameter.key.name);
  if (split) return *split;
  if (files_.sizes().tensor > 1)
    fail(ErrorCode::kUnsupported,
         str_format("it is not known how {} tensor-parallel ranks share this parameter; the files "
                    "can be opened one by one by their own paths",
                    files_.sizes().tensor),
         parameter.tensor);
  return TensorParallel::kReplicated;
}

const Shape& JoinedModel::shape(const LocalParameter& parameter) const {
  return metadata_.tensors[parameter.tensor].size;
}

ParameterCut JoinedModel::cut_of(const LocalParameter& parameter) const {
  ParameterCut cut{.axis = split_of(parameter)};
  const auto partner = gated_partner(parameter.key.name);
  const auto fc2 = partner ? groups_.find(*partner) : groups_.end();
  if (fc2 == groups_.end()) return cut;
  for (const LocalParameter* const other : fc2->second) {
    if (other->key.layer != parameter.key.layer || other->key.expert != parameter.key.expert)
      continue;
    cut.gated = is_gated(shape(parameter), shape(*other));
    break;
  }
  return cut;
}

/// Returns the version; 0 where it is absent.
double JoinedModel::checkpoint_version() const {
  const Value* const stored = files_.state(files_.main()).find("checkpoint_version");
  if (stored == nullptr || stored->is_none()) return 0;
  if (!stored->is_int() && !stored->is(Value::Kind::kFloat))
    throw_error(ErrorCode::kCorrupt,
                {.file = files_.reader().storage().display_path(metadata_.files[files_.main()])},
                "checkpoint_version is not a number");
  return stored->as_float();
}

/// Returns the rank's parts of the whole parameter. The rows of fused QKV get today's order, for
/// each head those of query, key and value: checkpoints of version 0 have all queries first, those
/// of version 1 the three interleaved.
std::vector<CutPart> JoinedModel::parts_of(const LocalParameter& parameter,
                                           const ParameterCut& cut) const {
  std::vector<CutPart> parts =
      cut_parts(cut, shape(parameter), parameter.rank.tensor, files_.sizes().tensor);
  const double version = checkpoint_version();
  if (version >= 2 || cut.axis != TensorParallel::kRows || numel(shape(parameter)) == 0 ||
      parameter.key.name.find(".linear_qkv.") == std::string::npos)
    return parts;
  const std::int64_t rows = shape(parameter).front();
  if (version >= 1 && rows > kMaxQkvRows)
    fail(
        ErrorCode::kUnsupported,
        str_format("fused QKV of checkpoint_version {} has {} rows, more than {} are not reordered",
                   version, rows, kMaxQkvRows),
        parameter.tensor);
  const auto heads =
      run_arg(files_.args(), "num_attention_heads").value_or(0) / files_.sizes().tensor;
  if (heads < 1 || heads > rows || rows % (3 * heads) != 0)
    fail(ErrorCode::kUnsupported,
         str_format("fused QKV of checkpoint_version {} is to be reordered, but its {} rows are "
                    "not three times those of {} heads",
                    version, rows, heads),
         parameter.tensor);
  const CutPart all = std::exchange(parts, {}).front();
  const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    CutPart& part = parts.emplace_back(all);
    part.local.offsets[0] = from;
    part.whole.offsets[0] += to;
    part.local.sizes[0] = part.whole.sizes[0] = count;
  };
  const std::int64_t size = rows / (3 * heads);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t which = 0; which < 3; ++which) {
      const std::int64_t to = (head * 3 + which) * size;
      if (version < 1) {
        add((which * heads + head) * size, to, size);
      } else {
        for (std::int64_t row = 0; row < size; ++row)
          add((head * size + row) * 3 + which, to + row, 1);
      }
    }
  }
  return parts;
}

RearrangedTensor JoinedModel::joined(std::string key, const Parts& parts, bool stack,
                                     const Range& range) const {
  const LocalParameter& first = *parts.front();
  const ParameterCut cut = cut_of(first);
  RearrangedTensor made{.key = std::move(key), .properties = {}, .size = {}, .parts = {}};
  if (stack) made.size.push_back(layers_);
  if (first.key.expert) made.size.push_back(local_experts_ * files_.sizes().expert);
  const std::size_t leading = made.size.size();
  const auto whole = whole_shape(cut, shape(first), files_.sizes().tensor);
  if (!whole)
    fail(ErrorCode::kCorrupt, "the parameter has too few axes, or is too large", first.tensor);
  made.size.insert(made.size.end(), whole->begin(), whole->end());
  for (const LocalParameter* const part : parts) {
    if (shape(*part) != shape(first))
      fail(ErrorCode::kCorrupt,
           str_format("the ranks' parts differ: this has the shape {}, {} has {}",
                      to_string(shape(*part)), quote(metadata_.tensors[first.tensor].key),
                      to_string(shape(first))),
           part->tensor);
    for (CutPart& piece : parts_of(*part, cut)) {
      Box target{Shape(leading, 0), Shape(leading, 1)};
      if (stack) target.offsets[0] = *part->key.layer;
      if (part->key.expert) target.offsets[leading - 1] = *part->key.expert;
      for (std::size_t axis = 0; axis < piece.whole.dims(); ++axis) {
        target.offsets.push_back(piece.whole.offsets[axis]);
        target.sizes.push_back(piece.whole.sizes[axis]);
      }
      made.parts.push_back(range(*part, std::move(target), std::move(piece.local), leading));
    }
  }
  made.properties = metadata_.tensors[made.parts.front().tensor].properties;
  made.properties.requires_grad = false;
  return made;
}

void JoinedModel::for_each_tensor(
    const std::function<void(const std::string& key, const Parts& parts, bool stack)>& visit)
    const {
  for (const std::string& name : order_) {
    const auto& parts = groups_.at(name);
    if (!parts.front()->key.layer || homogeneous_) {
      visit(name, parts, parts.front()->key.layer.has_value());
      continue;
    }
    std::map<std::int64_t, Parts> layers;
    for (const LocalParameter* const part : parts) layers[*part->key.layer].push_back(part);
    for (const auto& [layer, of_layer] : layers) {
      std::string key = name;
      key.insert(kLayersPrefix.size(), std::to_string(layer) + ".");
      visit(key, of_layer, false);
    }
  }
}

std::vector<RearrangedTensor> JoinedModel::tensors() const {
  std::vector<RearrangedTensor> made;
  for_each_tensor([&](const std::string& key, const Parts& parts, bool stack) {
    made.push_back(
        joined(key, parts, stack,
               [](const LocalParameter& part, Box target, Box source, std::size_t leading) {
                 TensorPart piece{.target = std::move(target),
                                  .tensor = part.tensor,
                                  .source = std::move(source),
                                  .axes = std::vector<std::int32_t>(leading, kNoAxis)};
                 for (std::size_t axis = 0; axis < piece.source.dims(); ++axis)
                   piece.axes.push_back(static_cast<std::int32_t>(axis));
                 return piece;
               }));
  });
  return made;
}

std::string JoinedModel::object_key(ModelKey key, std::int64_t chunk,
                                    const ModelParallelRank& rank) const {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> counts;
  if (key.layer) {
    const auto first = first_layer_.find({chunk, rank.pipeline});
    const std::int64_t layer = *key.layer + (first == first_layer_.end() ? 0 : first->second);
    if (homogeneous_) {
      offsets.push_back(layer);
      counts.push_back(layers_);
    } else {
      key.name.insert(kLayersPrefix.size(), std::to_string(layer) + ".");
    }
  }
  if (key.expert) {
    offsets.push_back(*key.expert + rank.expert * local_experts_);
    counts.push_back(local_experts_ * files_.sizes().expert);
  }
  if (offsets.empty()) {
    offsets.push_back(0);
    counts.push_back(1);
  }
  const auto text = [](const std::vector<std::int64_t>& numbers) {
    std::string joined;
    for (const std::int64_t number : numbers)
      joined += (joined.empty() ? "" : ".") + std::to_string(number);
    return joined;
  };
  return str_format("{}/shard_{}_{}", key.name, text(offsets), text(counts));
}

}  // namespace dckpt
