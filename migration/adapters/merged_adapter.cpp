#include "migration/adapters/merged_adapter.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "migration/adapters/expert_lora.h"
#include "migration/adapters/expert_tensors.h"
#include "migration/adapters/model_names.h"
#include "strategies/views/converted_reader.h"
#include "strategies/views/overlaid_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBias = ".bias";
constexpr std::string_view kHead = "lm_head.weight";

using Positions = std::unordered_map<std::string_view, std::size_t>;

Positions positions_of(const Metadata& metadata) {
  Positions positions;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i)
    positions.emplace(metadata.tensors[i].key, i);
  return positions;
}

/// Returns keys of the model that the adapter changes, as the adapter names them.
std::vector<std::string> keys_of(const PeftAdapter& adapter) {
  std::vector<std::string> keys;
  for (const LoraModule& module : adapter.modules)
    keys.push_back(module.path + std::string(kWeight));
  for (const WholeTensor& tensor : adapter.whole) keys.push_back(tensor.key);
  std::ranges::move(keys_of_experts(adapter), std::back_inserter(keys));
  return keys;
}

class Merge {
 public:
  /// `fused` are tensors of all experts, whose parts the base model has instead.
  Merge(std::unique_ptr<CheckpointReader> base, const PeftAdapter& adapter,
        const std::vector<FusedExperts>& fused)
      : base_(std::move(base)),
        adapter_(adapter),
        positions_(positions_of(base_->metadata())),
        names_(positions_, keys_of(adapter)),
        factors_(adapter.reader) {
    for (const FusedExperts& one : fused) {
      for (const std::string& part : one.parts) fused_of_.emplace(part, one.key);
    }
  }

  View run(std::uint64_t memory) {
    stored_turned_ = stored_turned();
    experts_turned_ = experts_turned();
    for (const WholeTensor& tensor : adapter_.whole) replace(tensor);
    for (const LoraModule& module : adapter_.modules) add(module);
    for (const ExpertLora& lora : adapter_.experts) add(lora);
    problems_.raise_if_any(ErrorCode::kMismatch, headline());
    require_complete();
    say_what_is_merged();
    auto reader = overlaid_reader(std::move(base_), adapter_.reader, whole_);
    reader = converted_reader(std::move(reader), std::move(casts_));
    return {low_rank_reader(std::move(reader), std::move(factors_).reader(), terms_, memory),
            std::move(findings_)};
  }

 private:
  const TensorStorageMetadata& of_adapter(std::size_t position) const {
    return adapter_.reader->metadata().tensors[position];
  }
  const Shape& shape_of(std::size_t position) const { return of_adapter(position).global_shape(); }

  std::string headline() const {
    const std::string& name = adapter_.config.base_model;
    return str_format("the adapter does not fit this model{}:",
                      name.empty() ? "" : str_format("; it was trained for {}", quote(name)));
  }

  const TensorStorageMetadata* find(const std::string& key) const {
    const auto found = positions_.find(key);
    return found == positions_.end() ? nullptr : &base_->metadata().tensors[found->second];
  }

  /// Returns whether a key belongs to a module that was trained as a whole.
  bool is_saved_module(const std::string& key) const {
    return std::ranges::any_of(adapter_.config.modules_to_save, [&](const std::string& module) {
      return ("." + key).find("." + module + ".") != std::string::npos;
    });
  }

  void replace(const WholeTensor& tensor) {
    const std::string key = names_(tensor.key);
    const TensorStorageMetadata& made = of_adapter(tensor.tensor);
    const TensorStorageMetadata* const stored = find(key);
    if (stored == nullptr) {
      if (tensor.key.ends_with(kHead))
        return problems_.add(str_format(
            "{}: the adapter has a head of its own, but the base model uses its embedding as head; "
            "set tie_word_embeddings to false with transformers and save the base model first",
            quote(key)));
      if (!is_saved_module(tensor.key))
        return problems_.add(str_format("{}: the base model has no such tensor", quote(key)));
      added_.push_back(key);
    } else if (stored->global_shape() != made.global_shape()) {
      return problems_.add(str_format(
          "{}: the base model has the shape {}, the adapter {}; if the vocabulary was extended, "
          "resize the base model first (resize_token_embeddings)",
          quote(key), to_string(stored->global_shape()), to_string(made.global_shape())));
    } else {
      const DType from = made.properties.dtype, to = stored->properties.dtype;
      if (from != to && (!is_convertible(from) || !is_convertible(to)))
        return problems_.add(str_format("{}: the base model has {}, the adapter {}", quote(key),
                                        to_string(to), to_string(from)));
      if (from != to) casts_[position(key)] = {.dtype = to};
      if (!comes_back(from, to)) rounded_.push_back(key);
      replaced_.push_back(key);
    }
    whole_.push_back({key, tensor.tensor});
  }

