#include "mapping/planning/save_plan.h"

#include <algorithm>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/planning/reformulation.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

std::uint64_t bytes_of(std::int64_t elements, DType dtype) { return static_cast<std::uint64_t>(elements) * item_size(dtype); }

WriteItem chunk_item(const TensorShard& shard, Box chunk, std::int64_t source_begin) {
  WriteItem item;
  item.key = shard.key;
  item.source = shard.source;
  item.source_begin = source_begin;
  item.nbytes = bytes_of(numel(chunk.sizes), shard.properties.dtype);
  item.properties = shard.properties;
  item.size = shard.global_shape;
  item.chunk = std::move(chunk);
  return item;
}

void append_boxes(const TensorShard& shard, SavePlan& plan) {
  for (FlatPiece& piece : split_flat_range(shard.box.sizes, shard.range->begin, shard.range->end)) {
    for (std::size_t axis = 0; axis < shard.box.dims(); ++axis) piece.box.offsets[axis] += shard.box.offsets[axis];
    plan.push_back(chunk_item(shard, std::move(piece.box), piece.begin - shard.range->begin));
  }
}

void append_reformulated(const TensorShard& shard, SavePlan& plan) {
  if (!shard.fragmentation) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "a flattened range of an irregular grid cannot be stored in Megatron's form; use the form 'boxes', or shards of equal shape",
                          {.key = shard.key});
  }
  const Shape& grid = *shard.fragmentation;
  Box chunk;
  for (std::size_t axis = 0; axis < grid.size(); ++axis) {
    const std::int64_t cell = grid[axis] > 0 && shard.global_shape[axis] % grid[axis] == 0 ? shard.global_shape[axis] / grid[axis] : -1;
    if (cell != shard.box.sizes[axis] || cell == 0 || shard.box.offsets[axis] % cell != 0) {
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            "the grid " + to_string(grid) + " does not cut a tensor of shape " + to_string(shard.global_shape) + " into pieces like " + to_string(shard.box),
                            {.key = shard.key});
    }
    chunk.offsets.push_back(shard.box.offsets[axis] / cell);
    chunk.sizes.push_back(1);
  }
  if (shard.range->begin == shard.range->end) return;
  chunk.offsets.push_back(shard.range->begin);
  chunk.sizes.push_back(shard.range->end - shard.range->begin);
  WriteItem item = chunk_item(shard, std::move(chunk), 0);
  item.size = reformulated_size(shard.global_shape, grid);
  item.flattened_shape = shard.global_shape;
  plan.push_back(std::move(item));
}

/// What makes two items the same thing.
struct ItemIdentity {
  std::uint32_t entry = 0;
  const Box* chunk = nullptr;
  friend bool operator==(const ItemIdentity& a, const ItemIdentity& b) { return a.entry == b.entry && *a.chunk == *b.chunk; }
};

struct ItemIdentityHash {
  std::size_t operator()(const ItemIdentity& id) const noexcept {
    std::uint64_t hash = 0xcbf29ce484222325U ^ id.entry;
    const auto mix = [&](std::int64_t value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15U, hash ^= hash >> 29; };
    for (const std::int64_t offset : id.chunk->offsets) mix(offset);
    for (const std::int64_t size : id.chunk->sizes) mix(size);
    return hash;
  }
};

class GlobalPlanner {
  using Duplicates = GlobalPlanOptions::Duplicates;

 public:
  GlobalPlanner(std::span<const SavePlan> plans, const GlobalPlanOptions& options) : plans_(plans), options_(options), load_(plans.size(), 0) {}

  GlobalPlan run() {
    register_keys();
    place_items();
    collect();
    if (options_.validate) check_coverage();
    if (!problems_.empty()) {
      std::string message = "the ranks' shards do not make a checkpoint: ";
      constexpr std::size_t kShown = 20;
      for (std::size_t i = 0; i < std::min(problems_.size(), kShown); ++i) message += "\n  " + problems_[i];
      if (problems_.size() > kShown) message += "\n  … and " + grouped(problems_.size() - kShown) + " more";
      throw CheckpointError(ErrorCode::kMismatch, message);
    }
    return std::move(plan_);
  }

