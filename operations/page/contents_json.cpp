#include "operations/page/contents_json.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/optimizer/optimizer_buckets.h"
#include "migration/rank_folders/parameter_cut.h"
#include "operations/inspect/layer_names.h"
#include "operations/inspect/rank_of_file.h"
#include "operations/page/cuts.h"

namespace dckpt {
namespace {

/// The axes along which Megatron's ranks divide a parameter, each plus 1; 0: they do not.
struct ParallelAxes {
  std::uint64_t tensor = 0;
  std::uint64_t expert = 0;
  bool layers = false;      ///< axis 0 holds the layers
  std::uint64_t layer = 0;  ///< the layer in the key, plus 1
};

ParallelAxes parallel_axes(std::string_view key, std::size_t axes) {
  ParallelAxes split;
  if (const auto layer = layer_of(key)) split.layer = layer->number + 1;
  split.layers = split.layer == 0 && stack_of(key).has_value() && axes > 0;
  std::uint64_t first = split.layers ? 1 : 0;
  if (has_expert_axis(key) && axes > first) split.expert = ++first;
  const auto parallel = tensor_parallel(parse_rank_path(key, false).name);
  if (!parallel || *parallel == TensorParallel::kReplicated) return split;
  const std::uint64_t axis = first + (*parallel == TensorParallel::kColumns ? 1 : 0);
  if (axis < axes) split.tensor = axis + 1;
  return split;
}

/// Returns what many tensors have in common, as text: the numbers of the dtype, the size of an
/// element, the shape if the stored one differs (plus 1), the group, the optimizer's state (plus
/// 1), and the axes.
std::string kind_of(const TensorStorageMetadata& tensor, const OptimizerStateKey& parts,
                    const ParallelAxes& axes, TextTable& dtypes, TextTable& shapes,
                    TextTable& states) {
  const std::uint64_t dtype = dtypes.number_of(std::string(to_string(tensor.properties.dtype)));
  const std::uint64_t shape =
      tensor.flattened_shape ? shapes.number_of(to_string(*tensor.flattened_shape)) + 1 : 0;
  const std::string state = is_bucket_key(tensor.key) ? "bucket" : visible(parts.name);
  return str_format("{} {} {} {} {} {} {} {}", dtype, item_size(tensor.properties.dtype), shape,
                    static_cast<int>(content_group(tensor.key, false)),
                    state.empty() ? 0 : states.number_of(state) + 1, axes.tensor, axes.expert,
                    axes.layers ? 1 : 0);
}

}  // namespace

std::string visible(std::string_view name) {
  return printable(name, kLongestShown);
}

SortedTensors::SortedTensors(const Metadata& metadata)
    : tensors_(metadata.tensors), order_(tensors_.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::ranges::sort(order_, {}, [&](std::size_t i) { return std::string_view(tensors_[i].key); });
  place_of_.reserve(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) place_of_.emplace(at(i).key, i);
}

Value tensors_of(const SortedTensors& tensors) {
  NameColumn names;
  NumberColumn kind, cut, owner, model, layer;
  TextTable kinds, dtypes, shapes, states;
  CutTable cuts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = tensors.at(i);
    names.add(visible(tensor.key));
    const OptimizerStateKey parts = parse_optimizer_state_key(tensor.key);
    const ParallelAxes axes = parallel_axes(parts.model_key.empty() ? tensor.key : parts.model_key,
                                            tensor.global_shape().size());
    kind.add(kinds.number_of(kind_of(tensor, parts, axes, dtypes, shapes, states)));
    const CutTable::Cut entry = cuts.add(tensor);
    cut.add(entry.number);
    for (const std::uint32_t chunk : entry.order) owner.add(tensor.places[chunk].file);
    model.add(tensors.place_after(parts.model_key));
    layer.add(axes.layer);
  }
  return Value::dict({{"count", tensors.size()},
                      {"names", names.to_value()},
                      {"kind", kind.to_value()},
                      {"cut", cut.to_value()},
                      {"owner", owner.to_value()},
                      {"model", model.to_value()},
                      {"layer", layer.to_value()},
                      {"kinds", kinds.to_value()},
                      {"dtypes", dtypes.to_value()},
                      {"shapes", shapes.to_value()},
                      {"states", states.to_value()},
                      {"cuts", cuts.to_value()},
                      {"cuts_left_out", cuts.left_out()}});
}

Value objects_of(const Metadata& metadata) {
  NameColumn names;
  NumberColumn bytes, group;
  for (const BytesStorageMetadata& object : metadata.objects) {
    names.add(visible(object.key));
    bytes.add(object.place.length);
    group.add(static_cast<std::uint64_t>(content_group(object.key, true)));
  }
  return Value::dict({{"count", metadata.objects.size()},
                      {"names", names.to_value()},
                      {"bytes", bytes.to_value()},
                      {"group", group.to_value()}});
}

Value files_of(const PageData& page) {
  std::unordered_map<std::string_view, std::uint64_t> bytes_of, state_of;
  for (const FileSummary& file : page.files) bytes_of[file.name] = file.bytes;
  for (const std::string& name : page.data_files.missing) state_of[name] = 1;
  for (const auto& file : page.data_files.truncated) state_of[file.name] = 2;
  for (const std::string& name : page.data_files.irregular) state_of[name] = 3;
  NameColumn names;
  NumberColumn bytes, rank, state;
  std::size_t count = 0;
  const auto add = [&](const std::string& name) {
    names.add(visible(name));
    const auto size = bytes_of.find(name);
    bytes.add(size == bytes_of.end() ? 0 : size->second);
    const auto found = state_of.find(name);
    state.add(found == state_of.end() ? 0 : found->second);
    const auto of_rank = rank_of_file(name);
    rank.add(of_rank ? static_cast<std::uint64_t>(*of_rank) + 1 : 0);
    ++count;
  };
  std::ranges::for_each(page.metadata.files, add);
  const std::unordered_set<std::string_view> listed(page.metadata.files.begin(),
                                                    page.metadata.files.end());
  for (const FileSummary& file : page.files)
    if (!listed.contains(file.name)) add(file.name);
  return Value::dict({{"count", count},
                      {"data", page.metadata.files.size()},
                      {"names", names.to_value()},
                      {"bytes", bytes.to_value()},
                      {"rank", rank.to_value()},
                      {"state", state.to_value()}});
}

}  // namespace dckpt