  std::uint32_t position(const std::string& key) const {
    return static_cast<std::uint32_t>(positions_.at(key));
  }

  void add(const LoraModule& module) {
    const std::string key = names_(module.path + std::string(kWeight));
    const TensorStorageMetadata* const stored = find(key);
    if (stored == nullptr)
      return problems_.add(str_format("{}: the base model has no such tensor", quote(key)));
    const Shape& a = shape_of(*module.a);
    const Shape& b = shape_of(*module.b);
    if (a.size() != 2 || b.size() != 2 || stored->global_shape().size() != 2)
      return problems_.add(
          str_format("{}: only matrices are merged here, but the base model has the shape {} and "
                     "the adapter {} and {}; merge it with PEFT",
                     quote(key), to_string(stored->global_shape()), to_string(b), to_string(a)));
    const auto rank = static_cast<double>(a[0]);
    if (a[0] != b[1] || rank != adapter_.config.rank_of(module.path))
      return problems_.add(
          str_format("{}: lora_A has the rank {} and lora_B {}, but adapter_config.json says {}",
                     quote(key), a[0], b[1], adapter_.config.rank_of(module.path)));
    if (!is_convertible(stored->properties.dtype))
      return problems_.add(
          str_format("{}: the base model has {}, to which nothing can be added; dequantize it "
                     "first",
                     quote(key), to_string(stored->properties.dtype)));
    const auto turned = is_turned(module, stored->global_shape(), Shape{b[0], a[1]});
    if (!turned)
      return problems_.add(
          str_format("{}: the base model has the shape {}, but lora_B × lora_A has {} ({} × {})",
                     quote(key), to_string(stored->global_shape()), to_string(Shape{b[0], a[1]}),
                     to_string(b), to_string(a)));
    LowRankTerm term{.tensor = position(key), .scale = adapter_.config.scale_of(module.path)};
    if (*turned) {
      term.left = LowRankFactor{*module.a, true};
      term.right = {*module.b, true};
    } else {
      term.left = LowRankFactor{*module.b, false};
      term.right = {*module.a, false};
    }
    terms_.push_back(term);
    note_rounding(*stored);
    if (module.bias) add_bias(module);
  }

  /// Returns the keys of the matrices that make up one expert's part of a parameter, row after row.
  std::vector<std::string> parts_of(const ExpertLora& lora, std::int64_t expert) const {
    const std::string slice = key_of_slice(names_(lora.path()), expert);
    if (find(slice) != nullptr) return {slice};
    std::vector<std::string> keys;
    for (const ExpertParameter& parameter : kExpertParameters) {
      for (std::size_t i = 0; parameter.name == lora.parameter && i < parameter.count; ++i)
        keys.push_back(
            names_(str_format("{}.{}.{}{}", lora.module, expert, parameter.singles[i], kWeight)));
    }
    return keys;
  }

  /// Returns the shape of one expert's part of a parameter; empty if the base model lacks it.
  Shape shape_of(const ExpertLora& lora) const {
    Shape shape;
    for (const std::string& key : parts_of(lora, 0)) {
      const TensorStorageMetadata* const part = find(key);
      if (part == nullptr || part->global_shape().size() != 2) return {};
      const Shape& rows = part->global_shape();
      shape = {rows[0] + (shape.empty() ? 0 : shape[0]), rows[1]};
    }
    return shape;
  }

  /// Returns whether the model's experts are (in, out) for PEFT, as far as shapes that are not
  /// square tell.
  std::optional<bool> experts_turned() const {
    std::set<bool> seen;
    for (const ExpertLora& lora : adapter_.experts) {
      const Shape shape = shape_of(lora);
      if (shape.empty() || lora.in == lora.out) continue;
      seen.insert(shape != Shape{lora.out, lora.in});
    }
    return seen.size() == 1 ? std::optional(*seen.begin()) : std::nullopt;
  }

