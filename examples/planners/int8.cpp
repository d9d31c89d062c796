// Weights of float32 as int8, with scales as tensors of their own: `w` is stored as codes under its
// own key, and `w.scales` has a scale for each 64 columns of a row, a power of two. Any layout
// whose columns are cut at multiples of 64 can save, and any can load.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "load_planners.h"

namespace example {
namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::string_view kScales = ".scales";

std::int64_t blocks(std::int64_t columns) {
  return (columns + kBlock - 1) / kBlock;
}

/// Returns the shape of the scales of a tensor.
dckpt::Shape scales_of(dckpt::Shape shape) {
  shape.back() = blocks(shape.back());
  return shape;
}

/// Returns the scales that a box of a tensor needs.
dckpt::Box scales_of(dckpt::Box box) {
  const std::int64_t end = blocks(box.offsets.back() + box.sizes.back());
  box.offsets.back() /= kBlock;
  box.sizes.back() = box.sizes.back() == 0 ? 0 : end - box.offsets.back();
  return box;
}

/// Calls `visit(element, scale)` with positions in a box and in its scales.
template <typename Visit>
void for_each_element(const dckpt::Box& box, const Visit& visit) {
  const std::int64_t columns = box.sizes.back();
  const std::int64_t scales = scales_of(box).sizes.back();
  const std::int64_t skipped = box.offsets.back() % kBlock;
  for (std::int64_t at = 0; at < numel(box.sizes); ++at)
    visit(at, at / columns * scales + (skipped + at % columns) / kBlock);
}

/// Returns the power of two of which the largest element of each block is at most 127.
dckpt::Tensor make_scales(const dckpt::Tensor& weights, const dckpt::Box& box) {
  dckpt::Tensor scales = dckpt::Tensor::zeros(dckpt::DType::kFloat32, scales_of(box).sizes);
  float* const scale = scales.data<float>();
  const float* const weight = weights.data<float>();
  for_each_element(box, [&](std::int64_t at, std::int64_t block) {
    scale[block] = std::max(scale[block], std::abs(weight[at]));
  });
  std::for_each_n(scale, scales.numel(), [](float& largest) {
    if (largest > 0) largest = std::exp2(std::ceil(std::log2(largest / 127)));
  });
  return scales;
}

class SaveInt8 final : public dckpt::MCoreSavePlanner {
 public:
  dckpt::SavePlan create_local_plan() override {
    dckpt::SavePlan plan = MCoreSavePlanner::create_local_plan();
    dckpt::SavePlan scales;
    for (dckpt::WriteItem& item : plan) {
      if (!is_weight(item)) continue;
      const std::int64_t end = item.chunk.offsets.back() + item.chunk.sizes.back();
      if (item.chunk.offsets.back() % kBlock != 0 || (end % kBlock != 0 && end != item.size.back()))
        throw dckpt::CheckpointError(dckpt::ErrorCode::kUnsupported,
                                     "columns are cut at multiples of 64 to have whole scales",
                                     {.key = item.key});
      const dckpt::Box box = scales_of(item.chunk);
      const dckpt::Tensor& weights = lookup_tensor(item);
      // Replicas need no data, as they write nothing.
      dckpt::ShardedTensor made = dckpt::ShardedTensor::from_box(
          item.key + std::string(kScales),
          weights.has_data() ? make_scales(weights.contiguous(), item.chunk)
                             : dckpt::Tensor::meta(dckpt::DType::kFloat32, box.sizes),
          scales_of(item.size), box.offsets, {.replica_id = item.main_replica ? 0 : 1});
      std::ranges::move(add_tensor(made), std::back_inserter(scales));
      item.properties.dtype = dckpt::DType::kInt8;
      item.nbytes /= sizeof(float);
    }
    std::ranges::move(scales, std::back_inserter(plan));
    return plan;
  }

  bool resolves(const dckpt::WriteItem& item) const override {
    return item.kind == dckpt::WriteItem::Kind::kTensor &&
           item.properties.dtype == dckpt::DType::kInt8;
  }
  dckpt::Tensor resolve_tensor(const dckpt::WriteItem& item, dckpt::Tensor data) const override {
    if (data.dtype() == dckpt::DType::kInt8) return data;
    const dckpt::Tensor scales = make_scales(data, item.chunk);
    dckpt::Tensor codes = dckpt::Tensor::zeros(dckpt::DType::kInt8, data.shape());
    for_each_element(item.chunk, [&](std::int64_t at, std::int64_t block) {
      const float scale = scales.data<float>()[block];
      if (scale > 0)
        codes.data<std::int8_t>()[at] =
            static_cast<std::int8_t>(std::lround(data.data<float>()[at] / scale));
    });
    return codes;
  }

