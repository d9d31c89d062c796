#include "dist_checkpointing/planner/planner_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/state/sharded_object.h"
#include "strategies/contract/common_state.h"
#include "strategies/device/registry.h"

namespace dckpt {
namespace {

std::string cell_text(const Shape& cell, const Shape& grid) {
  return grid.empty() ? "in no grid"
                      : str_format("the cell {} of a grid {}", to_string(cell), to_string(grid));
}

/// Returns whether a key names this cell of an object of the grid.
bool names_cell(const std::string& key, const ObjectShard& object) {
  const auto named = ShardedObject::parse_unique_key(key);
  return named && equal(named->global_shape, object.grid) &&
         equal(named->global_offset, object.cell);
}

/// Compares items with the shards that their data is of.
class ItemChecks {
 public:
  ItemChecks(const ItemSources& sources, const SavePlanner& planner)
      : sources_(sources), planner_(planner) {
    for (const LocalShard& shard : sources.shards) {
      if (const auto* const object = std::get_if<ObjectShard>(&shard)) {
        objects_[object->source] = object;
        object_keys_.insert(object->key);
      } else {
        tensor_keys_.insert(std::get<TensorShard>(shard).key);
      }
    }
  }

  /// Describes the problem of an item; empty if there is none.
  std::string problem_of(const WriteItem& item) const {
    if (item.key.empty()) return "has no key";
    return item.kind == WriteItem::Kind::kObject ? problem_of_object(item)
                                                 : problem_of_tensor(item);
  }

 private:
  static std::string problem_of_origin(const WriteItem& item, std::size_t own) {
    if (item.added == (item.source >= own)) return "";
    return str_format("says that it is {}; leave WriteItem::added as it is",
                      item.added ? "added, but comes from the state" : "the state's, but is added");
  }

  std::string problem_of_object(const WriteItem& item) const {
    const auto found = objects_.find(item.source);
    if (found == objects_.end())
      return str_format("comes from object {}, but this rank has {}", item.source, objects_.size());
    if (std::string problem = problem_of_origin(item, sources_.own_objects); !problem.empty())
      return problem;
    const ObjectShard& own = *found->second;
    if (item.key != own.key) {
      if (item.key == kCommonStateKey || own.key == kCommonStateKey)
        return str_format(
            "stores {} under this key; only the common state has the key {}, and it "
            "keeps it",
            quote(own.key), quote(kCommonStateKey));
      if (object_keys_.contains(item.key) || tensor_keys_.contains(item.key))
        return str_format("stores the object {} under the key of another one of the state",
                          quote(own.key));
    }
    if (item.main_replica != own.main_replica)
      return str_format(
          "says that it is {} main replica, but the state's object {} is {}; leave "
          "WriteItem::main_replica as it is",
          item.main_replica ? "the" : "not the", quote(own.key),
          own.main_replica ? "the main one" : "another");
    if (!equal(item.size, own.grid) || !equal(item.chunk.offsets, own.cell))
      return str_format("is {}, but the state's object {} is {}",
                        cell_text(item.chunk.offsets, item.size), quote(own.key),
                        cell_text(own.cell, own.grid));
    if (!own.grid_key.empty() && !names_cell(item.key, own))
      return str_format(
          "is the key of another cell than that of the state's object {}; a new key "
          "ends as the old one does",
          quote(own.key));
    return "";
  }

  std::string problem_of_tensor(const WriteItem& item) const {
    if (item.source >= sources_.tensors.size())
      return str_format("comes from tensor {}, but this rank has {}", item.source,
                        sources_.tensors.size());
    if (std::string problem = problem_of_origin(item, sources_.own_tensors); !problem.empty())
      return problem;
    if (item.key == kCommonStateKey || object_keys_.contains(item.key))
      return "stores a tensor under the key of an object of the state";
    const Tensor& tensor = sources_.tensors[item.source];
    if (item.chunk.offsets.size() != item.size.size() ||
        item.chunk.sizes.size() != item.size.size() || !fits(item.chunk, item.size))
      return str_format("is the chunk {}, which is no part of the shape {}", to_string(item.chunk),
                        to_string(item.size));
    if (item.source_shape && !checked_numel(*item.source_shape))
      return str_format("takes elements in the shape {}, which is none",
                        to_string(*item.source_shape));
    const std::int64_t elements = item.source_count();
    if (item.source_begin < 0 || elements > tensor.numel() - item.source_begin)
      return str_format("takes {} from number {} on, but the tensor has {}",
                        counted(elements, "element"), item.source_begin, tensor.numel());
    const std::int64_t stored = numel(item.chunk.sizes);
    const auto nbytes = static_cast<std::uint64_t>(stored) * item_size(item.properties.dtype);
    if (item.nbytes != nbytes)
      return str_format("says {} bytes, but {} elements of {} are {}", item.nbytes, stored,
                        to_string(item.properties.dtype), nbytes);
    if (item.source_shape && !planner_.resolves(item))
      return str_format(
          "stores the shape {} for elements in the shape {}; resolves() must accept "
          "it, and resolve_tensor() make this shape",
          to_string(item.chunk.sizes), to_string(*item.source_shape));
    if (item.properties.dtype != tensor.dtype() && !planner_.resolves(item))
      return str_format(
          "stores {} as {}; resolves() must accept it, and resolve_tensor() convert it",
          to_string(tensor.dtype()), to_string(item.properties.dtype));
    return "";
  }