  void add(const ExpertLora& lora) {
    const Shape shape = shape_of(lora);
    if (shape.empty())
      return problems_.add(
          str_format("{}: the base model has no such experts, neither in one "
                     "tensor nor each in its own, {}",
                     quote(names_(lora.path())), quote(parts_of(lora, 0).front())));
    const bool turned = experts_turned_.value_or(false);
    if ((lora.in == lora.out && !experts_turned_) ||
        shape != (turned ? Shape{lora.in, lora.out} : Shape{lora.out, lora.in}))
      return problems_.add(str_format(
          "{}: an expert of the base model has the shape {}, but lora_B × lora_A has {}{}",
          quote(names_(lora.path())), to_string(shape), to_string(Shape{lora.out, lora.in}),
          lora.in == lora.out ? ", and nothing tells whether it is transposed; merge it with PEFT"
                              : ""));
    for (std::int64_t expert = 0; expert < lora.experts; ++expert) {
      std::int64_t first = 0;
      for (const std::string& key : parts_of(lora, expert)) {
        const TensorStorageMetadata* const part = find(key);
        if (part == nullptr)
          return problems_.add(
              str_format("{}: the adapter has {} experts, of which the base model lacks {}",
                         quote(names_(lora.path())), lora.experts, quote(key)));
        const std::int64_t count = part->global_shape().front();
        LowRankTerm term{.tensor = position(key), .scale = adapter_.config.scale_of(lora.path())};
        cut_factors(lora, {expert, first, count, turned}, factors_, term);
        terms_.push_back(term);
        note_rounding(*part);
        first += count;
      }
    }
    const std::string behind = parts_of(lora, lora.experts).front();
    if (find(behind) != nullptr)
      problems_.add(str_format("{}: the adapter has {} experts, but the base model has more, {}",
                               quote(names_(lora.path())), lora.experts, quote(shown(behind))));
  }

  /// Returns the key of the fused tensor of which a part is merged, or the key itself.
  const std::string& shown(const std::string& key) const {
    const auto fused = fused_of_.find(key);
    return fused == fused_of_.end() ? key : fused->second;
  }

  void add_bias(const LoraModule& module) {
    const std::string key = names_(module.path + std::string(kBias));
    const TensorStorageMetadata* const stored = find(key);
    const Shape& shape = shape_of(*module.bias);
    if (stored == nullptr || stored->global_shape() != shape || shape.size() != 1)
      return problems_.add(str_format(
          "{}: the adapter adds a bias of the shape {}, but the base model has {}", quote(key),
          to_string(shape), stored == nullptr ? "none" : to_string(stored->global_shape())));
    terms_.push_back({.tensor = position(key),
                      .right = {*module.bias, false},
                      .scale = adapter_.config.scale_of(module.path)});
    note_rounding(*stored);
  }

  /// Returns whether the model stores its weights as (in, out), as far as shapes that are not
  /// square tell: those of the adapter's modules or, if there are none, those with biases.
  std::optional<bool> stored_turned() const {
    std::set<bool> seen;
    for (const LoraModule& module : adapter_.modules) {
      const TensorStorageMetadata* const stored = find(names_(module.path + std::string(kWeight)));
      if (stored == nullptr || module.embedding) continue;
      const Shape& weight = stored->global_shape();
      if (weight.size() != 2 || weight[0] == weight[1] || shape_of(*module.b).size() != 2) continue;
      seen.insert(weight[0] != shape_of(*module.b)[0]);
    }
    if (!seen.empty()) return seen.size() == 1 ? std::optional(*seen.begin()) : std::nullopt;
    for (const TensorStorageMetadata& tensor : base_->metadata().tensors) {
      const Shape& weight = tensor.global_shape();
      if (weight.size() != 2 || weight[0] == weight[1] || !tensor.key.ends_with(kWeight)) continue;
      const TensorStorageMetadata* const bias =
          find(tensor.key.substr(0, tensor.key.size() - kWeight.size()) + std::string(kBias));
      if (bias != nullptr) seen.insert(bias->global_shape() != Shape{weight[0]});
    }
    return seen.size() == 1 ? std::optional(*seen.begin()) : std::nullopt;
  }