 private:
  static bool is_weight(const dckpt::WriteItem& item) {
    return item.kind == dckpt::WriteItem::Kind::kTensor && !item.key.starts_with("optimizer.") &&
           item.properties.dtype == dckpt::DType::kFloat32 && !item.flattened && !item.size.empty();
  }
};

class LoadInt8 final : public dckpt::MCoreLoadPlanner {
 public:
  std::vector<dckpt::TensorStorageMetadata> contents(const dckpt::LoadSetup& setup) const override {
    const Stored stored = stored_in(setup.metadata);
    std::vector<dckpt::TensorStorageMetadata> seen;
    for (const dckpt::TensorStorageMetadata& tensor : setup.metadata.tensors) {
      if (is_scales(stored, tensor.key)) continue;
      seen.push_back(tensor);
      if (stored.contains(tensor.key + std::string(kScales)))
        seen.back().properties.dtype = dckpt::DType::kFloat32;
    }
    return seen;
  }

  dckpt::LoadPlan create_local_plan() override {
    const Stored stored = stored_in(setup().metadata);
    dckpt::LoadPlan plan;
    for (dckpt::LoadItem& item : MCoreLoadPlanner::create_local_plan()) {
      const auto scales = stored.find(item.tensor.key + std::string(kScales));
      if (scales == stored.end() || item.wanted != dckpt::DType::kFloat32) {
        plan.push_back(std::move(item));
        continue;
      }
      const dckpt::Box box = item.tensor.global_box();
      dckpt::LoadItem its_scales = item;
      its_scales.tensor = dckpt::ShardedTensor::from_box(
          scales->second->key, dckpt::Tensor::meta(dckpt::DType::kFloat32, scales_of(box).sizes),
          scales->second->size, scales_of(box).offsets);
      ranges_[item.target] = item.tensor.flattened_range;
      item.tensor.dtype = dckpt::DType::kInt8;
      item.tensor.flattened_range.reset();  // all columns of the box, whose scales are read
      plan.push_back(std::move(item));
      plan.push_back(std::move(its_scales));
    }
    return plan;
  }

  bool resolves(const dckpt::LoadItem& item) const override {
    return ranges_.contains(item.target);
  }
  dckpt::Tensor commit_tensors(std::span<const dckpt::LoadItem> items,
                               std::vector<dckpt::Tensor> read) const override {
    const dckpt::Box box = items[0].tensor.global_box();
    dckpt::Tensor weights = dckpt::Tensor::empty(dckpt::DType::kFloat32, read[0].shape());
    for_each_element(box, [&](std::int64_t at, std::int64_t block) {
      weights.data<float>()[at] =
          static_cast<float>(read[0].data<std::int8_t>()[at]) * read[1].data<float>()[block];
    });
    const auto& range = ranges_.at(items[0].target);
    if (!range) return weights;
    return weights.view({weights.numel()}).narrow(0, range->begin, range->end - range->begin);
  }

 private:
  using Stored = std::unordered_map<std::string, const dckpt::TensorStorageMetadata*>;
  static Stored stored_in(const dckpt::Metadata& metadata) {
    Stored stored;
    for (const dckpt::TensorStorageMetadata& tensor : metadata.tensors)
      stored.emplace(tensor.key, &tensor);
    return stored;
  }
  static bool is_scales(const Stored& stored, const std::string& key) {
    return key.ends_with(kScales) && stored.contains(key.substr(0, key.size() - kScales.size()));
  }

  /// For each tensor that is made of codes and scales, the range of its box that the state has.
  std::map<std::size_t, std::optional<dckpt::FlattenedRange>> ranges_;
};

}  // namespace

void register_int8() {
  dckpt::SavePlannerEntry save =
      dckpt::save_planner_entry<SaveInt8>("int8_weights", "float32 weights as int8, with scales");
  save.read_by = "int8_weights";
  dckpt::register_planner(std::move(save));
  dckpt::register_planner(
      dckpt::load_planner_entry<LoadInt8>("int8_weights", "float32 weights from int8"));
}

}  // namespace example
