#include "dist_checkpointing/load/arrivals.h"

#include <unordered_set>
#include <utility>

namespace dckpt {

Arrivals::Arrivals(const TensorRequest& request, const Metadata& metadata,
                   std::function<void(std::uint32_t)> complete)
    : metadata_(metadata),
      complete_(std::move(complete)),
      left_(complete_ ? request.destinations.size() : 0) {
  if (!complete_) return;
  for (const ReadItem& item : request.items) left_[item.destination] += bytes_of(item);
  std::unordered_set<const std::byte*> changed_later;
  for (const EdgePadding& padding : request.to_pad) changed_later.insert(padding.tensor.data());
  for (std::uint32_t i = 0; i < left_.size(); ++i) {
    const bool late = changed_later.contains(request.destinations[i].data());
    if (late) left_[i] += 1;  // never reached by reading
    if (left_[i] == 0 || late) late_.push_back(i);
  }
}

std::uint64_t Arrivals::bytes_of(const ReadItem& item) const {
  return static_cast<std::uint64_t>(numel(item.sizes)) *
         item_size(metadata_.tensors[item.tensor].properties.dtype);
}

void Arrivals::delivered(std::uint32_t destination, std::uint64_t bytes) {
  if (left_[destination].fetch_sub(bytes) == bytes) complete_(destination);
}

void Arrivals::delivered(std::span<const ReadItem> items) {
  if (!complete_) return;
  for (const ReadItem& item : items) delivered(item.destination, bytes_of(item));
}

void Arrivals::finish() {
  for (const std::uint32_t destination : std::exchange(late_, {})) complete_(destination);
}

}  // namespace dckpt