  /// Returns whether lora_B × lora_A, of the shape `product`, is the transpose of what is added;
  /// empty if neither fits. Shapes decide where they can, those of other weights for square ones,
  /// because PEFT, too, looks at the modules and corrects the flag.
  std::optional<bool> is_turned(const LoraModule& module, const Shape& weight,
                                const Shape& product) const {
    const Shape transposed{product[1], product[0]};
    if (module.embedding) return weight == transposed ? std::optional(true) : std::nullopt;
    const bool flag = stored_turned_.value_or(adapter_.config.fan_in_fan_out);
    if (weight == (flag ? transposed : product)) return flag;
    if (weight == (flag ? product : transposed)) return !flag;
    return std::nullopt;
  }

  void note_rounding(const TensorStorageMetadata& stored) {
    if (!comes_back(DType::kFloat32, stored.properties.dtype)) add_once(rounded_, stored.key);
    if (stored.properties.dtype == DType::kFloat64) add_once(in_float32_, stored.key);
  }

  /// Adds the key that people know, unless the last part of the same tensor has added it.
  void add_once(std::vector<std::string>& keys, const std::string& key) const {
    if (keys.empty() || keys.back() != shown(key)) keys.push_back(shown(key));
  }

  /// Refuses an adapter that lacks modules which adapter_config.json names and the base has: a file
  /// that was cut short would otherwise be merged in part.
  void require_complete() const {
    require_experts();
    if (adapter_.config.target_modules.empty()) return;
    std::set<std::string> there;
    for (const LoraModule& module : adapter_.modules) there.insert(module.path);
    for (const WholeTensor& tensor : adapter_.whole)
      there.insert(tensor.key.substr(0, tensor.key.rfind('.')));
    ProblemList problems;
    for (const std::string& stack : stacks()) require_stack(stack, there, problems);
    for (const std::string& target : adapter_.config.target_modules.names)
      require_target(target, there, problems);
    problems.raise_if_any(ErrorCode::kIncomplete,
                          "adapter_config.json names modules that the base model has, but the "
                          "adapter's weights lack them; was it saved completely?");
  }

  /// Returns the beginnings of the adapter's modules up to their layer: "model.layers.". A tower
  /// without any module of the adapter was not there when the adapter was trained.
  std::set<std::string> stacks() const {
    std::set<std::string> stacks;
    for (const LoraModule& module : adapter_.modules)
      stacks.insert(module.path.substr(0, end_of_stack(module.path)));
    return stacks;
  }
  /// Returns the position of the first number in a path, or its length.
  static std::size_t end_of_stack(std::string_view path) {
    for (std::size_t at = 0; at < path.size(); at = path.find('.', at) + 1) {
      if (parse_u64(path.substr(at, path.find('.', at) - at))) return at;
      if (path.find('.', at) == path.npos) break;
    }
    return path.size();
  }

  /// Does the same for fused parameters of experts.
  void require_experts() const {
    std::set<std::string> stacks, there;
    for (const ExpertLora& lora : adapter_.experts) {
      stacks.insert(lora.module.substr(0, end_of_stack(lora.module)));
      there.insert(lora.path());
    }
    ProblemList problems;
    for (const std::string& stack : stacks) {
      const std::string in_model = names_(stack);
      for (const TensorStorageMetadata& tensor : base_->metadata().tensors) {
        if (!tensor.key.starts_with(in_model)) continue;
        const std::string path = stack + tensor.key.substr(in_model.size());
        for (const ExpertParameter& parameter : kExpertParameters) {
          const std::string single = str_format(".0.{}{}", parameter.singles[0], kWeight);
          const std::string fused =
              path.ends_with(single)
                  ? str_format("{}.{}", path.substr(0, path.size() - single.size()), parameter.name)
                  : path;
          if (fused.ends_with(parameter.name) && !there.contains(fused) &&
              adapter_.config.target_parameters.has(fused))
            problems.add(quote(tensor.key));
        }
      }
    }
    problems.raise_if_any(ErrorCode::kIncomplete,
                          "adapter_config.json names parameters that the base model has, but the "
                          "adapter's weights lack them; was it saved completely?");
  }

  void require_stack(const std::string& stack, const std::set<std::string>& there,
                     ProblemList& problems) const {
    const std::string in_model = names_(stack);
    for (const TensorStorageMetadata& tensor : base_->metadata().tensors) {
      if (tensor.global_shape().size() != 2 || !tensor.key.starts_with(in_model) ||
          !tensor.key.ends_with(kWeight))
        continue;
      const std::string rest = tensor.key.substr(in_model.size());
      const std::string path = stack + rest.substr(0, rest.size() - kWeight.size());
      if (there.contains(path) || !adapter_.config.target_modules.has(path) ||
          adapter_.config.exclude_modules.has(path))
        continue;
      // transformers does not load layers for multi-token prediction behind those of the model.
      if (find(in_model + rest.substr(0, rest.find('.')) + ".eh_proj.weight") == nullptr)
        problems.add(quote(tensor.key));
    }
  }

