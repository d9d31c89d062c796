#include "dist_checkpointing/load/shared_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/geometry/strided_copy.h"
#include "strategies/tensor_io/device_destinations.h"

namespace dckpt {
namespace {

/// The range of addresses that the elements of a destination lie in.
struct Region {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint32_t destination = 0;
};

Region region_of(const Tensor& tensor, std::uint32_t destination) {
  const auto item = static_cast<std::int64_t>(item_size(tensor.dtype()));
  std::int64_t first = 0;
  std::int64_t last = item;
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis) {
    const std::int64_t reach = (tensor.shape()[axis] - 1) * tensor.strides()[axis] * item;
    (reach < 0 ? first : last) += reach;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(tensor.data());
  return {base + static_cast<std::uintptr_t>(first), base + static_cast<std::uintptr_t>(last),
          destination};
}

using Extents = std::map<std::int64_t, std::int64_t, std::greater<>>;  // by stride, in bytes

void add_extents(const Tensor& tensor, Extents& extents) {
  const auto item = static_cast<std::int64_t>(item_size(tensor.dtype()));
  extents[1] = item;
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis) {
    const std::int64_t extent = tensor.shape()[axis];
    const std::int64_t stride = std::abs(tensor.strides()[axis]) * item;
    if (extent > 1) extents.try_emplace(stride, 1).first->second += extent - 1;
  }
}

/// Whether two tensors whose regions overlap certainly have no byte in common, as columns of one
/// matrix or every other element of a vector. `distance` is how far b begins behind a. The strides
/// are the digits of a number system: if no digit of the two carries, they are compared one by one.
bool interleave(const Tensor& a, const Tensor& b, std::uintptr_t distance) {
  Extents of_a;
  Extents of_b;
  add_extents(a, of_a);
  add_extents(b, of_b);
  Extents strides = of_a;
  strides.insert(of_b.begin(), of_b.end());
  auto rest = static_cast<std::int64_t>(distance);
  std::int64_t larger = 0;
  bool apart = false;
  for (const auto& [stride, any] : strides) {
    const auto extent_in = [stride = stride](const Extents& extents) {
      const auto found = extents.find(stride);
      return found == extents.end() ? std::int64_t{1} : found->second;
    };
    const std::int64_t digit = rest / stride;
    rest %= stride;
    if (larger != 0 && std::max(extent_in(of_a), digit + extent_in(of_b)) > larger / stride)
      return false;
    if (larger % stride != 0) return false;
    apart = apart || digit >= extent_in(of_a);
    larger = stride;
  }
  return apart;
}

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

/// Destinations with what they share memory with. Costs a sort where nothing overlaps.
using Sharing = std::map<std::uint32_t, std::vector<std::uint32_t>>;

Sharing find_sharing(const TensorRequest& request) {
  std::vector<Region> regions;
  regions.reserve(request.wanted.size());
  for (const WantedShard& wanted : request.wanted) {
    const Tensor& tensor = request.destinations[wanted.destination];
    if (tensor.numel() > 0) regions.push_back(region_of(tensor, wanted.destination));
  }
  std::ranges::sort(regions, {}, &Region::begin);
  Sharing sharing;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    for (std::size_t j = i + 1; j < regions.size() && regions[j].begin < regions[i].end; ++j) {
      const std::uint32_t a = regions[i].destination;
      const std::uint32_t b = regions[j].destination;
      const Tensor& into_a = request.destinations[a];
      const Tensor& into_b = request.destinations[b];
      if (same_request(request.wanted[a], request.wanted[b], into_a, into_b) ||
          interleave(into_a, into_b, regions[j].begin - regions[i].begin))
        continue;
      sharing[a].push_back(b);
      sharing[b].push_back(a);
    }
  }
  return sharing;
}

/// The same layout in the memory of the host, for what lies in the memory of a device: `image`
/// holds the bytes from `begin` on.
Tensor mirrored(const Tensor& tensor, std::uintptr_t begin, const Tensor& image) {
  return Tensor(tensor.dtype(), tensor.shape(), tensor.strides(),
                image.data() + (reinterpret_cast<std::uintptr_t>(tensor.data()) - begin),
                image.owner());
}

/// Replaces the device destinations among those that share memory with filled copies in host
/// memory, which share theirs in the same way.
void mirror_devices(const CheckpointReader& reader, std::vector<ReadItem>& items,
                    const Sharing& sharing, std::vector<Tensor>& destinations,
                    const ReadOptions& reading) {
  std::vector<Region> regions;
  for (const auto& [destination, others] : sharing) {
    if (is_in_device_memory(destinations[destination]))
      regions.push_back(region_of(destinations[destination], destination));
  }
  if (regions.empty()) return;
  std::ranges::sort(regions, {}, &Region::begin);
  for (std::size_t first = 0; first < regions.size();) {
    std::uintptr_t end = regions[first].end;
    std::size_t behind = first + 1;
    for (; behind < regions.size() && regions[behind].begin < end; ++behind)
      end = std::max(end, regions[behind].end);
    const std::uintptr_t begin = regions[first].begin;
    const Tensor image = Tensor::empty(DType::kUInt8, {static_cast<std::int64_t>(end - begin)});
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

/// Whether the memory of a destination has what is stored for an item of it.
bool holds(const CheckpointReader& reader, ReadItem item, const Tensor& memory,
           const ReadOptions& reading) {
  Shape shape = item.sizes;
  const std::vector<Tensor> stored{Tensor::empty(memory.dtype(), shape)};
  const Tensor loaded = Tensor::empty(memory.dtype(), shape);
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
  reading.verify = false;  // that was done when the destinations were filled
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
    throw CheckpointError(
        ErrorCode::kMismatch,
        str_format("{} is loaded into memory that is also requested for {}, but the checkpoint has "
                   "different values for them (were they tied when the state was built, and not "
                   "when it was saved?); give each a tensor of its own, or request one of them",
                   quote(key(item.destination)), quoted_list(others)),
        {.key = key(item.destination)});
  }
}

}  // namespace dckpt
