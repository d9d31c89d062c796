#include "mapping/planning/save/local_plans.h"

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/save/messages.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

/// The content that a plan claims to store, and whether some rank writes it.
class Claims {
 public:
  Claims(const Metadata& metadata, bool redundant, ProblemList& problems)
      : metadata_(metadata), redundant_(redundant), problems_(problems) {
    const auto add_key = [&](const std::string& key) {
      if (!keys_.insert(key).second)
        problems_.add(quote(key) +
                      ": is in the metadata twice, and readers would find one of them");
    };
    for (const TensorStorageMetadata& tensor : metadata.tensors) {
      add_key(tensor.key);
      written_.emplace_back(tensor.chunks.size());
      if (tensor.places.size() != tensor.chunks.size())
        problems_.add(str_format("{}: has {} for {}; one for each is due", quote(tensor.key),
                                 counted(tensor.places.size(), "place"),
                                 counted(tensor.chunks.size(), "chunk")));
    }
    for (const BytesStorageMetadata& object : metadata.objects) add_key(object.key);
    objects_.resize(metadata.objects.size());
  }

  bool has(const std::string& key) const { return keys_.contains(key); }

  void add(const WriteItem& item, const AssignedItem& assigned, const GlobalPlan::Slot& slot,
           std::size_t rank) {
    const bool is_object = item.kind == WriteItem::Kind::kObject;
    const auto refuse = [&](const std::string& what) {
      problems_.add(str_format("rank {} {}: {}", rank, quote(item.key), what));
    };
    const std::size_t entries = slot.is_object ? objects_.size() : written_.size();
    if (slot.is_object != is_object || slot.entry >= entries ||
        (!is_object && slot.chunk >= written_[slot.entry].size()))
      return refuse("its slot is no entry of the metadata");
    if (is_object) {
      if (metadata_.objects[slot.entry].key != item.key)
        return refuse("its slot is the object " + quote(metadata_.objects[slot.entry].key));
      if (objects_[slot.entry] && !redundant_) return refuse("another rank writes it, too");
      objects_[slot.entry] = true;
      return;
    }
    const TensorStorageMetadata& tensor = metadata_.tensors[slot.entry];
    const Box chunk =
        assigned.end == 0 ? item.chunk : piece_of(item.chunk, assigned.begin, assigned.end);
    if (tensor.key != item.key || !(tensor.properties == item.properties) ||
        !equal(tensor.size, item.size) || tensor.flattened_shape != item.flattened_shape)
      return refuse("its slot is the tensor " + quote(tensor.key) +
                    ", or one of another dtype or shape");
    if (!(tensor.chunks[slot.chunk] == chunk))
      return refuse(str_format("writes {}, but its slot is the chunk {}", to_string(chunk),
                               to_string(tensor.chunks[slot.chunk])));
    if (written_[slot.entry][slot.chunk] && !redundant_)
      return refuse(str_format("another rank writes {}, too", to_string(chunk)));
    written_[slot.entry][slot.chunk] = true;
  }

  void finish() {
    for (std::size_t i = 0; i < written_.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      for (std::size_t chunk = 0; chunk < written_[i].size(); ++chunk) {
        if (!written_[i][chunk])
          problems_.add(str_format("{}: no rank writes its chunk {}", quote(tensor.key),
                                   to_string(tensor.chunks[chunk])));
      }
      for (const CoverageProblem& problem : validate_coverage(tensor))
        problems_.add(quote(tensor.key) + ": " + problem.message);
    }
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (!objects_[i])
        problems_.add("no rank writes the object " + quote(metadata_.objects[i].key));
    }
  }

 private:
  const Metadata& metadata_;
  const bool redundant_;
  ProblemList& problems_;
  std::unordered_set<std::string_view> keys_;
  std::vector<std::vector<bool>> written_;  ///< for each tensor, by chunk
  std::vector<bool> objects_;
};

}  // namespace

SavePlan LocalPlans::operator[](std::size_t rank) const {
  if (rank >= size())
    throw_error(ErrorCode::kInvalidArgument, "the plan of rank {} is missing; {} planned", rank,
                counted(size(), "rank has", "ranks have"));
  if (const auto* const plans = std::get_if<std::span<const SavePlan>>(&plans_))
    return (*plans)[rank];
  return with_context({.rank = static_cast<int>(rank)}, [&] {
    return decode_plan(std::get<std::span<const ByteView>>(plans_)[rank]);
  });
}

GlobalPlan create_default_global_save_plan(const LocalPlans& plans,
                                           const GlobalPlanOptions& options) {
  GlobalPlanner planner(options);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) planner.add(plans[rank]);
  return std::move(planner).finish();
}

void validate_global_plan(const GlobalPlan& plan, const LocalPlans& plans, bool redundant) {
  ProblemList problems;
  if (plan.items.size() != plans.size() || plan.slots.size() != plans.size())
    throw_error(ErrorCode::kMismatch, "the global plan is for {} with slots for {}, but {} planned",
                counted(plan.items.size(), "rank"), plan.slots.size(),
                counted(plans.size(), "has", "have"));
  Claims claims(plan.metadata, redundant, problems);
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const SavePlan local = plans[rank];
    for (const WriteItem& item : local) {
      const bool is_object = item.kind == WriteItem::Kind::kObject;
      if ((is_object ? item.main_replica : item.nbytes != 0) && !claims.has(item.key))
        problems.add(
            str_format("rank {} plans {}, which the global plan drops", rank, quote(item.key)));
    }
    if (plan.slots[rank].size() != plan.items[rank].size()) {
      problems.add(str_format("rank {} has {} and {}", rank,
                              counted(plan.items[rank].size(), "item"),
                              counted(plan.slots[rank].size(), "slot")));
      continue;
    }
    std::vector<bool> taken(local.size());
    for (std::size_t i = 0; i < plan.items[rank].size(); ++i) {
      const AssignedItem& assigned = plan.items[rank][i];
      if (assigned.item >= local.size()) {
        problems.add(str_format("rank {} shall write item {}, but has planned {}", rank,
                                assigned.item, local.size()));
      } else if (assigned.end == 0 && taken[assigned.item]) {
        problems.add(
            str_format("rank {} shall write {} twice", rank, quote(local[assigned.item].key)));
      } else {
        taken[assigned.item] = true;
        claims.add(local[assigned.item], assigned, plan.slots[rank][i], rank);
      }
    }
  }
  for (const GlobalPlan::Slot& slot : plan.path_order) {
    const std::size_t entries =
        slot.is_object ? plan.metadata.objects.size() : plan.metadata.tensors.size();
    if (slot.entry >= entries) problems.add("its order of paths names an entry that is not there");
  }
  claims.finish();
  problems.raise_if_any(ErrorCode::kMismatch, "the global plan does not fit the ranks' plans:");
}

}  // namespace dckpt
