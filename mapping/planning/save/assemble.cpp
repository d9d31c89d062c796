#include "mapping/planning/save/assemble.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/ownership.h"
#include "mapping/planning/validate.h"

namespace dckpt {
namespace {

/// Returns the slot of an item that has been stored.
GlobalPlan::Slot slot_of(const CollectedItems& collected, const GlobalPlan& plan,
                         std::uint32_t position) {
  const std::size_t rank = collected.rank_of(position);
  const auto number = static_cast<std::uint32_t>(position - collected.rank_begin[rank]);
  const auto found = std::ranges::lower_bound(plan.items[rank], number, {}, &AssignedItem::item);
  return plan.slots[rank][static_cast<std::size_t>(found - plan.items[rank].begin())];
}

std::uint32_t next_entry(const Metadata& metadata) {
  return static_cast<std::uint32_t>(metadata.tensors.size() + metadata.objects.size());
}

void store(const CollectedItems& collected, const ChosenItems& chosen, std::size_t rank,
           std::size_t position, AssembledPlan& assembled) {
  const CollectedItems::Item& item = collected.items[position];
  const PlannedKey& planned = collected.keys[item.key];
  std::uint32_t& stored = assembled.stored[item.key];
  Metadata& metadata = assembled.plan.metadata;
  std::vector<AssignedItem>& items = assembled.plan.items[rank];
  std::vector<GlobalPlan::Slot>& slots = assembled.plan.slots[rank];
  const auto number = static_cast<std::uint32_t>(position - collected.rank_begin[rank]);
  const auto copy = chosen.copy_of.empty()
                        ? chosen.copy_of.end()
                        : chosen.copy_of.find(static_cast<std::uint32_t>(position));
  if (copy != chosen.copy_of.end()) {
    items.push_back({number});
    slots.push_back(slot_of(collected, assembled.plan, copy->second));
    return;
  }
  if (planned.kind == WriteItem::Kind::kObject) {
    stored = static_cast<std::uint32_t>(metadata.objects.size());
    metadata.objects.push_back({planned.key, {}, next_entry(metadata)});
    items.push_back({number});
    slots.push_back({stored, 0, true});
    return;
  }
  if (stored == AssembledPlan::kNotStored) {
    stored = static_cast<std::uint32_t>(metadata.tensors.size());
    metadata.tensors.push_back({planned.key,
                                planned.properties,
                                planned.size,
                                BoxList(planned.size.size()),
                                {},
                                planned.flattened_shape,
                                next_entry(metadata)});
    metadata.tensors.back().chunks.reserve(planned.ascending ? planned.boxes.size() : 1);
    metadata.has_mcore_data |= planned.flattened_shape.has_value();
  }
  BoxList& chunks = metadata.tensors[stored].chunks;
  slots.push_back({stored, static_cast<std::uint32_t>(chunks.size()), false});
  const auto piece = chosen.pieces.empty()
                         ? chosen.pieces.end()
                         : chosen.pieces.find(static_cast<std::uint32_t>(position));
  if (piece == chosen.pieces.end()) {
    items.push_back({number});
    chunks.push_back(planned.boxes.offsets(item.box), planned.boxes.sizes(item.box));
  } else {
    const auto [begin, end] = piece->second;
    items.push_back({number, begin, end});
    chunks.push_back(piece_of(planned.boxes[item.box], begin, end));
  }
}

/// Returns torch's order of paths: it merges the paths of all ranks in a ChainMap, which begins
/// with the last one.
std::vector<GlobalPlan::Slot> path_order(const CollectedItems& collected,
                                         const AssembledPlan& assembled) {
  std::vector<GlobalPlan::Slot> order;
  std::vector<bool> seen(collected.keys.size());
  for (std::size_t rank = collected.ranks(); rank-- > 0;) {
    for (std::size_t item = collected.rank_begin[rank]; item < collected.rank_end(rank); ++item) {
      const std::uint32_t key = collected.items[item].key;
      if (seen[key]) continue;
      seen[key] = true;
      if (assembled.stored[key] != AssembledPlan::kNotStored)
        order.push_back(
            {assembled.stored[key], 0, collected.keys[key].kind == WriteItem::Kind::kObject});
    }
  }
  return order;
}

/// Checks grids of objects, also those whose objects are replicas everywhere.
void check_grids(const CollectedItems& collected, const AssembledPlan& assembled,
                 std::vector<std::string>& problems) {
  std::vector<TensorStorageMetadata> grids;  // the objects as chunks of one element each
  std::unordered_map<std::string_view, std::size_t> number;
  for (std::size_t key = 0; key < collected.keys.size(); ++key) {
    const PlannedKey& planned = collected.keys[key];
    if (planned.grid_key.empty() || planned.disagrees) continue;
    const auto [found, inserted] = number.try_emplace(planned.grid_key, grids.size());
    if (inserted)
      grids.push_back({planned.grid_key, {}, planned.size, BoxList(planned.size.size()), {}});
    TensorStorageMetadata& grid = grids[found->second];
    if (grid.size != planned.size) {
      problems.push_back(str_format("{}: its grid is {}, that of another object of {} {}",
                                    quote(planned.key), to_string(planned.size),
                                    quote(planned.grid_key), to_string(grid.size)));
    } else if (assembled.stored[key] != AssembledPlan::kNotStored) {
      grid.chunks.push_back(planned.boxes.offsets(0), planned.boxes.sizes(0));
    }
  }
  for (const PlannedKey& planned : collected.keys) {
    if (planned.kind == WriteItem::Kind::kTensor && number.contains(planned.key)) {
      problems.push_back(quote(planned.key) +
                         ": is the key of a tensor and of objects; give one of them another key");
    }
  }
  for (const TensorStorageMetadata& grid : grids) {
    const auto cells = static_cast<std::uint64_t>(numel(grid.size));
    if (grid.chunks.size() >= cells) continue;
    const std::vector<CoverageProblem> holes = validate_coverage(grid);
    problems.push_back(str_format(
        "{}: {} of {} missing{}; no rank has them as main replica", quote(grid.key),
        grouped(cells - grid.chunks.size()), counted(cells, "object is", "objects are"),
        holes.empty() || !holes.front().region
            ? ""
            : str_format(", from offset {} of the grid {}",
                         to_string(holes.front().region->offsets), to_string(grid.size))));
  }
}

std::string ownership_of(const CollectedItems& collected, const PlannedKey& planned,
                         bool any_holder, const CoverageProblem& problem) {
  std::vector<RankRegion> holdings;
  for (std::uint32_t box = 0; box < planned.boxes.size(); ++box) {
    holdings.push_back(
        {collected.rank_of(planned.items[box]), box, !planned.is_replica(box) || any_holder});
  }
  return ownership_table(planned.size, planned.boxes, holdings, problem);
}

}  // namespace

AssembledPlan assemble(const CollectedItems& collected, const ChosenItems& chosen,
                       bool with_paths) {
  AssembledPlan assembled;
  assembled.plan.items.resize(collected.ranks());
  assembled.plan.slots.resize(collected.ranks());
  assembled.stored.assign(collected.keys.size(), AssembledPlan::kNotStored);
  for (std::size_t rank = 0; rank < collected.ranks(); ++rank) {
    const std::size_t begin = collected.rank_begin[rank], end = collected.rank_end(rank);
    const auto count = static_cast<std::size_t>(
        std::count(chosen.chosen.begin() + static_cast<std::ptrdiff_t>(begin),
                   chosen.chosen.begin() + static_cast<std::ptrdiff_t>(end), std::uint8_t{1}));
    assembled.plan.items[rank].reserve(count);
    assembled.plan.slots[rank].reserve(count);
    for (std::size_t item = begin; item < end; ++item) {
      if (chosen.chosen[item] != 0) store(collected, chosen, rank, item, assembled);
    }
  }
  for (TensorStorageMetadata& tensor : assembled.plan.metadata.tensors)
    tensor.places.resize(tensor.chunks.size());
  if (with_paths) assembled.plan.path_order = path_order(collected, assembled);
  return assembled;
}

std::vector<std::string> check_coverage(const CollectedItems& collected,
                                        const AssembledPlan& assembled, bool any_holder) {
  std::vector<std::string> problems;
  check_grids(collected, assembled, problems);
  for (std::size_t key = 0; key < collected.keys.size(); ++key) {
    const PlannedKey& planned = collected.keys[key];
    if (planned.kind != WriteItem::Kind::kTensor || planned.disagrees) continue;
    const std::uint32_t stored = assembled.stored[key];
    const TensorStorageMetadata nothing{planned.key,  planned.properties,
                                        planned.size, BoxList(planned.size.size()),
                                        {},           planned.flattened_shape};
    for (const CoverageProblem& problem : validate_coverage(
             stored == AssembledPlan::kNotStored ? nothing
                                                 : assembled.plan.metadata.tensors[stored]))
      problems.push_back(str_format("{}: {}{}", quote(planned.key), problem.message,
                                    ownership_of(collected, planned, any_holder, problem)));
  }
  return problems;
}

}  // namespace dckpt
