#include "migration/models/combined_models.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/megatron/optimizer_keys.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/averaged_reader.h"
#include "strategies/views/converted_reader.h"
#include "strategies/views/overlaid_reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMostCompared = std::uint64_t{64} << 20;  // bytes of a tensor in memory

std::unordered_map<std::string_view, std::uint32_t> positions_of(const Metadata& metadata) {
  std::unordered_map<std::string_view, std::uint32_t> positions;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i)
    positions.emplace(metadata.tensors[i].key, static_cast<std::uint32_t>(i));
  return positions;
}

std::unordered_set<std::string> objects_of(const CheckpointReader& model) {
  std::unordered_set<std::string> keys;
  for (const BytesStorageMetadata& object : model.metadata().objects) keys.insert(object.key);
  return keys;
}

/// Reports the objects of `other` that are not among those of the first model, which alone stay.
void note_dropped(const std::unordered_set<std::string>& of_first, const OtherModel& other,
                  Findings& findings) {
  std::vector<std::string> dropped;
  for (const BytesStorageMetadata& object : other.reader->metadata().objects) {
    if (!of_first.contains(object.key)) dropped.push_back(object.key);
  }
  if (dropped.empty()) return;
  findings.push_back(
      {FindingCode::kKeysDropped,
       str_format("{} of {} {} behind, as the objects are those of the first model: {}",
                  counted(dropped.size(), "object"), quote(other.name),
                  dropped.size() == 1 ? "stays" : "stay", quoted_list(dropped, 4)),
       dropped});
}

void require_weights(double weight, const std::vector<OtherModel>& others) {
  double sum = weight;
  for (const OtherModel& other : others) sum += other.weight;
  if (std::abs(sum - 1) <= 1e-6) return;
  throw_error(ErrorCode::kInvalidArgument, "the weights of an average sum to {}, expected 1", sum);
}

/// Adds a problem if tensors that cannot be averaged differ.
void require_equal(const CheckpointReader& a, std::uint32_t in_a, const OtherModel& b,
                   std::uint32_t in_b, ProblemList& problems) {
  const TensorStorageMetadata& tensor = a.metadata().tensors[in_a];
  const DType dtype = b.reader->metadata().tensors[in_b].properties.dtype;
  if (tensor.properties.dtype != dtype)
    return problems.add(str_format("{} is {}, and {} in {}", quote(tensor.key),
                                   to_string(tensor.properties.dtype), to_string(dtype),
                                   quote(b.name)));
  if (tensor.nbytes() > kMostCompared)
    throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                "tensors of {} are not averaged; dequantize them first, or "
                "leave them out",
                to_string(dtype));
  const Box all = whole(tensor.global_shape());
  const Tensor mine = read_box(a, in_a, all), its = read_box(*b.reader, in_b, all);
  if (!std::ranges::equal(mine.bytes(), its.bytes()))
    problems.add(str_format("{} is {}, which is not averaged, and differs in {}", quote(tensor.key),
                            to_string(dtype), quote(b.name)));
}

/// Returns a key without the prefixes that writers put in front of a language model's keys.
std::string_view without_prefixes(std::string_view key) {
  constexpr std::array<std::string_view, 3> kPrefixes{"module.", "model.", "language_model."};
  const auto found = std::ranges::find_if(
      kPrefixes, [&](std::string_view prefix) { return key.starts_with(prefix); });
  return found == kPrefixes.end() ? key : without_prefixes(key.substr(found->size()));
}

