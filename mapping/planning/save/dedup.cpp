#include "mapping/planning/save/dedup.h"

#include <algorithm>
#include <numeric>

namespace dckpt {
namespace {

std::vector<bool> left_out_empty(const PlannedKey& planned, const EqualBoxes& equal,
                                 bool store_empty) {
  const BoxList& boxes = planned.boxes;
  const auto count = static_cast<std::uint32_t>(boxes.size());
  const bool none = !store_empty && numel(planned.size) != 0;
  std::vector<bool> left_out(count, false);
  for (std::uint32_t begin = 0, end = 0; begin < count; begin = end) {
    std::uint32_t kept = equal.at(begin);  // among those that begin here
    for (end = begin;
         end < count && std::ranges::equal(boxes.offsets(equal.at(end)), boxes.offsets(kept));
         ++end) {
      if (numel(boxes.sizes(kept)) == 0) kept = equal.at(end);
    }
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::uint32_t box = equal.at(i);
      left_out[box] =
          numel(boxes.sizes(box)) == 0 && (none || compare_boxes(boxes, box, kept) != 0);
    }
  }
  return left_out;
}

}  // namespace

EqualBoxes::EqualBoxes(const PlannedKey& planned) {
  if (planned.ascending) return;
  const BoxList& boxes = planned.boxes;
  sorted_.resize(boxes.size());
  std::iota(sorted_.begin(), sorted_.end(), 0U);
  std::sort(sorted_.begin(), sorted_.end(), [&](std::uint32_t a, std::uint32_t b) {
    const int order = compare_boxes(boxes, a, b);
    return order != 0 ? order < 0 : a < b;
  });
  group_begin_.resize(sorted_.size());
  std::uint32_t begin = 0;
  for (std::uint32_t i = 0; i < sorted_.size(); ++i) {
    if (compare_boxes(boxes, sorted_[begin], sorted_[i]) != 0) begin = i;
    group_begin_[sorted_[i]] = begin;
  }
}

std::span<const std::uint32_t> EqualBoxes::equals_of(const std::uint32_t& box) const {
  if (sorted_.empty()) return {&box, 1};
  const std::uint32_t begin = group_begin_[box];
  std::uint32_t end = begin + 1;
  while (end < sorted_.size() && group_begin_[sorted_[end]] == begin) ++end;
  return std::span(sorted_).subspan(begin, end - begin);
}

std::vector<DedupedKey> deduplicate(std::span<const PlannedKey> keys, bool store_empty) {
  std::vector<DedupedKey> deduped;
  deduped.reserve(keys.size());
  for (const PlannedKey& planned : keys) {
    DedupedKey& key = deduped.emplace_back(DedupedKey{EqualBoxes(planned)});
    if (planned.has_empty) key.left_out = left_out_empty(planned, key.equal, store_empty);
  }
  return deduped;
}

}  // namespace dckpt