  const ItemSources& sources_;
  const SavePlanner& planner_;
  std::unordered_map<std::uint32_t, const ObjectShard*> objects_;  // by source
  std::unordered_set<std::string_view> object_keys_;
  std::unordered_set<std::string_view> tensor_keys_;
};

/// Collects the problems of single items, and of data that two items take.
void check_items(const SavePlan& plan, const ItemSources& sources, const SavePlanner& planner,
                 ProblemList& problems) {
  const ItemChecks checks(sources, planner);
  // A background save copies elements once, for the item that they belong to.
  std::set<std::tuple<WriteItem::Kind, std::uint32_t, std::int64_t>> taken;
  for (const WriteItem& item : plan) {
    std::string problem = checks.problem_of(item);
    const bool is_object = item.kind == WriteItem::Kind::kObject;
    if (problem.empty() && (is_object || item.nbytes != 0) &&
        !taken.emplace(item.kind, item.source, is_object ? 0 : item.source_begin).second)
      problem = is_object ? "takes an object that another item has taken"
                          : "takes elements that another item has taken; a state may have a tensor "
                            "twice";
    if (!problem.empty()) problems.add(quote(item.key) + " " + problem);
  }
}

/// Collects tensors of which only some elements are stored.
void check_whole_tensors(const SavePlan& plan, const ItemSources& sources, ProblemList& problems) {
  std::map<std::uint32_t, std::int64_t> elements;  // by source
  for (const WriteItem& item : plan) {
    if (item.kind == WriteItem::Kind::kTensor && item.source < sources.tensors.size())
      elements[item.source] += item.source_count();
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
}

/// Collects keys under which the planner stores the same box of different tensors: one of them
/// would be taken for a replica of the other. A state may itself have a key twice.
void check_own_boxes(const SavePlan& plan, const ItemSources& sources, ProblemList& problems) {
  std::vector<std::string_view> own(sources.tensors.size());
  for (const LocalShard& shard : sources.shards) {
    if (const auto* const tensor = std::get_if<TensorShard>(&shard))
      own[tensor->source] = tensor->key;
  }
  const auto is_renamed = [&](const WriteItem& item) {
    return item.kind == WriteItem::Kind::kTensor && item.source < own.size() &&
           own[item.source] != item.key;
  };
  if (std::ranges::none_of(plan, is_renamed)) return;
  std::map<std::tuple<std::string_view, std::string>, std::uint32_t> source_of;
  for (const bool renamed : {false, true}) {  // the ones with their own keys first
    for (const WriteItem& item : plan) {
      if (item.kind != WriteItem::Kind::kTensor || item.nbytes == 0 || item.source >= own.size() ||
          is_renamed(item) != renamed)
        continue;
      const auto [known, is_new] =
          source_of.try_emplace({item.key, to_string(item.chunk)}, item.source);
      if (renamed && !is_new && known->second != item.source)
        problems.add(str_format("{} stores {} of {} where it stores another tensor",
                                quote(item.key), to_string(item.chunk), quote(own[item.source])));
    }
  }
}

}  // namespace

void check_local_plan(const SavePlan& plan, const ItemSources& sources,
                      const SavePlanner& planner) {
  ProblemList problems;
  check_items(plan, sources, planner, problems);
  check_whole_tensors(plan, sources, problems);
  check_own_boxes(plan, sources, problems);
  problems.raise_if_any(ErrorCode::kMismatch, "the planner's local plan is not of this state:");
}

void set_grid_keys(SavePlan& plan) {
  for (WriteItem& item : plan) {
    if (item.kind != WriteItem::Kind::kObject || item.grid_key.empty()) continue;
    if (auto named = ShardedObject::parse_unique_key(item.key))
      item.grid_key = std::move(named->key);
  }
}

void check_assigned_items(const SavePlan& plan, const ItemSources& sources) {
  ProblemList problems;
  for (const WriteItem& item : plan) {
    if (item.kind == WriteItem::Kind::kObject) {
      if (sources.objects[item.source].empty())
        problems.add(quote(item.key) +
                     ": the object is without data here, and another rank has it");
      continue;
    }
    const Tensor& tensor = sources.tensors[item.source];
    if (item.nbytes == 0) continue;
    if (!tensor.has_data())
      problems.add(quote(item.key) + ": the tensor is without data here, and another rank has it");
    else if (const std::string reason = unreachable(tensor.device()); !reason.empty())
      problems.add(quote(item.key) + ": the tensor " + reason);
  }
  problems.raise_if_any(
      ErrorCode::kMismatch,
      "the global plan lets this rank write what it cannot (without save.parallel, "
      "replicas need no data; the main one writes):");
}

void check_finished_plan(const SavePlan& decided, const SavePlan& finished,
                         const ItemSources& sources, const SavePlanner& planner) {
  const auto as_decided = [](const WriteItem& item, const WriteItem& before) {
    WriteItem same = item;
    if (item.kind == WriteItem::Kind::kTensor) {
      same.source = before.source;
      same.source_begin = before.source_begin;
    }
    return same == before;
  };
  if (!std::ranges::equal(finished, decided, as_decided))
    throw_error(ErrorCode::kMismatch,
                "the planner's finish_plan() returned {} that are not the {} "
                "that were decided; only the sources of tensors may change",
                grouped(finished.size()), grouped(decided.size()));
  ProblemList problems;
  check_items(finished, sources, planner, problems);
  problems.raise_if_any(ErrorCode::kMismatch, "the planner's finished plan is not of this state:");
}

}  // namespace dckpt