/// Refuses tensors that the models before this one have under another prefix: the result would have
/// both, and readers take one of them.
void require_other_names(const Metadata& before, const OtherModel& other,
                         const std::vector<OverlaidTensor>& added) {
  std::unordered_map<std::string_view, std::string_view> keys;
  for (const TensorStorageMetadata& tensor : before.tensors)
    keys.emplace(without_prefixes(tensor.key), tensor.key);
  std::vector<std::string> twice;
  std::string theirs, known;
  for (const OverlaidTensor& tensor : added) {
    const auto found = keys.find(without_prefixes(tensor.key));
    if (found == keys.end() || is_optimizer_key(tensor.key)) continue;
    if (twice.empty()) {
      const std::size_t rest = found->first.size();
      known = found->second.substr(0, found->second.size() - rest);
      theirs = tensor.key.substr(0, tensor.key.size() - rest);
    }
    twice.push_back(tensor.key);
  }
  if (twice.empty()) return;
  throw_error(ErrorCode::kMismatch, {.file = other.name},
              "{} of this model {} in the models before it under the prefix {} in place of {}: "
              "{}; the result would have both, of which readers take one. Convert one of the "
              "models first so that the prefixes agree (rename: of a policy, or --set prefix= "
              "with a map)",
              counted(twice.size(), "tensor"), twice.size() == 1 ? "is" : "are", quote(known),
              quote(theirs), quoted_list(twice, 4));
}

/// Reports the common state of a later model, which stays behind.
void note_common_state(const OtherModel& other, Findings& findings) {
  const Value common = other.reader->common_state();
  if (!common.is_dict() || common.size() == 0) return;
  std::vector<std::string> names;
  for (const auto& [name, value] : common.as_dict()) {
    if (name.is_str()) names.push_back(name.as_str());
  }
  findings.push_back({FindingCode::kCommonStateLeftOut,
                      str_format("the common state of {} stays behind, as the result has that of "
                                 "the first model: {}",
                                 quote(other.name), quoted_list(names, 6))});
}

/// The sums of all tensors of a model.
class Average {
 public:
  Average(const CheckpointReader& first, double weight) : first_(first), weight_(weight) {}

  void add(const OtherModel& other) {
    const auto positions = positions_of(other.reader->metadata());
    std::unordered_set<std::string_view> known;
    for (std::size_t i = 0; i < first_.metadata().tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = first_.metadata().tensors[i];
      if (is_optimizer_key(tensor.key)) continue;
      known.insert(tensor.key);
      const auto found = positions.find(tensor.key);
      if (found == positions.end())
        problems_.add(str_format("{} is missing in {}", quote(tensor.key), quote(other.name)));
      else
        add(static_cast<std::uint32_t>(i), other, found->second);
    }
    for (const TensorStorageMetadata& tensor : other.reader->metadata().tensors) {
      if (!is_optimizer_key(tensor.key) && !known.contains(tensor.key))
        problems_.add(str_format("{} is only in {}", quote(tensor.key), quote(other.name)));
    }
  }

  std::map<std::uint32_t, WeightedSum> take() {
    problems_.raise_if_any(ErrorCode::kMismatch,
                           "only models with the same tensors are averaged (convert those whose "
                           "keys or padding of the vocabulary differ first):");
    return std::move(sums_);
  }

 private:
  void add(std::uint32_t position, const OtherModel& other, std::uint32_t its_position) {
    const TensorStorageMetadata& mine = first_.metadata().tensors[position];
    const TensorStorageMetadata& its = other.reader->metadata().tensors[its_position];
    if (mine.global_shape() != its.global_shape())
      return problems_.add(str_format("{} has the shape {}, and {} in {}", quote(mine.key),
                                      to_string(mine.global_shape()), to_string(its.global_shape()),
                                      quote(other.name)));
    if (mine.flattened_shape || !is_convertible(mine.properties.dtype) ||
        !is_convertible(its.properties.dtype))
      return require_equal(first_, position, other, its_position, problems_);
    WeightedSum& sum = sums_[position];
    sum.weight = weight_;
    sum.others.push_back({other.reader, its_position, other.weight});
  }

  const CheckpointReader& first_;
  const double weight_;
  std::map<std::uint32_t, WeightedSum> sums_;
  ProblemList problems_;
};

}  // namespace