 private:
  struct Entry {
    const WriteItem* first = nullptr;
    std::size_t rank = 0;
    bool disagrees = false;
  };
  /// One distinct item and the ranks that hold it.
  struct Candidate {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> holders;  // rank, item
  };

  void register_keys() {
    entry_of_.resize(plans_.size());
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      for (const WriteItem& item : plans_[rank]) {
        const auto [found, inserted] = keys_.try_emplace(item.key, static_cast<std::uint32_t>(entries_.size()));
        if (inserted) {
          entries_.push_back({&item, rank});
        } else {
          compare(entries_[found->second], item, rank);
        }
        entry_of_[rank].push_back(found->second);
      }
    }
  }

  void compare(Entry& entry, const WriteItem& item, std::size_t rank) {
    const WriteItem& first = *entry.first;
    const bool same = first.kind == item.kind && (item.kind == WriteItem::Kind::kObject || (first.properties.dtype == item.properties.dtype && first.size == item.size &&
                                                                                           first.flattened_shape == item.flattened_shape));
    if (same || entry.disagrees) return;
    entry.disagrees = true;
    problems_.push_back(quoted(item.key) + ": rank " + std::to_string(entry.rank) + " holds " + describe(first) + ", rank " + std::to_string(rank) + " " + describe(item));
  }

  static std::string describe(const WriteItem& item) {
    if (item.kind == WriteItem::Kind::kObject) return "an object";
    std::string text = "a tensor " + std::string(to_string(item.properties.dtype)) + " " + to_string(item.flattened_shape ? *item.flattened_shape : item.size);
    if (item.flattened_shape) text += " (flattened, stored as " + to_string(item.size) + ")";
    return text;
  }

  /// Decides which rank writes each distinct item, in the order in which they are first met.
  void place_items() {
    std::unordered_map<ItemIdentity, std::uint32_t, ItemIdentityHash> known;
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      for (std::size_t i = 0; i < plans_[rank].size(); ++i) {
        const ItemIdentity identity{entry_of_[rank][i], &plans_[rank][i].chunk};
        const auto [found, inserted] = known.try_emplace(identity, static_cast<std::uint32_t>(candidates_.size()));
        if (inserted) candidates_.emplace_back();
        candidates_[found->second].holders.emplace_back(static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(i));
      }
    }
    plan_.items.resize(plans_.size());
    for (const Candidate& candidate : candidates_) {
      auto chosen = candidate.holders.front();
      if (options_.duplicates == Duplicates::kError && candidate.holders.size() > 1) report_duplicate(candidate);
      if (options_.duplicates == Duplicates::kBalanced) {
        for (const auto& holder : candidate.holders) {
          if (load_[holder.first] < load_[chosen.first]) chosen = holder;
        }
      }
      load_[chosen.first] += plans_[chosen.first][chosen.second].nbytes;
      plan_.items[chosen.first].push_back(chosen.second);
    }
    for (auto& items : plan_.items) {
      std::sort(items.begin(), items.end());
      items.erase(std::unique(items.begin(), items.end()), items.end());
    }
  }

  void report_duplicate(const Candidate& candidate) {
    const auto [rank, index] = candidate.holders.front();
    const WriteItem& item = plans_[rank][index];
    std::string ranks;
    for (const auto& holder : candidate.holders) ranks += (ranks.empty() ? "" : ", ") + std::to_string(holder.first);
    problems_.push_back(quoted(item.key) + ": " + (item.kind == WriteItem::Kind::kObject ? "the object" : "the part " + to_string(item.chunk)) +
                        " is a main replica on several ranks (" + ranks + "); give all but one of them another replica id");
  }

  void collect() {
    Metadata& metadata = plan_.metadata;
    std::vector<std::uint32_t> position(entries_.size(), UINT32_MAX);
    plan_.slots.resize(plans_.size());
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      for (const std::uint32_t i : plan_.items[rank]) {
        const WriteItem& item = plans_[rank][i];
        std::uint32_t& entry = position[entry_of_[rank][i]];
        const WriteItem& first = *entries_[entry_of_[rank][i]].first;
        if (first.kind != item.kind || first.size.size() != item.size.size()) continue;  // reported as a disagreement
        if (item.kind == WriteItem::Kind::kObject) {
          entry = static_cast<std::uint32_t>(metadata.objects.size());
          metadata.objects.push_back({item.key, {}});
          plan_.slots[rank].push_back({entry, 0, true});
          continue;
        }
        if (entry == UINT32_MAX) {
          entry = static_cast<std::uint32_t>(metadata.tensors.size());
          metadata.tensors.push_back({item.key, first.properties, first.size, BoxList(first.size.size()), {}, first.flattened_shape});
          metadata.has_mcore_data |= first.flattened_shape.has_value();
        }
        TensorMetadata& tensor = metadata.tensors[entry];
        plan_.slots[rank].push_back({entry, static_cast<std::uint32_t>(tensor.chunks.size()), false});
        tensor.chunks.push_back(item.chunk);
        tensor.places.emplace_back();
      }
    }
  }

  void check_coverage() {
    for (const TensorMetadata& tensor : plan_.metadata.tensors) {
      for (const auto& problem : validate_coverage(tensor)) problems_.push_back(quoted(tensor.key) + ": " + problem.message);
    }
  }

  std::span<const SavePlan> plans_;
  GlobalPlanOptions options_;
  std::vector<std::uint64_t> load_;
  std::unordered_map<std::string_view, std::uint32_t> keys_;
  std::vector<Entry> entries_;
  std::vector<std::vector<std::uint32_t>> entry_of_;
  std::vector<Candidate> candidates_;
  std::vector<std::string> problems_;
  GlobalPlan plan_;
};

}  // namespace

