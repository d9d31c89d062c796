#include "mapping/planning/save/collect.h"

#include <algorithm>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

/// Describes a key or an item.
template <typename Planned>
std::string describe(const Planned& planned) {
  const std::string_view added = planned.added ? " that its planner adds" : "";
  if (planned.kind == WriteItem::Kind::kObject)
    return (planned.size.empty() ? "an object" : "an object of a grid " + to_string(planned.size)) +
           std::string(added);
  std::string text =
      str_format("a tensor {} {}", to_string(planned.properties.dtype),
                 to_string(planned.flattened_shape ? *planned.flattened_shape : planned.size));
  if (planned.flattened)
    text += planned.flattened_shape
                ? str_format(" (flattened, stored as {})", to_string(planned.size))
                : " (flattened)";
  return text.append(added);
}

}  // namespace

std::size_t CollectedItems::rank_of(std::uint32_t item) const {
  return static_cast<std::size_t>(std::upper_bound(rank_begin.begin(), rank_begin.end(), item) -
                                  rank_begin.begin()) -
         1;
}

int compare_boxes(const BoxList& boxes, std::size_t a, std::size_t b) noexcept {
  const auto order = [](ShapeView left, ShapeView right) {
    for (std::size_t axis = 0; axis < left.size(); ++axis) {
      if (left[axis] != right[axis]) return left[axis] < right[axis] ? -1 : 1;
    }
    return 0;
  };
  const int by_offset = order(boxes.offsets(a), boxes.offsets(b));
  return by_offset != 0 ? by_offset : order(boxes.sizes(a), boxes.sizes(b));
}

void ItemCollector::add(const SavePlan& plan) {
  collected_.rank_begin.push_back(collected_.items.size());
  std::vector<std::uint32_t> numbers;
  numbers.reserve(plan.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const WriteItem& item = plan[i];
    // Ranks mostly plan the same keys in the same order.
    const bool as_before = i < previous_.size() && collected_.keys[previous_[i]].key == item.key;
    numbers.push_back(as_before ? previous_[i] : number_of(item.key));
    add_item(numbers.back(), item);
  }
  previous_ = std::move(numbers);
}

std::uint32_t ItemCollector::number_of(const std::string& key) {
  const auto [found, inserted] =
      by_key_.try_emplace(key, static_cast<std::uint32_t>(collected_.keys.size()));
  if (inserted) {
    collected_.keys.emplace_back();
    collected_.keys.back().key = key;
  }
  return found->second;
}

void ItemCollector::add_item(std::uint32_t number, const WriteItem& item) {
  PlannedKey& planned = collected_.keys[number];
  if (planned.items.empty()) {
    planned.kind = item.kind;
    planned.properties = item.properties;
    planned.size = item.size;
    planned.flattened_shape = item.flattened_shape;
    planned.flattened = item.flattened;
    planned.grid_key = item.grid_key;
    planned.added = item.added;
    planned.boxes = BoxList(item.chunk.dims());
  } else if (!planned.disagrees) {
    compare(planned, item);
  }
  const auto position = static_cast<std::uint32_t>(collected_.items.size());
  if (!planned.disagrees && !fits(item.chunk, item.size)) {
    planned.disagrees = true;
    collected_.problems.push_back(
        str_format("{}: rank {} holds the part at {} of {}, which is not inside the shape {}",
                   quote(item.key), collected_.ranks() - 1, to_string(item.chunk.offsets),
                   to_string(item.chunk.sizes), to_string(item.size)));
  }
  if (planned.disagrees) {
    if (planned.items.empty()) planned.items.push_back(position);  // the first holder
    collected_.items.push_back({number, CollectedItems::kNoBox});
    return;
  }
  const std::size_t box = planned.boxes.size();
  planned.boxes.push_back(item.chunk);
  planned.reshaped |= item.source_shape.has_value();
  planned.has_empty |= item.kind == WriteItem::Kind::kTensor && item.nbytes == 0;
  if (box > 0 && compare_boxes(planned.boxes, box - 1, box) >= 0) planned.ascending = false;
  if (!item.main_replica && planned.replicas.empty()) planned.replicas.assign(box, false);
  if (!item.main_replica || !planned.replicas.empty())
    planned.replicas.push_back(!item.main_replica);
  planned.items.push_back(position);
  collected_.items.push_back({number, static_cast<std::uint32_t>(box)});
}

void ItemCollector::compare(PlannedKey& planned, const WriteItem& item) {
  const bool both_objects =
      planned.kind == WriteItem::Kind::kObject && item.kind == WriteItem::Kind::kObject;
  const bool same =
      planned.added == item.added &&
      ((both_objects && planned.size == item.size) ||
       (!both_objects && planned.kind == item.kind &&
        planned.properties.dtype == item.properties.dtype && planned.size == item.size &&
        planned.flattened_shape == item.flattened_shape &&
        (!compare_flattened_ || planned.flattened == item.flattened)));
  if (same) return;
  planned.disagrees = true;
  const bool uneven = planned.flattened_shape && planned.flattened_shape == item.flattened_shape &&
                      planned.size != item.size;
  collected_.problems.push_back(str_format(
      "{}: rank {} holds {}, rank {} {}{}", quote(item.key),
      collected_.rank_of(planned.items.front()), describe(planned), collected_.ranks() - 1,
      describe(item),
      uneven ? "; Megatron's form of flattened tensors needs shards of equal shape, the form "
               "'boxes' does not"
             : ""));
}

}  // namespace dckpt
