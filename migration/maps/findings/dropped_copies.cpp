#include "migration/maps/findings/dropped_copies.h"

#include <algorithm>
#include <map>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::int64_t kBytesCompared = std::int64_t{32} << 20;  // at a time

bool are_equal(const CheckpointReader& reader, const TensorStorageMetadata& a,
               const TensorStorageMetadata& b) {
  const Shape& shape = a.global_shape();
  if (shape != b.global_shape() || a.properties.dtype != b.properties.dtype) return false;
  const auto position = [&](const TensorStorageMetadata& tensor) {
    return static_cast<std::size_t>(&tensor - reader.metadata().tensors.data());
  };
  const std::int64_t row =
      static_cast<std::int64_t>(a.nbytes()) / std::max<std::int64_t>(shape[0], 1);
  const std::int64_t step =
      std::max<std::int64_t>(kBytesCompared / std::max<std::int64_t>(row, 1), 1);
  for (std::int64_t first = 0; first < shape[0]; first += step) {
    Box rows = whole(shape);
    rows.offsets[0] = first;
    rows.sizes[0] = std::min(step, shape[0] - first);
    const Tensor one = read_box(reader, position(a), rows),
                 other = read_box(reader, position(b), rows);
    if (!std::ranges::equal(one.bytes(), other.bytes())) return false;
  }
  return true;
}

}  // namespace

DroppedCopies dropped_copies(const KeyMap& map, const MappedKeys& keys, const Metadata& source) {
  DroppedCopies result{.of_megatron = map.is_megatrons()};
  if (keys.sides.from != KeyNames::kHf) return result;
  std::map<std::string, std::int64_t> originals;  // and their rows
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < keys.tensors.size(); ++i) {
    if (!has_step(map.tensors[keys.rows[i]].hf.transform, MapStep::kPadRows) ||
        keys.tensors[i].size.size() != 2)
      continue;
    columns = keys.tensors[i].size.back();
    for (const TensorPart& part : keys.tensors[i].parts) {
      if (part.elements != TensorPart::Elements::kZeros)
        originals.emplace(source.tensors[part.tensor].key,
                          source.tensors[part.tensor].global_shape()[0]);
    }
  }
  for (const AlikeKeys& group : keys.left.dropped) {
    for (const std::string& key : group.keys) {
      const TensorStorageMetadata* const tensor = source.find_tensor(key);
      const Shape shape = tensor == nullptr ? Shape() : tensor->global_shape();
      if (shape.size() == 2 && shape.back() == columns &&
          std::ranges::any_of(originals, [&](const auto& one) { return shape[0] >= one.second; }))
        result.copies.push_back(key);
    }
  }
  for (const auto& [key, rows] : originals) result.originals.push_back(key);
  return result;
}

Findings compare_copies(const CheckpointReader& source, const DroppedCopies& dropped) {
  std::vector<std::string> others;
  for (const std::string& key : dropped.copies) {
    const TensorStorageMetadata* const copy = source.metadata().find_tensor(key);
    if (copy != nullptr &&
        std::ranges::none_of(dropped.originals, [&](const std::string& original) {
          const TensorStorageMetadata* const kept = source.metadata().find_tensor(original);
          return kept != nullptr && are_equal(source, *copy, *kept);
        }))
      others.push_back(key);
  }
  if (others.empty()) return {};
  return {
      {FindingCode::kCopiesDiffer,
       str_format("dropped as {} of {}, with other values: {}; the model that is made has those "
                  "of {}. If a head has its own weights, --set tied=false keeps it{}",
                  others.size() == 1 ? "a copy" : "copies", quoted_list(dropped.originals),
                  quoted_list(others), dropped.originals.size() == 1 ? "this one" : "these",
                  dropped.of_megatron ? "; Megatron's layers for multi-token prediction share the "
                                        "model's embedding and head"
                                      : ""),
       others}};
}

}  // namespace dckpt