  /// Reports a module of which the adapter has nothing in any stack.
  void require_target(const std::string& target, const std::set<std::string>& there,
                      ProblemList& problems) const {
    const ModuleSet names{.names = {target}};
    if (std::ranges::any_of(there, [&](const std::string& path) { return names.has(path); }) ||
        !problems.empty())
      return;
    for (const TensorStorageMetadata& tensor : base_->metadata().tensors) {
      if (!tensor.key.ends_with(kWeight)) continue;
      const std::string path = tensor.key.substr(0, tensor.key.size() - kWeight.size());
      if (!names.has(path) || adapter_.config.exclude_modules.has(path)) continue;
      return problems.add(str_format("{}, such as {}", quote(target), quote(tensor.key)));
    }
  }

  void say_what_is_merged() {
    std::vector<std::string> keys;
    for (const LowRankTerm& term : terms_)
      add_once(keys, base_->metadata().tensors[term.tensor].key);
    std::string message = str_format("merged the adapter into {}", counted(keys.size(), "tensor"));
    if (!replaced_.empty())
      message += str_format("; taken from the adapter as a whole: {}, {}",
                            counted(replaced_.size(), "tensor"), quoted_list(replaced_, 4));
    if (!added_.empty())
      message += str_format("; new in the model: {}, {}", counted(added_.size(), "tensor"),
                            quoted_list(added_, 4));
    if (const std::string renamed = names_.change(); !renamed.empty()) message += "; " + renamed;
    keys.insert(keys.end(), replaced_.begin(), replaced_.end());
    keys.insert(keys.end(), added_.begin(), added_.end());
    findings_.push_back({FindingCode::kAdapterMerged, std::move(message), std::move(keys)});
    if (!rounded_.empty())
      findings_.push_back(
          {FindingCode::kValuesRounded,
           str_format(
               "rounded to nearest even in the types of the base model, after sums in float32, "
               "as in PEFT's merge_and_unload: {}",
               counted(rounded_.size(), "tensor")),
           rounded_});
    if (!in_float32_.empty())
      findings_.push_back(
          {FindingCode::kValuesRounded,
           str_format("what is added to float64 tensors is computed in float32 and has its digits, "
                      "although PEFT's merge_and_unload computes it in float64 if the adapter is "
                      "loaded so: {}",
                      counted(in_float32_.size(), "tensor")),
           in_float32_});
    if (!adapter_.config.unknown.empty())
      findings_.push_back({FindingCode::kNoEffect,
                           "these fields of adapter_config.json are unknown and had no effect: " +
                               quoted_list(adapter_.config.unknown),
                           adapter_.config.unknown});
  }

  std::unique_ptr<CheckpointReader> base_;
  const PeftAdapter& adapter_;
  Positions positions_;
  NamesInModel names_;
  CutFactors factors_;
  std::map<std::string, std::string> fused_of_;  // parts and their tensors
  std::optional<bool> stored_turned_{}, experts_turned_{};
  ProblemList problems_;
  std::vector<LowRankTerm> terms_;
  std::vector<OverlaidTensor> whole_;
  std::map<std::uint32_t, ElementConversion> casts_;
  std::vector<std::string> replaced_, added_, rounded_, in_float32_;
  Findings findings_;
};

}  // namespace

View merged_adapter(std::unique_ptr<CheckpointReader> base, const PeftAdapter& adapter,
                    std::uint64_t memory) {
  const NamesInModel names(positions_of(base->metadata()), keys_of(adapter));
  const std::vector<FusedExperts> fused = fused_experts(base->metadata(), adapter, names);
  if (fused.empty()) return Merge(std::move(base), adapter, {}).run(memory);
  const Metadata original = base->metadata();
  View view = Merge(split_experts(std::move(base), fused), adapter, fused).run(memory);
  view.reader = join_experts(std::move(view.reader), original, fused);
  return view;
}

bool fits_adapter(const Metadata& base, const PeftAdapter& adapter) {
  return NamesInModel(positions_of(base), keys_of(adapter)).found() > 0;
}

}  // namespace dckpt
