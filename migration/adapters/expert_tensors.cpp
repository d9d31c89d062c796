#include "migration/adapters/expert_tensors.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

RearrangedTensor same(const Metadata& metadata, std::uint32_t position) {
  const TensorStorageMetadata& tensor = metadata.tensors[position];
  const Box all = whole(tensor.global_shape());
  return {.key = tensor.key,
          .properties = tensor.properties,
          .size = tensor.global_shape(),
          .parts = {{.target = all, .tensor = position, .source = all}}};
}

/// Returns the box of a matrix in the fused tensor.
Box place_of(const Shape& fused, std::size_t parts, std::size_t part) {
  const auto parts_of_one = static_cast<std::int64_t>(parts) / fused[0];
  const std::int64_t rows = fused[1] / parts_of_one;
  const auto at = static_cast<std::int64_t>(part);
  return {{at / parts_of_one, at % parts_of_one * rows, 0}, {1, rows, fused[2]}};
}

RearrangedContents objects_of(const Metadata& metadata) {
  RearrangedContents contents;
  for (std::size_t i = 0; i < metadata.objects.size(); ++i)
    contents.objects.push_back({metadata.objects[i].key, i});
  return contents;
}

const FusedExperts* find(const std::vector<FusedExperts>& fused, const std::string& key) {
  const auto found = std::ranges::find(fused, key, &FusedExperts::key);
  return found == fused.end() ? nullptr : &*found;
}

}  // namespace

std::unique_ptr<CheckpointReader> split_experts(std::unique_ptr<CheckpointReader> model,
                                                const std::vector<FusedExperts>& fused) {
  const Metadata& metadata = model->metadata();
  RearrangedContents contents = objects_of(metadata);
  for (const auto& path : metadata.paths) {
    if (find(fused, path.first) == nullptr) contents.paths.push_back(path);
  }
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[i];
    const FusedExperts* const one = find(fused, tensor.key);
    if (one == nullptr) {
      contents.tensors.push_back(same(metadata, i));
      continue;
    }
    for (std::size_t part = 0; part < one->parts.size(); ++part) {
      const Box source = place_of(tensor.global_shape(), one->parts.size(), part);
      const Shape size{source.sizes[1], source.sizes[2]};
      contents.tensors.push_back(
          {.key = one->parts[part],
           .properties = tensor.properties,
           .size = size,
           .parts = {{.target = whole(size), .tensor = i, .source = source, .axes = {1, 2}}}});
    }
  }
  return rearranged_reader(std::move(model), std::move(contents));
}

std::unique_ptr<CheckpointReader> join_experts(std::unique_ptr<CheckpointReader> split,
                                               const Metadata& original,
                                               const std::vector<FusedExperts>& fused) {
  const Metadata& metadata = split->metadata();
  std::unordered_map<std::string_view, std::uint32_t> open;
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i)
    open.emplace(metadata.tensors[i].key, i);
  const auto take = [&](const std::string& key) {
    const std::uint32_t position = open.at(key);
    open.erase(key);
    return position;
  };
  RearrangedContents contents = objects_of(metadata);
  contents.paths = original.paths;
  for (const TensorStorageMetadata& tensor : original.tensors) {
    const FusedExperts* const one = find(fused, tensor.key);
    if (one == nullptr) {
      contents.tensors.push_back(same(metadata, take(tensor.key)));
      continue;
    }
    RearrangedTensor joined{.key = tensor.key,
                            .properties = tensor.properties,
                            .size = tensor.global_shape(),
                            .parts = {}};
    for (std::size_t part = 0; part < one->parts.size(); ++part) {
      const Box target = place_of(joined.size, one->parts.size(), part);
      joined.parts.push_back({.target = target,
                              .tensor = take(one->parts[part]),
                              .source = whole(Shape{target.sizes[1], target.sizes[2]}),
                              .axes = {kNoAxis, 0, 1}});
    }
    contents.tensors.push_back(std::move(joined));
  }
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    if (open.contains(metadata.tensors[i].key)) contents.tensors.push_back(same(metadata, i));
  }
  return rearranged_reader(std::move(split), std::move(contents));
}

}  // namespace dckpt
