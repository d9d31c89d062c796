#include "strategies/legacy_torch/join_ranks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/contract/run_args.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/legacy_torch/gradient_buffer.h"
#include "strategies/legacy_torch/model_keys.h"
#include "strategies/legacy_torch/rank_grid.h"
#include "strategies/rearranged/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kExtraState = "._extra_state";
constexpr std::int64_t kMaxQkvRows = std::int64_t{1} << 20;  // of a rank
constexpr std::string_view kRankOptimizer = "optim";         // stem, before May 2023

/// Coordinates of a rank's folder.
struct Rank {
  std::int64_t tensor = 0;
  std::int64_t pipeline = 0;
  std::int64_t expert = 0;
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

/// A parameter in a rank's file.
struct LocalParameter {
  std::uint32_t tensor = 0;  ///< position in the ranks' metadata
  Rank rank;
  std::int64_t chunk = 0;  ///< of a virtual pipeline
  ModelKey key;            ///< with global numbers, once layers have been counted
};

/// Where a parameter's elements are in its gradient buffer's state.
struct BufferRange {
  std::uint32_t tensor = 0;
  std::int64_t begin = 0;
};

class Join {
 public:
  explicit Join(const CheckpointReader& ranks)
      : ranks_(ranks), metadata_(ranks.metadata()), states_(ranks.common_state()) {}

  /// Empty if there is no model.
  std::optional<RearrangedContents> run() {
    read_sizes();
    collect_parameters();
    if (parameters_.empty()) return std::nullopt;
    warn_of_other_files();
    number_layers();
    number_experts();
    group();
    add_model();
    add_optimizer();
    add_objects();
    contents_.common = common();
    contents_.conventions = Conventions{};
    return std::move(contents_);
  }

 private:
  struct File {
    std::string stem;
    Rank rank;
  };

  [[noreturn]] void fail(ErrorCode code, const std::string& message, std::uint32_t tensor) const {
    throw CheckpointError(code, message, {.key = metadata_.tensors[tensor].key});
  }

  /// The state of a file, without its tensors.
  const Value& state(std::size_t file) const {
    return metadata_.files.size() == 1 ? states_ : states_.at(metadata_.files[file]);
  }