SavePlan plan_local_save(std::span<const TensorShard> tensors, std::span<const ObjectShard> objects, FlattenedForm form, bool only_main_replicas) {
  SavePlan plan;
  for (const ObjectShard& object : objects) {
    if (only_main_replicas && !object.main_replica) continue;
    WriteItem item;
    item.kind = WriteItem::Kind::kObject;
    item.key = object.key;
    item.source = object.source;
    item.nbytes = object.nbytes;
    plan.push_back(std::move(item));
  }
  for (const TensorShard& shard : tensors) {
    if (only_main_replicas && !shard.main_replica) continue;
    if (shard.range) {
      form == FlattenedForm::kBoxes ? append_boxes(shard, plan) : append_reformulated(shard, plan);
      continue;
    }
    if (numel(shard.box.sizes) == 0 && numel(shard.global_shape) != 0) continue;
    plan.push_back(chunk_item(shard, shard.box, 0));
  }
  return plan;
}

GlobalPlan plan_global_save(std::span<const SavePlan> plans, const GlobalPlanOptions& options) { return GlobalPlanner(plans, options).run(); }

void set_places(GlobalPlan& plan, std::span<const std::vector<Place>> places, std::span<const std::vector<std::string>> files) {
  for (std::size_t rank = 0; rank < plan.items.size(); ++rank) {
    const auto first_file = static_cast<std::uint32_t>(plan.metadata.files.size());
    plan.metadata.files.insert(plan.metadata.files.end(), files[rank].begin(), files[rank].end());
    if (places[rank].size() != plan.slots[rank].size()) {
      throw CheckpointError(ErrorCode::kIncomplete,
                            "wrote " + std::to_string(places[rank].size()) + " items, but its plan has " + std::to_string(plan.slots[rank].size()),
                            {.rank = static_cast<int>(rank)});
    }
    for (std::size_t i = 0; i < places[rank].size(); ++i) {
      const GlobalPlan::Slot& slot = plan.slots[rank][i];
      Place& place = slot.is_object ? plan.metadata.objects[slot.entry].place : plan.metadata.tensors[slot.entry].places[slot.chunk];
      place = places[rank][i];
      place.file += first_file;
    }
  }
}

}  // namespace dckpt
