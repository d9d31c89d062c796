#include "transfer/transfer_items.h"

#include <algorithm>
#include <numeric>

#include "mapping/base/error.h"

namespace dckpt {

void TransferSide::gather(std::size_t boxes) {
  ends.assign(boxes + 1, 0);
  for (const auto& of_rank : added) {
    for (const TransferRecord& record : of_rank) ++ends[record.box + 1];
  }
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<std::size_t> next(ends.begin(), ends.end() - 1);
  records.resize(ends.back());
  for (const auto& of_rank : added) {
    for (const TransferRecord& record : of_rank) records[next[record.box]++] = record;
  }
  added = {};
}

std::uint32_t TransferBoxes::number(std::uint32_t tensor, const Box& box, std::uint32_t last) {
  const auto next = static_cast<std::uint32_t>(size());
  boxes_.push_back({tensor, static_cast<std::uint32_t>(box.dims()), extents_.size()});
  for (const Shape* const part : {&box.offsets, &box.sizes})
    extents_.insert(extents_.end(), part->begin(), part->end());
  const std::uint32_t found = *numbers_.insert(next).first;
  if (found != next) {
    extents_.resize(boxes_.back().at);
    boxes_.pop_back();
  }
  if (last != kNoNumber) boxes_[last].next = found;
  return found;
}

void TransferItems::add(TransferSide& side, std::uint32_t rank, const TransferLayout& layout) {
  std::vector<TransferRecord>& records = side.added.emplace_back();
  records.reserve(layout.size());
  std::uint32_t last = kNoNumber;
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    const WriteItem& item = layout[i];
    if (item.kind == WriteItem::Kind::kObject) continue;
    if (item.flattened_shape)
      throw_error(ErrorCode::kInvalidArgument, {.key = item.key, .rank = static_cast<int>(rank)},
                  "a transfer needs flattened ranges as boxes (FlattenedForm::kBoxes)");
    last = number_of(item, last);
    if (!is_like_first(item, last, rank, side)) continue;
    std::uint32_t& box = mentions_[last].box;
    if (const std::uint32_t guess = boxes.guess(item.chunk, box); guess != kNoNumber) {
      box = guess;
    } else if (fits(item.chunk, item.size)) {
      box = boxes.number(last, item.chunk, box);
    } else {
      problems_.add(str_format("{}: rank {} {} {}, outside of {}", quote(item.key), rank, side.verb,
                               to_string(item.chunk), to_string(item.size)));
      continue;
    }
    records.push_back({box, rank, i, item.main_replica});
  }
}

std::vector<std::uint32_t> TransferItems::ordered_boxes() const {
  std::vector<std::uint32_t> order(boxes.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    if (boxes.tensor(a) != boxes.tensor(b)) return boxes.tensor(a) < boxes.tensor(b);
    return std::ranges::lexicographical_compare(boxes.extents(a), boxes.extents(b));
  });
  return order;
}

/// Returns the number of a key. Ranks often list their keys in the same order: the key that
/// followed `last` the last time is tried before the table.
std::uint32_t TransferItems::number_of(const WriteItem& item, std::uint32_t last) {
  if (last != kNoNumber && tensors[last].key == item.key) return last;
  const std::uint32_t guess = last == kNoNumber ? 0 : mentions_[last].next;
  if (guess < tensors.size() && tensors[guess].key == item.key) return guess;
  const auto next = static_cast<std::uint32_t>(tensors.size());
  tensors.push_back({item.key, item.properties.dtype, item.size});
  const std::uint32_t found = *numbers_.insert(next).first;
  found == next ? static_cast<void>(mentions_.emplace_back()) : tensors.pop_back();
  if (last != kNoNumber) mentions_[last].next = found;
  return found;
}

bool TransferItems::is_like_first(const WriteItem& item, std::uint32_t number, std::uint32_t rank,
                                  const TransferSide& side) {
  const TransferPlan::Tensor& tensor = tensors[number];
  Mention& mention = mentions_[number];
  if (mention.first_rank == kNoNumber) {
    mention.first_rank = rank;
    mention.first_verb = side.verb;
  }
  if (tensor.dtype == item.properties.dtype && equal(tensor.shape, item.size)) return true;
  problems_.add(str_format("{}: rank {} {} {} {}, but rank {} {} {} {}", quote(item.key), rank,
                           side.verb, to_string(item.properties.dtype), to_string(item.size),
                           mention.first_rank, mention.first_verb, to_string(tensor.dtype),
                           to_string(tensor.shape)));
  return false;
}

}  // namespace dckpt