  void read_sizes() {
    bool has_main = false;
    for (const std::string& name : metadata_.files) {
      const std::size_t slash = name.find('/');
      const RankFile file{.folder = name.substr(0, slash),
                          .stem = name.substr(slash + 1, name.size() - slash - 4),
                          .state = nullptr};
      const std::vector<int> numbers = *rank_folder_numbers(file.folder);
      files_.push_back({file.stem, {.tensor = numbers[0]}});
      if (!file.is_main()) continue;
      if (!has_main) main_ = files_.size() - 1;
      has_main = true;
      if (args_ == nullptr) args_ = run_args(state(files_.size() - 1));
    }
    const auto expert_size = run_arg(args_, "expert_model_parallel_size").value_or(1);
    const auto pipeline_size = run_arg(args_, "pipeline_model_parallel_size");
    const bool second_is_expert = expert_size > 1 && pipeline_size == 1;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i].stem == kRankOptimizer) continue;  // in a folder of a data-parallel rank
      const std::string& name = metadata_.files[i];
      const std::vector<int> numbers = *rank_folder_numbers(name.substr(0, name.find('/')));
      Rank& rank = files_[i].rank;
      ambiguous_folders_ |= numbers.size() == 2;
      if (numbers.size() > 1) (second_is_expert ? rank.expert : rank.pipeline) = numbers[1];
      if (numbers.size() > 2) rank.expert = numbers[2];
      sizes_.tensor = std::max(sizes_.tensor, rank.tensor + 1);
      sizes_.pipeline = std::max(sizes_.pipeline, rank.pipeline + 1);
      sizes_.expert = std::max(sizes_.expert, rank.expert + 1);
    }
  }

  /// The path inside a file, without folder and stem.
  std::string_view path_in_file(std::uint32_t tensor) const {
    std::string_view path = metadata_.tensors[tensor].key;
    const File& file = files_[metadata_.tensors[tensor].places.front().file];
    if (path.starts_with("mp_rank_")) path.remove_prefix(path.find('/') + 1);
    if (path.starts_with(file.stem + ".") && !is_main(file))
      path.remove_prefix(file.stem.size() + 1);
    return path;
  }
  static bool is_main(const File& file) {
    return file.stem == "model_optim_rng" || file.stem == "model_rng";
  }

  /// "model.K" or "model1.K" → 1 and K
  static std::optional<std::pair<std::int64_t, std::string_view>> model_path(
      std::string_view path) {
    constexpr std::string_view kModel = "model";
    const std::size_t dot = path.find('.');
    if (!path.starts_with(kModel) || dot == std::string_view::npos) return std::nullopt;
    const std::string_view number = path.substr(kModel.size(), dot - kModel.size());
    if (number.size() > 4 || number.find_first_not_of("0123456789") != std::string_view::npos)
      return std::nullopt;
    return std::pair{number.empty() ? 0 : std::stoll(std::string(number)), path.substr(dot + 1)};
  }

  void collect_parameters() {
    bool fused_norms = false;
    bool fused_qkv = false;
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      fused_norms |= tensor.key.find(".linear_qkv.layer_norm_weight") != std::string::npos;
      fused_qkv |= tensor.key.find(".linear_qkv.weight") != std::string::npos ||
                   tensor.key.find(".query_key_value.weight") != std::string::npos;
    }
    local_norms_ = fused_qkv && !fused_norms;
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const File& file = files_[metadata_.tensors[i].places.front().file];
      const auto path = is_main(file) ? model_path(path_in_file(i)) : std::nullopt;
      if (!path || path->second.ends_with(kExtraState)) continue;
      parameters_.push_back(
          {i, file.rank, path->first, parse_model_key(path->second, local_norms_)});
    }
  }

  void warn_of_other_files() const {
    std::set<std::string> stems;
    for (const File& file : files_) {
      if (!is_main(file) && file.stem != "distrib_optim") stems.insert(file.stem);
    }
    for (const std::string& stem : stems)
      log_warning(
          str_format("what the ranks' files {}.pt hold is left out when the ranks are joined; "
                     "each can be opened by its own path",
                     stem));
  }

  /// Stages hold consecutive layers; the chunks of a virtual pipeline go round the stages.
  void number_layers() {
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
    const auto wanted = run_arg(args_, "num_layers");
    if (wanted && layers_ > 0 && *wanted != layers_)
      throw CheckpointError(
          ErrorCode::kCorrupt,
          str_format("the ranks hold {} layers, but their args say num_layers: {}", layers_,
                     *wanted));
    for (LocalParameter& parameter : parameters_) {
      if (parameter.key.layer)
        *parameter.key.layer += first_layer_.at({parameter.chunk, parameter.rank.pipeline});
    }
  }

  void number_experts() {
    for (const LocalParameter& parameter : parameters_) {
      if (parameter.key.expert)
        local_experts_ = std::max(local_experts_, *parameter.key.expert + 1);
    }
    for (LocalParameter& parameter : parameters_) {
      if (parameter.key.expert) *parameter.key.expert += parameter.rank.expert * local_experts_;
    }
  }

  /// Parts of one key; what other ranks hold a copy of is left out.
  void group() {
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

  /// Ranks of one stage hold copies of what they do not share out, and the last stage holds one of
  /// the embeddings; everything else that gets the same key is another parameter.
  void require_copy(const LocalParameter& first, const LocalParameter& other) const {
    const bool one_stage = first.rank.pipeline == other.rank.pipeline &&
                           first.chunk == other.chunk && first.rank != other.rank;
    if (one_stage || first.key.name.starts_with("embedding.")) return;
    fail(ErrorCode::kUnsupported,
         str_format(
             "this parameter and {} would both be {} in the joined checkpoint; models of this "
             "kind are not joined, but each rank's file can be opened by its own path",
             quote(metadata_.tensors[first.tensor].key), quote(first.key.name)),
         other.tensor);
  }

  void require_known_experts(const LocalParameter& parameter) const {
    const std::string& name = parameter.key.name;
    if (name.ends_with(".experts.weight1") || name.ends_with(".experts.weight2"))
      fail(ErrorCode::kUnsupported,
           "the experts of GroupedMLP lie in one matrix, which is not taken apart",
           parameter.tensor);
    if (!parameter.key.expert) return;
    const auto share = run_arg(args_, "expert_tensor_parallel_size").value_or(sizes_.tensor);
    if (share != sizes_.tensor)
      fail(
          ErrorCode::kUnsupported,
          str_format("experts are shared by {} tensor-parallel ranks, other parameters by {}; such "
                     "ranks are not joined",
                     share, sizes_.tensor),
          parameter.tensor);
    if (args_ == nullptr && ambiguous_folders_)
      fail(
          ErrorCode::kUnsupported,
          "without args, the second number of the folders may be that of a pipeline stage or of an "
          "expert-parallel rank",
          parameter.tensor);
  }

  /// The last stage's copy of embeddings that are also the output layer.
  bool is_tied_copy(const LocalParameter& parameter) const {
    const Value* const untie =
        args_ == nullptr ? nullptr : args_->find("untie_embeddings_and_output_weights");
    const bool untied = untie != nullptr && *untie == Value(true);
    return parameter.key.name.starts_with("word_embeddings_for_head.") ||
           (!untied && args_ != nullptr && parameter.key.name == "output_layer.weight");
  }

  TensorParallel split_of(const LocalParameter& parameter) const {
    const auto split = tensor_parallel(parameter.key.name);
    if (split) return *split;
    if (sizes_.tensor > 1)
      fail(ErrorCode::kUnsupported,
           str_format("how {} tensor-parallel ranks share this parameter is not known; the files "
                      "can be opened one by one by their own paths",
                      sizes_.tensor),
           parameter.tensor);
    return TensorParallel::kReplicated;
  }

  const Shape& shape(const LocalParameter& parameter) const {
    return metadata_.tensors[parameter.tensor].size;
  }

  /// Whether fc1 holds gate and up rows: twice as many as fc2 has columns.
  bool is_gated(const LocalParameter& parameter) const {
    const std::size_t fc1 = parameter.key.name.find(".linear_fc1.");
    if (fc1 == std::string::npos || parameter.key.name.find("norm", fc1) != std::string::npos)
      return false;
    const auto fc2 = groups_.find(parameter.key.name.substr(0, fc1) + ".linear_fc2.weight");
    if (fc2 == groups_.end()) return false;
    for (const LocalParameter* const other : fc2->second) {
      if (other->key.layer == parameter.key.layer && other->key.expert == parameter.key.expert &&
          shape(*other).size() == 2)
        return shape(parameter).front() == 2 * shape(*other)[1];
    }
    return false;
  }

  /// A piece of a rank's parameter: rows [from, from + count), which become those from `to` on of
  /// the whole one.
  struct Rows {
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::int64_t count = 0;
  };

  /// 0 where it is absent.
  double checkpoint_version() const {
    const Value* const stored = state(main_).find("checkpoint_version");
    if (stored == nullptr || stored->is_none()) return 0;
    if (!stored->is_int() && !stored->is(Value::Kind::kFloat))
      throw CheckpointError(ErrorCode::kCorrupt, "checkpoint_version is not a number",
                            {.file = ranks_.storage().display_path(metadata_.files[main_])});
    return stored->as_float();
  }

  /// The rows of fused QKV in today's order: for each head those of query, key and value.
  /// Checkpoints of version 0 have all queries first, those of version 1 the three interleaved.
  std::vector<Rows> rows_of_qkv(const LocalParameter& parameter, std::int64_t offset) const {
    const std::int64_t rows = shape(parameter).front();
    const double version = checkpoint_version();
    if (version >= 2 || numel(shape(parameter)) == 0) return {{0, offset, rows}};
    if (version >= 1 && rows > kMaxQkvRows)
      fail(ErrorCode::kUnsupported,
           str_format(
               "fused QKV of checkpoint_version {} has {} rows, more than {} are not reordered",
               version, rows, kMaxQkvRows),
           parameter.tensor);
    const auto heads = run_arg(args_, "num_attention_heads").value_or(0) / sizes_.tensor;
    if (heads < 1 || heads > rows || rows % (3 * heads) != 0)
      fail(ErrorCode::kUnsupported,
           str_format("fused QKV of checkpoint_version {} is to be reordered, but its {} rows are "
                      "not three times those of {} heads",
                      version, rows, heads),
           parameter.tensor);
    const std::int64_t size = rows / (3 * heads);
    std::vector<Rows> parts;
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t which = 0; which < 3; ++which) {
        const std::int64_t to = offset + (head * 3 + which) * size;
        if (version < 1) {
          parts.push_back({(which * heads + head) * size, to, size});
        } else {
          for (std::int64_t row = 0; row < size; ++row)
            parts.push_back({(head * size + row) * 3 + which, to + row, 1});
        }
      }
    }
    return parts;
  }

  std::vector<Rows> rows_of(const LocalParameter& parameter, TensorParallel split) const {
    if (shape(parameter).empty()) return {{0, 0, 1}};
    const std::int64_t rows = shape(parameter).front();
    if (split != TensorParallel::kRows) return {{0, 0, rows}};
    const std::int64_t rank = parameter.rank.tensor;
    if (parameter.key.name.find(".linear_qkv.") != std::string::npos)
      return rows_of_qkv(parameter, rank * rows);
    if (is_gated(parameter)) {
      const std::int64_t half = rows / 2;
      return {{0, rank * half, half}, {half, (sizes_.tensor + rank) * half, half}};
    }
    return {{0, rank * rows, rows}};
  }

  /// The tensor that `parts` make up; `range`: where their elements are, if not in their own place.
  template <typename Range>
  RearrangedTensor joined(std::string key, const std::vector<const LocalParameter*>& parts,
                          bool stack, Range&& range) const {
    const LocalParameter& first = *parts.front();
    const TensorParallel split = split_of(first);
    RearrangedTensor made{.key = std::move(key), .properties = {}, .size = {}, .parts = {}};
    if (stack) made.size.push_back(layers_);
    if (first.key.expert) made.size.push_back(local_experts_ * sizes_.expert);
    const std::size_t leading = made.size.size();
    for (const std::int64_t extent : shape(first)) made.size.push_back(extent);
    if (split != TensorParallel::kReplicated) {
      const std::size_t axis = split == TensorParallel::kRows ? 0 : 1;
      if (shape(first).size() <= axis)
        fail(ErrorCode::kCorrupt, "the parameter has too few axes", first.tensor);
      const auto extent = checked_mul(made.size[leading + axis], sizes_.tensor);
      if (!extent || extent > std::numeric_limits<std::int64_t>::max() / 2)
        fail(ErrorCode::kCorrupt, "the parameter is too large", first.tensor);
      made.size[leading + axis] = *extent;
    }
    for (const LocalParameter* const part : parts) {
      if (shape(*part) != shape(first))
        fail(ErrorCode::kCorrupt,
             str_format("the ranks' parts differ: this has the shape {}, {} has {}",
                        to_string(shape(*part)), quote(metadata_.tensors[first.tensor].key),
                        to_string(shape(first))),
             part->tensor);
      Box target{Shape(leading, 0), Shape(leading, 1)};
      if (stack) target.offsets[0] = *part->key.layer;
      if (part->key.expert) target.offsets[leading - 1] = *part->key.expert;
      for (const std::int64_t extent : shape(*part)) {
        target.offsets.push_back(0);
        target.sizes.push_back(extent);
      }
      if (split == TensorParallel::kColumns)
        target.offsets[leading + 1] = part->rank.tensor * shape(*part)[1];
      for (const Rows& rows : rows_of(*part, split)) {
        Box box = target;
        Box source = whole(shape(*part));
        if (!shape(*part).empty()) {
          box.offsets[leading] = rows.to;
          box.sizes[leading] = rows.count;
          source.offsets[0] = rows.from;
          source.sizes[0] = rows.count;
        }
        made.parts.push_back(range(*part, std::move(box), std::move(source), leading));
      }
    }
    made.properties = metadata_.tensors[made.parts.front().tensor].properties;
    made.properties.requires_grad = false;
    return made;
  }

  /// Calls visit(key, parts, stack) for every whole tensor.
  template <typename Visit>
  void for_each_tensor(Visit&& visit) const {
    constexpr std::string_view kLayers = "decoder.layers.";
    for (const std::string& name : order_) {
      const auto& parts = groups_.at(name);
      if (!parts.front()->key.layer || homogeneous_) {
        visit(name, parts, parts.front()->key.layer.has_value());
        continue;
      }
      std::map<std::int64_t, std::vector<const LocalParameter*>> layers;
      for (const LocalParameter* const part : parts) layers[*part->key.layer].push_back(part);
      for (const auto& [layer, of_layer] : layers) {
        std::string key = name;
        key.insert(kLayers.size(), std::to_string(layer) + ".");
        visit(key, of_layer, false);
      }
    }
  }

  void add_model() {
    for_each_tensor([&](const std::string& key, const auto& parts, bool stack) {
      contents_.tensors.push_back(
          joined(key, parts, stack,
                 [](const LocalParameter& part, Box target, Box source, std::size_t leading) {
                   TensorPart made{.target = std::move(target),
                                   .tensor = part.tensor,
                                   .source = std::move(source),
                                   .axes = std::vector<std::int32_t>(leading, kNoAxis)};
                   for (std::size_t axis = 0; axis < made.source.dims(); ++axis)
                     made.axes.push_back(static_cast<std::int32_t>(axis));
                   return made;
                 }));
    });
  }

  // The distributed optimizer.

  /// State tensors of one buffer of one rank: name → its buckets, in order.
  using BufferState = std::map<std::string, std::vector<std::uint32_t>>;

  /// Whether the parameter, of an expert or not, has its state in the buffer.
  bool in_buffer(const LocalParameter& parameter, const BufferKey& buffer, std::int64_t chunk,
                 bool experts) const {
    const std::string_view dtype = to_string(metadata_.tensors[parameter.tensor].properties.dtype);
    const std::string torch_dtype = "torch." + std::string(dtype);
    // Before 2024 the key is the dtype of gradients alone.
    const bool same =
        buffer.dtypes.front() != '(' || buffer.dtypes.substr(1).starts_with(torch_dtype + ",");
    return same && parameter.key.expert.has_value() == experts && parameter.chunk == chunk;
  }

  void add_optimizer() {
    std::map<std::pair<Rank, BufferKey>, BufferState> buffers;
    std::set<std::int64_t> chains;
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const File& file = files_[metadata_.tensors[i].places.front().file];
      if (file.stem != "distrib_optim") continue;
      const auto key = parse_buffer_key(path_in_file(i));
      if (!key || metadata_.tensors[i].size.size() != 1)
        fail(ErrorCode::kUnsupported, "this is not state of a gradient buffer", i);
      BufferKey buffer = *key;
      buffer.name.clear();
      buffer.bucket = 0;
      buffers[{file.rank, buffer}][key->name].push_back(i);
      chains.insert(key->chain);
    }
    if (buffers.empty()) return;
    const bool experts = std::ranges::any_of(parameters_, [](const LocalParameter& parameter) {
      return parameter.key.expert.has_value();
    });
    if (chains.size() > 2 || (experts && chains.size() != 2))
      throw CheckpointError(ErrorCode::kUnsupported,
                            "the state of a chain of optimizers other than one for dense and one "
                            "for expert parameters cannot be joined");
    for (const auto& [place, state] : buffers) {
      const auto& [rank, buffer] = place;
      // Buffers of one dtype are those of the chunks, in order.
      std::int64_t chunk = 0;
      for (const auto& [other, unused] : buffers) {
        const BufferKey& key = other.second;
        if (other.first == rank && key.chain == buffer.chain && key.dtypes == buffer.dtypes &&
            key.buffer < buffer.buffer)
          ++chunk;
      }
      std::vector<const LocalParameter*> parameters;
      for (const LocalParameter& parameter : parameters_) {
        if (parameter.rank == rank &&
            in_buffer(parameter, buffer, chunk, experts && buffer.chain == *chains.rbegin()))
          parameters.push_back(&parameter);
      }
      for (const auto& [name, buckets] : state) place_parameters(parameters, name, buckets);
    }
    std::vector<std::string> names;
    for (const auto& [name, ranges] : ranges_) names.push_back(name);
    for (const std::string& name : names) add_optimizer_state(name);
    has_optimizer_ = true;
  }

  void place_parameters(const std::vector<const LocalParameter*>& parameters,
                        const std::string& name, const std::vector<std::uint32_t>& buckets) {
    std::vector<std::int64_t> sizes;
    for (const LocalParameter* const parameter : parameters)
      sizes.push_back(numel(shape(*parameter)));
    std::vector<std::int64_t> lengths;
    for (const std::uint32_t bucket : buckets) lengths.push_back(length(bucket));
    const std::vector<BufferPosition> places = with_context(
        {.key = metadata_.tensors[buckets.back()].key},
        [&] { return place_in_buffer(sizes, lengths, most_padding(buckets.front())); });
    for (std::size_t i = 0; i < parameters.size(); ++i)
      ranges_[name][parameters[i]] = {buckets[places[i].bucket], places[i].begin};
  }

  /// At the end of a bucket: none where buckets were joined (since April 2024), else up to what
  /// makes them divisible by the data-parallel ranks.
  std::int64_t most_padding(std::uint32_t bucket) const {
    const Value& file = state(metadata_.tensors[bucket].places.front().file);
    if (file.is_dict() && file.find("buckets_coalesced") != nullptr) return 0;
    const std::int64_t ranks = run_arg(args_, "data_parallel_size").value_or(1);
    return std::clamp<std::int64_t>(ranks, 1, std::int64_t{1} << 20) * 128 - 1;
  }

  std::int64_t length(std::uint32_t tensor) const { return metadata_.tensors[tensor].size.front(); }

  void add_optimizer_state(const std::string& name) {
    const auto& ranges = ranges_.at(name);
    for_each_tensor([&](const std::string& key, const auto& parts, bool stack) {
      if (std::ranges::none_of(parts, [&](const auto* part) { return ranges.contains(part); }))
        return;
      contents_.tensors.push_back(joined(
          str_format("optimizer.state.{}.{}", name == "param" ? "fp32_param" : name, key), parts,
          stack, [&](const LocalParameter& part, Box target, Box source, std::size_t) {
            const auto found = ranges.find(&part);
            if (found == ranges.end())
              fail(ErrorCode::kCorrupt,
                   str_format("the rank has no optimizer state {} of it", name), part.tensor);
            const BufferRange& range = found->second;
            std::int64_t begin = range.begin;
            if (source.dims() > 0)
              begin += source.offsets[0] *
                       (numel(shape(part)) / std::max<std::int64_t>(shape(part)[0], 1));
            const std::int64_t count = numel(source.sizes);
            return TensorPart{.elements = TensorPart::Elements::kInOrder,
                              .target = std::move(target),
                              .tensor = range.tensor,
                              .source = {{begin}, {count}}};
          }));
    });
  }

  // Everything that is not a tensor.

  void add_objects() {
    std::set<std::string> keys;
    std::size_t rng_states_left_out = 0;
    const auto add = [&](std::string key, Value value) {
      if (keys.insert(key).second)
        contents_.objects.push_back({.key = std::move(key), .value = std::move(value)});
    };
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!is_main(files_[i]) || !state(i).is_dict()) continue;
      const Rank& rank = files_[i].rank;
      const TorchState loaded = load(i);
      for (const auto& [name, value] : loaded.state.as_dict()) {
        if (!name.is_str()) continue;
        const auto model = model_path(name.as_str() + ".");
        const auto* const entries = model ? mapping_items(value) : nullptr;
        if (entries == nullptr) continue;
        for (const auto& [path, extra] : *entries) {
          if (!path.is_str() || !path.as_str().ends_with(kExtraState)) continue;
          ModelKey key = parse_model_key(path.as_str(), local_norms_);
          if (rank.tensor == 0)
            add(extra_state_key(std::move(key), model->first, rank), with_tensors(loaded, extra));
        }
      }
      if (state(i).find("rng_state") == nullptr) continue;
      if (rank.expert > 0)
        ++rng_states_left_out;
      else
        add(str_format("rng_state/shard_{}.{}_{}.{}", rank.pipeline, rank.tensor, sizes_.pipeline,
                       sizes_.tensor),
            with_tensors(loaded, loaded.state.at("rng_state")));
    }
    if (rng_states_left_out > 0)
      log_warning(
          str_format("rng_state of {} folders is left out: there is one for each tensor and "
                     "pipeline rank, that of the first expert-parallel rank",
                     rng_states_left_out));
  }

  std::string extra_state_key(ModelKey key, std::int64_t chunk, const Rank& rank) const {
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> counts;
    if (key.layer) {
      const auto first = first_layer_.find({chunk, rank.pipeline});
      const std::int64_t layer = *key.layer + (first == first_layer_.end() ? 0 : first->second);
      if (homogeneous_) {
        offsets.push_back(layer);
        counts.push_back(layers_);
      } else {
        key.name.insert(std::string_view("decoder.layers.").size(), std::to_string(layer) + ".");
      }
    }
    if (key.expert) {
      offsets.push_back(*key.expert + rank.expert * local_experts_);
      counts.push_back(local_experts_ * sizes_.expert);
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

  /// A file's state, and what its tensors are read from.
  struct TorchState {
    std::unique_ptr<ReadableFile> file;
    std::vector<RecordedCrc> records{};
    Value state{};
  };
  TorchState load(std::size_t index) const {
    TorchState loaded{.file = ranks_.storage().open(metadata_.files[index])};
    loaded.state = load_torch_file(*loaded.file, {.lazy = true, .records = &loaded.records});
    std::ranges::sort(loaded.records, {}, &RecordedCrc::offset);
    return loaded;
  }
  static Value with_tensors(const TorchState& loaded, const Value& part) {
    return replace_tensors(part, [&](const Tensor& tensor) {
      return read_lazy_tensor(tensor, *loaded.file, loaded.records);
    });
  }

  /// What the first rank has besides its model and RNG states; in the form of distributed
  /// checkpoints.
  Value common() const {
    Value made = Value::dict();
    const TorchState loaded = load(main_);
    for (const auto& [name, value] : loaded.state.as_dict()) {
      const bool elsewhere =
          name.is_str() && (model_path(name.as_str() + ".") || name.as_str() == "rng_state" ||
                            (name.as_str() == "optimizer" && !has_optimizer_));
      if (!elsewhere) made.mutable_dict().set(name, with_tensors(loaded, value));
    }
    if (!has_optimizer_) {
      if (state(main_).find("optimizer") != nullptr)
        log_warning(
            "the optimizer's state is left out: it is not that of Megatron's distributed "
            "optimizer, "
            "and which of its tensors belongs to which parameter is not stored");
      return made;
    }
    const Value sharding("fully_sharded_model_space");
    Value& optimizer = made["optimizer"];
    if (optimizer.is_list()) {  // a chain
      Value members = Value::dict();
      for (std::size_t i = 0; i < optimizer.items().size(); ++i)
        members.mutable_dict().set(i, optimizer.items()[i]);
      optimizer = members;
      for (std::size_t i = 0; i < optimizer.size(); ++i)
        optimizer.mutable_dict().value_at(i).mutable_dict().set("param_state_sharding_type",
                                                                sharding);
    } else {
      optimizer.mutable_dict().set("param_state_sharding_type", sharding);
    }
    made["content_metadata"] = Value::dict({{"distrib_optim_sharding_type", sharding},
                                            {"singleton_local_shards", false},
                                            {"chained_optim_avoid_prefix", true}});
    return made;
  }

  const CheckpointReader& ranks_;
  const Metadata& metadata_;
  const Value states_;
  const Value* args_ = nullptr;
  std::size_t main_ = 0;     // file that the common state is from
  std::vector<File> files_;  // of the metadata, same order
  Rank sizes_{1, 1, 1};
  bool ambiguous_folders_ = false;  // of two numbers, whose meaning args would tell
  bool local_norms_ = false;
  std::vector<LocalParameter> parameters_;  // in the order of the files
  std::int64_t layers_ = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> first_layer_;  // by chunk and stage
  std::int64_t local_experts_ = 0;
  bool homogeneous_ = true;
  std::vector<std::string> order_;
  std::map<std::string, std::vector<const LocalParameter*>> groups_;
  std::map<std::string, std::map<const LocalParameter*, BufferRange>> ranges_;  // by state's name
  bool has_optimizer_ = false;
  RearrangedContents contents_;
};

}  // namespace

std::unique_ptr<CheckpointReader> join_ranks(std::unique_ptr<CheckpointReader> ranks) {
  std::optional<RearrangedContents> contents = Join(*ranks).run();
  return contents ? rearranged_reader(std::move(ranks), *std::move(contents)) : std::move(ranks);
}

}  // namespace dckpt
