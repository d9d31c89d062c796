#include "dist_checkpointing/load/shared_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/state/overlaps.h"
#include "strategies/tensor_io/device_destinations.h"

namespace dckpt {
namespace {

struct Region : MemoryRegion {
  std::uint32_t destination = 0;
};

bool same_request(const WantedShard& a, const WantedShard& b, const Tensor& into_a,
                  const Tensor& into_b) {
  const auto range = [](const WantedShard& wanted) {
    return wanted.range ? std::pair(wanted.range->begin, wanted.range->end)
                        : std::pair<std::int64_t, std::int64_t>(-1, -1);
  };
  return a.tensor == b.tensor && a.box == b.box && range(a) == range(b) &&
         into_a.data() == into_b.data() && into_a.dtype() == into_b.dtype() &&
         into_a.strides() == into_b.strides();
}

/// Destinations with those that share memory with them.
using Sharing = std::map<std::uint32_t, std::vector<std::uint32_t>>;

Sharing find_sharing(const TensorRequest& request) {
  std::vector<Tensor> tensors;
  std::vector<std::uint32_t> destinations;
  for (const WantedShard& wanted : request.wanted) {
    tensors.push_back(request.destinations[wanted.destination]);
    destinations.push_back(wanted.destination);
  }
  Sharing sharing;
  for_each_overlap(tensors, [&](std::size_t i, std::size_t j) {
    const std::uint32_t a = destinations[i];
    const std::uint32_t b = destinations[j];
    if (same_request(request.wanted[a], request.wanted[b], tensors[i], tensors[j])) return;
    sharing[a].push_back(b);
    sharing[b].push_back(a);
  });
  return sharing;
}

/// Returns the host copy of a device tensor, with the same layout. `image` holds the bytes from
/// `begin` on.
Tensor mirrored(const Tensor& tensor, std::uintptr_t begin, const Tensor& image) {
  return Tensor(tensor.dtype(), tensor.shape(), tensor.strides(),
                image.mutable_data() + (reinterpret_cast<std::uintptr_t>(tensor.data()) - begin),
                image.owner());
}

/// Replaces the device destinations among those that share memory by filled host copies, which
/// share memory in the same way.
void mirror_devices(const CheckpointReader& reader, std::vector<ReadItem>& items,
                    const Sharing& sharing, std::vector<Tensor>& destinations,
                    const ReadOptions& reading) {
  std::vector<Region> regions;
  for (const auto& [destination, others] : sharing) {
    if (is_in_device_memory(destinations[destination]))
      regions.push_back({region_of(destinations[destination]), destination});
  }
  if (regions.empty()) return;
  std::ranges::sort(regions, {}, &Region::begin);
  for (std::size_t first = 0; first < regions.size();) {
    std::uintptr_t end = regions[first].end;
    std::size_t behind = first + 1;
    for (; behind < regions.size() && regions[behind].begin < end; ++behind)
      end = std::max(end, regions[behind].end);
    const std::uintptr_t begin = regions[first].begin;
    Tensor image = Tensor::empty(DType::kUInt8, {static_cast<std::int64_t>(end - begin)});
    for (; first < behind; ++first) {
      Tensor& tensor = destinations[regions[first].destination];
      tensor = mirrored(tensor, begin, image);
    }
  }
  std::vector<ReadItem> of_devices;
  for (const ReadItem& item : items) {
    const auto is_item = [&](const Region& region) {
      return region.destination == item.destination;
    };
    if (std::ranges::any_of(regions, is_item)) of_devices.push_back(item);
  }
  read_tensors(reader, of_devices, destinations, reading);
}

/// Returns whether the memory of a destination has the stored value of one of its items.
bool holds(const CheckpointReader& reader, ReadItem item, const Tensor& memory,
           const ReadOptions& reading) {
  Shape shape = item.sizes;
  const std::vector<Tensor> stored{Tensor::empty(memory.dtype(), shape)};
  Tensor loaded = Tensor::empty(memory.dtype(), shape);
  strided_copy(shape, item_size(memory.dtype()), memory.data(), item.target, loaded.data(),
               {0, loaded.strides()});
  item.destination = 0;
  item.target = {0, loaded.strides()};
  read_tensors(reader, {&item, 1}, stored, reading);
  return std::memcmp(stored.front().data(), loaded.data(), loaded.nbytes()) == 0;
}

}  // namespace

void check_shared_memory(const CheckpointReader& reader, const TensorRequest& request,
                         ReadOptions reading) {
  const Sharing sharing = find_sharing(request);
  if (sharing.empty()) return;
  reading.verify = false;  // done when the destinations were filled
  reading.checks = nullptr;
  reading.delivered = nullptr;
  std::vector<ReadItem> items;
  for (const ReadItem& item : request.items) {
    if (sharing.contains(item.destination)) items.push_back(item);
  }
  std::vector<Tensor> memory = request.destinations;
  mirror_devices(reader, items, sharing, memory, reading);
  for (const ReadItem& item : items) {
    if (holds(reader, item, memory[item.destination], reading)) continue;
    const auto key = [&](std::uint32_t destination) {
      return reader.metadata().tensors[request.wanted[destination].tensor].key;
    };
    std::vector<std::string> others;
    for (const std::uint32_t other : sharing.at(item.destination)) others.push_back(key(other));
    throw_error(ErrorCode::kMismatch, {.key = key(item.destination)},
                "{} is loaded into memory that is also requested for {}, but the checkpoint has "
                "different values for them (were they tied when the state was built, and not "
                "when it was saved?); give each a tensor of its own, or request one of them",
                quote(key(item.destination)), quoted_list(others));
  }
}

}  // namespace dckpt
