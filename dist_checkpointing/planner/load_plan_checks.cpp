#include "dist_checkpointing/planner/load_plan_checks.h"

#include <map>
#include <string>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/geometry/box.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

/// Describes the problem of an item; empty if there is none.
std::string problem_of(const LoadItem& item, std::span<const ShardedTensor> wanted,
                       const LoadPlanner& planner) {
  if (item.target >= wanted.size())
    return str_format("is for tensor {} of the state, which has {}", item.target, wanted.size());
  const ShardedTensor& target = wanted[item.target];
  if (item.tensor.key.empty()) return str_format("for {} has no key", quote(target.key));
  const Shape whole = target.data_shape();
  if (item.part && (!is_valid(*item.part) || item.part->sizes.size() != whole.size() ||
                    !fits(*item.part, whole)))
    return str_format("fills {} of the state's tensor {}, which has the shape {}",
                      to_string(*item.part), quote(target.key), to_string(whole));
  const Shape fills = part_box(item, whole).sizes;
  if (numel(fills) == 0 && numel(whole) != 0)
    return str_format("fills no elements of {}; leave it out", quote(target.key));
  if (item.wanted != target.dtype)
    return str_format("says that {} is {}, but the state has {}; leave LoadItem::wanted as it is",
                      quote(target.key), to_string(item.wanted), to_string(target.dtype));
  if (item.tensor.data_shape() == fills && item.tensor.dtype == target.dtype) return "";
  if (planner.resolves(item)) {
    return numel(item.tensor.data_shape()) == 0 && numel(fills) != 0
               ? str_format("reads no elements for {}", quote(target.key))
               : "";
  }
  if (item.tensor.data_shape() != fills)
    return str_format(
        "has the shape {}, but the state's tensor {} has {}; resolves() must accept it, and "
        "commit_tensor() make this shape",
        to_string(item.tensor.data_shape()), quote(target.key), to_string(fills));
  return str_format(
      "reads {}, but the state's tensor is {}; resolves() must accept it, and "
      "commit_tensor() convert it",
      to_string(item.tensor.dtype), to_string(target.dtype));
}

/// Checks that the items of each tensor fill all of it, and each element once; those of one part
/// are resolved together.
void check_parts(const LoadPlan& plan, std::span<const ShardedTensor> wanted,
                 const LoadPlanner& planner, ProblemList& problems) {
  std::map<std::size_t, std::vector<const LoadItem*>> by_target;
  for (const LoadItem& item : plan) by_target[item.target].push_back(&item);
  for (const auto& [target, items] : by_target) {
    const ShardedTensor& tensor = wanted[target];
    const Shape whole = tensor.data_shape();
    if (numel(whole) == 0 || (items.size() == 1 && !items[0]->part)) continue;
    TensorStorageMetadata filled{.size = whole, .chunks = BoxList(whole.size())};
    std::map<std::pair<Shape, Shape>, const LoadItem*> first_of;
    for (const LoadItem* const item : items) {
      const Box part = part_box(*item, whole);
      const auto [known, is_new] = first_of.try_emplace({part.offsets, part.sizes}, item);
      if (is_new)
        filled.chunks.push_back(part);
      else if (!planner.resolves(*item) || !planner.resolves(*known->second))
        problems.add(
            str_format("{} is for {} of {}, for which there is another item; only resolved "
                       "items make a part together",
                       quote(item->tensor.key), to_string(part), quote(tensor.key)));
    }
    for (const CoverageProblem& problem : validate_coverage(filled))
      problems.add(
          str_format("the items for {} do not fill it: {}; leave out the tensor as a whole, "
                     "or fill each of its elements once",
                     quote(tensor.key), problem.message));
  }
}

}  // namespace

void check_load_plan(const LoadPlan& plan, std::span<const ShardedTensor> wanted,
                     const LoadPlanner& planner) {
  ProblemList problems;
  for (const LoadItem& item : plan) {
    const std::string problem =
        with_context({.key = item.tensor.key}, [&] { return problem_of(item, wanted, planner); });
    if (!problem.empty()) problems.add(str_format("{} {}", quote(item.tensor.key), problem));
  }
  if (problems.empty()) check_parts(plan, wanted, planner, problems);
  problems.raise_if_any(ErrorCode::kMismatch, "the planner's plan is not of this state:");
}

Box part_box(const LoadItem& item, const Shape& whole) {
  return item.part ? *item.part : dckpt::whole(whole);
}

Tensor memory_for(const LoadPlanner& planner, const LoadItem& item) {
  const Shape shape = item.tensor.data_shape();
  Tensor memory = planner.resolve_tensor(item, shape);
  if (memory.dtype() != item.tensor.dtype || memory.shape() != shape || !memory.is_contiguous() ||
      !memory.has_data() || memory.device().kind != Device::Kind::kCpu)
    throw_error(ErrorCode::kMismatch,
                "resolve_tensor() returned {}; contiguous memory of the CPU for {} {} is due",
                to_string(memory), to_string(item.tensor.dtype), to_string(shape));
  return memory;
}

Tensor part_of(const Tensor& whole, const LoadItem& item) {
  Tensor part = whole;
  for (std::size_t axis = 0; item.part && axis < part.dim(); ++axis)
    part = part.narrow(axis, item.part->offsets[axis], item.part->sizes[axis]);
  return part;
}

void commit_part(const LoadPlanner& planner, std::span<const LoadItem> items,
                 std::vector<Tensor> read, const Tensor& into) {
  const Tensor made = planner.commit_tensors(items, std::move(read));
  if (made.dtype() != into.dtype() || made.shape() != into.shape() || !made.is_contiguous() ||
      !made.has_data() || made.device().kind != Device::Kind::kCpu)
    throw_error(ErrorCode::kMismatch,
                "commit_tensor() returned {}; {} {}, contiguous in CPU memory, is due",
                to_string(made), to_string(into.dtype()), to_string(into.shape()));
  if (made.data() != into.data())
    strided_copy(into.shape(), item_size(into.dtype()), made.data(),
                 {0, row_major_strides(into.shape())}, into.mutable_data(), {0, into.strides()});
}

}  // namespace dckpt