View averaged_models(std::unique_ptr<CheckpointReader> first, double weight,
                     const std::vector<OtherModel>& others) {
  require_weights(weight, others);
  Average average(*first, weight);
  for (const OtherModel& other : others) average.add(other);
  std::map<std::uint32_t, WeightedSum> sums = average.take();
  View view;
  for (const OtherModel& other : others) note_dropped(objects_of(*first), other, view.findings);
  std::vector<std::string> rounded;
  for (const auto& [position, sum] : sums) {
    const TensorStorageMetadata& tensor = first->metadata().tensors[position];
    if (!comes_back(DType::kFloat32, tensor.properties.dtype)) rounded.push_back(tensor.key);
  }
  if (!rounded.empty())
    view.findings.push_back({FindingCode::kValuesRounded,
                             str_format("averages in float32 were rounded to the dtypes of the "
                                        "first model: {}",
                                        counted(rounded.size(), "tensor")),
                             rounded});
  view.reader = averaged_reader(std::move(first), std::move(sums));
  return view;
}

View with_main_parameters(std::unique_ptr<CheckpointReader> source,
                          std::shared_ptr<const CheckpointReader> same) {
  const Metadata& metadata = same->metadata();
  const auto positions = positions_of(metadata);
  std::vector<OverlaidTensor> main;
  std::unordered_set<std::string_view> replaced;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[i];
    const auto [name, model_key] = parse_optimizer_state_key(tensor.key);
    const auto weight = positions.find(model_key);
    if ((name != "param" && name != "fp32_param") || weight == positions.end()) continue;
    const Shape& shape = metadata.tensors[weight->second].global_shape();
    if (tensor.global_shape() != shape)
      throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                  "the main parameter has the shape {}, and the weight {}",
                  to_string(tensor.global_shape()), to_string(shape));
    main.push_back({std::string(model_key), i});
    replaced.insert(model_key);
  }
  if (main.empty())
    throw_error(ErrorCode::kMismatch, {.file = source->storage().display_path("")},
                "there are no main parameters in the shapes of the model: the optimizer "
                "is missing, or its state is in buckets, which convert --optimizer "
                "fully_reshardable first brings into these shapes");
  std::vector<std::string> others;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!is_optimizer_key(tensor.key) && !replaced.contains(tensor.key))
      others.push_back(tensor.key);
  }
  View view;
  if (!others.empty())
    view.findings.push_back(
        {FindingCode::kFormKept,
         str_format("{} no main parameter and stay as they are: {}",
                    counted(others.size(), "tensor has", "tensors have"), quoted_list(others)),
         others});
  view.reader = overlaid_reader(std::move(source), std::move(same), main);
  return view;
}

View joined_models(std::unique_ptr<CheckpointReader> first, const std::vector<OtherModel>& others) {
  const std::string name = first->storage().display_path("");
  const std::unordered_set<std::string> objects = objects_of(*first);
  View view{std::move(first)};
  for (const OtherModel& other : others) {
    const auto known = positions_of(view.reader->metadata());
    std::vector<OverlaidTensor> added;
    std::vector<std::string> twice;
    const std::vector<TensorStorageMetadata>& tensors = other.reader->metadata().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (objects.contains(tensors[i].key))
        throw_error(ErrorCode::kMismatch, {.key = tensors[i].key},
                    "this is an object in {} and a tensor in {}, and a "
                    "checkpoint has one of them under a key; convert one of "
                    "the two without it or under another key first",
                    quote(name), quote(other.name));
      if (known.contains(tensors[i].key))
        twice.push_back(tensors[i].key);
      else
        added.push_back({tensors[i].key, i});
    }
    if (added.empty())
      throw_error(ErrorCode::kMismatch, {.file = other.name},
                  "this model has no tensor that those before it lack, so joining it "
                  "would change nothing; leave it out");
    if (!twice.empty())
      view.findings.push_back({FindingCode::kKeysLeftOut,
                               str_format("{} of {} {} taken from a model before it: {}",
                                          counted(twice.size(), "tensor"), quote(other.name),
                                          twice.size() == 1 ? "is" : "are", quoted_list(twice, 4)),
                               twice});
    require_other_names(view.reader->metadata(), other, added);
    note_dropped(objects, other, view.findings);
    note_common_state(other, view.findings);
    view.reader = overlaid_reader(std::move(view.reader), other.reader, added);
  }
  return view;
}

}  // namespace dckpt
