#include "dist_checkpointing/planner/planner_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

/// Describes the problem of an item; empty if there is none.
std::string problem_of(const WriteItem& item, const ItemSources& sources,
                       const SavePlanner& planner) {
  const bool is_object = item.kind == WriteItem::Kind::kObject;
  const std::size_t count = is_object ? sources.objects.size() : sources.tensors.size();
  if (item.key.empty()) return "has no key";
  if (item.source >= count)
    return str_format("comes from {} {}, but this rank has {}", is_object ? "object" : "tensor",
                      item.source, count);
  if (is_object) return "";
  const Tensor& tensor = sources.tensors[item.source];
  if (item.chunk.offsets.size() != item.size.size() ||
      item.chunk.sizes.size() != item.size.size() || !fits(item.chunk, item.size))
    return str_format("is the chunk {}, which is no part of the shape {}", to_string(item.chunk),
                      to_string(item.size));
  const std::int64_t elements = numel(item.chunk.sizes);
  if (item.source_begin < 0 || elements > tensor.numel() - item.source_begin)
    return str_format("takes {} from number {} on, but the tensor has {}",
                      counted(elements, "element"), item.source_begin, tensor.numel());
  const auto nbytes = static_cast<std::uint64_t>(elements) * item_size(item.properties.dtype);
  if (item.nbytes != nbytes)
    return str_format("says {} bytes, but {} elements of {} are {}", item.nbytes, elements,
                      to_string(item.properties.dtype), nbytes);
  if (item.properties.dtype != tensor.dtype() && !planner.resolves(item))
    return str_format("stores {} as {}; resolves() must accept it, and resolve_tensor() convert it",
                      to_string(tensor.dtype()), to_string(item.properties.dtype));
  return "";
}

}  // namespace

void check_local_plan(const SavePlan& plan, const ItemSources& sources,
                      const SavePlanner& planner) {
  ProblemList problems;
  std::set<std::tuple<std::uint32_t, std::int64_t>> taken;
  std::map<std::uint32_t, std::int64_t> elements;  // by source
  for (const WriteItem& item : plan) {
    std::string problem = problem_of(item, sources, planner);
    // A background save copies elements once, for the item that they belong to.
    if (problem.empty() && item.kind == WriteItem::Kind::kTensor && item.nbytes != 0 &&
        !taken.emplace(item.source, item.source_begin).second)
      problem = "takes elements that another item has taken; a state may have a tensor twice";
    if (problem.empty() && item.kind == WriteItem::Kind::kTensor)
      elements[item.source] += numel(item.chunk.sizes);
    if (!problem.empty()) problems.add(quote(item.key) + " " + problem);
  }
  std::set<std::uint32_t> told;
  for (const WriteItem& item : plan) {
    const auto found = elements.find(item.source);
    if (item.kind != WriteItem::Kind::kTensor || found == elements.end()) continue;
    const std::int64_t all = sources.tensors[item.source].numel();
    if (found->second != all && told.insert(item.source).second)
      problems.add(str_format("{} stores {} of the tensor's {}; store all, or leave out the key",
                              quote(item.key), found->second, counted(all, "element")));
  }
  problems.raise_if_any(ErrorCode::kMismatch, "the planner's local plan is not of this state:");
}

void check_finished_plan(const SavePlan& decided, const SavePlan& finished,
                         const ItemSources& sources, const SavePlanner& planner) {
  const auto as_decided = [](const WriteItem& item, const WriteItem& before) {
    WriteItem same = item;
    same.source = before.source;
    same.source_begin = before.source_begin;
    return same == before;
  };
  if (!std::ranges::equal(finished, decided, as_decided))
    throw CheckpointError(ErrorCode::kMismatch,
                          str_format("the planner's finish_plan() returned {} that are not the {} "
                                     "that were decided; only their sources may change",
                                     grouped(finished.size()), grouped(decided.size())));
  check_local_plan(finished, sources, planner);
}

}  // namespace dckpt
