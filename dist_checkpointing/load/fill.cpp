#include "dist_checkpointing/load/fill.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist_checkpointing/load/arrivals.h"
#include "dist_checkpointing/load/casts.h"
#include "dist_checkpointing/load/shared_memory.h"
#include "mapping/base/format.h"
#include "mapping/geometry/strided_copy.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/parallel/parallel_read.h"
#include "strategies/tensor_io/device_destinations.h"

namespace dckpt {
namespace {

void fill_zero(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (tensor.is_contiguous()) {
    std::memset(tensor.data(), 0, tensor.nbytes());
    return;
  }
  const Tensor zeros = Tensor::zeros(tensor.dtype(), tensor.shape());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), zeros.data(), {0, zeros.strides()},
               tensor.data(), {0, tensor.strides()});
}

/// Pieces of records that several ranks have read are put together, unless there are too many.
void compare_together(RecordChecks& checks, Communicator& comm) {
  constexpr std::size_t kLongestList = std::size_t{64} << 10;
  Bytes mine;
  agree(comm, "listing checksums", [&] {
    mine = checks.incomplete();
    if (mine.size() > kLongestList) mine.clear();
  });
  const std::vector<Bytes> lists = comm.all_gather(mine);
  agree(comm, "comparing checksums", [&] {
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      if (static_cast<int>(rank) != comm.rank() && !lists[rank].empty())
        checks.take(lists[rank], str_format("rank {}'s checksums", rank));
    }
  });
}

bool shares(const LoadOptions& options, const Communicator& comm) {
  return options.parallel.enabled && comm.size() > 1;
}

/// What ranks that read by themselves have in common is best in the page cache.
ReadEngine engine_of(const LoadOptions& options, bool share, const Communicator& comm) {
  const bool alone = share || comm.size() == 1;
  return options.engine == ReadEngine::kAuto && !alone ? ReadEngine::kBuffered : options.engine;
}

using Items = std::span<const ReadItem>;

/// The items of a request by how they are read.
struct ItemParts {
  std::vector<ReadItem> sorted;  ///< what the spans refer to, if not to the request
  Items shared;                  ///< ranks exchange them
  Items own;                     ///< this rank reads them
  Items device;                  ///< and these, into memory of devices
};

/// Ranks exchange elements as they are stored, out of the destinations that they were read into:
/// what is cast, or becomes something else, is read by each rank that needs it.
ItemParts parts_of(const TensorRequest& request, const CheckpointReader& reader,
                   const PlannedLoad* planned, bool share) {
  const auto for_device = [&](const ReadItem& item) {
    return is_in_device_memory(request.destinations[item.destination]);
  };
  const auto exchanged = [&](const ReadItem& item) {
    return share &&
           request.destinations[item.destination].dtype() ==
               reader.metadata().tensors[item.tensor].properties.dtype &&
           (planned == nullptr || !planned->resolves(request.destinations[item.destination]));
  };
  const Items all = request.items;
  if (std::ranges::all_of(all, exchanged)) return {.shared = all};
  if (!share && std::ranges::none_of(all, for_device)) return {.own = all};
  ItemParts parts{.sorted = request.items};
  const auto begin = parts.sorted.begin();
  const auto end = parts.sorted.end();
  const auto own = std::stable_partition(begin, end, exchanged);
  const auto device = std::stable_partition(own, end, std::not_fn(for_device));
  parts.shared = {begin, own};
  parts.own = {own, device};
  parts.device = {device, end};
  return parts;
}

/// Of what arrives in the destinations, as it is stored.
std::uint64_t bytes_of(Items items, const CheckpointReader& reader) {
  std::uint64_t bytes = 0;
  for (const ReadItem& item : items)
    bytes += static_cast<std::uint64_t>(numel(item.sizes)) *
             item_size(reader.metadata().tensors[item.tensor].properties.dtype);
  return bytes;
}

/// The tensor of the request that a destination stands for: padding of a range fills another one.
const Tensor& filled_tensor(const TensorRequest& request, std::uint32_t destination) {
  const Tensor& tensor = request.destinations[destination];
  for (const EdgePadding& padding : request.to_pad) {
    if (padding.range && padding.tensor.data() == tensor.data()) return padding.range->destination;
  }
  return tensor;
}

}  // namespace

void fill_destinations(const LoadContext& load, const TensorRequest& request) {
  if (load.options.cast == Cast::kAllow) load.report.casts = report_casts(request.casts, load.comm);
  load.opening.reset();
  if (load.requested != nullptr) {
    for (const WantedShard& wanted : request.wanted) (*load.requested)[wanted.tensor] = 1;
  }
  const ReadStats stats =
      fill_destinations(load.reader, request, load.options, load.comm, load.watch, &load.plan_cache,
                        &load.phases, load.planned);
  load.report.bytes_wanted = stats.bytes_wanted;
  load.report.bytes_read = stats.bytes_read;
  load.report.bytes_direct = stats.bytes_direct;
  load.report.bytes_mapped = stats.bytes_mapped;
  load.report.bytes_unchecked = stats.bytes_unchecked;
}

ReadStats fill_destinations(const CheckpointReader& reader, const TensorRequest& request,
                            const LoadOptions& options, Communicator& comm, LoadWatch& watch,
                            LoadPlanCache* cache, PhaseClock* phases, PlannedLoad* planned) {
  const bool share = shares(options, comm);
  ReadOptions reading{.threads = options.threads,
                      .engine = engine_of(options, share, comm),
                      .staging = options.staging,
                      .verify = options.verify != Verify::kNone,
                      .cast = options.cast == Cast::kAllow,
                      .phases = phases};
  ItemParts parts;
  std::optional<Arrivals> arrivals;
  std::optional<DeviceDestinations> devices;
  ReadStats stats;
  std::function<void(std::uint32_t)> on_complete;
  if (planned != nullptr || watch.follows_tensors())
    on_complete = [&](std::uint32_t destination) {
      Tensor tensor = filled_tensor(request, destination);
      if (planned != nullptr && planned->resolves(tensor)) tensor = planned->commit(tensor);
      if (watch.follows_tensors()) watch.ready(request.keys[destination], tensor);
    };
  reading.progress = [&](std::uint64_t bytes) { watch.arrived(stats.bytes_wanted + bytes); };
  agree(comm, "preparing the tensors", [&] {
    watch.check();
    watch.expect(bytes_of(request.items, reader));
    parts = parts_of(request, reader, planned, share);
    arrivals.emplace(request, reader.metadata(), on_complete);
    if (*arrivals)
      reading.delivered = [&](std::uint32_t destination, std::uint64_t bytes) {
        arrivals->delivered(destination, bytes);
      };
    devices.emplace(request.destinations);
    devices->fill_zero(request.to_zero);
    for (const Tensor& tensor : request.to_zero) {
      if (!is_in_device_memory(tensor)) fill_zero(tensor);
    }
  });
  RecordChecks checks(reader.metadata());
  if ((comm.size() > 1 || !parts.device.empty()) && reading.verify) reading.checks = &checks;
  if (share) {
    const bool to_devices = std::ranges::any_of(request.destinations, is_in_device_memory);
    ReadOptions together = reading;
    together.delivered = nullptr;  // what a rank has read, others may still have to get from it
    stats =
        read_tensors_parallel(reader, parts.shared, request.destinations, options.parallel.exchange,
                              comm, together, cache, to_devices ? &*devices : nullptr);
  }
  watch.heartbeat.agree("reading tensors", [&] {
    const PhaseClock::Scope reading_now(phases, Phase::kRead);
    arrivals->delivered(parts.shared);
    stats += read_tensors(reader, parts.own, request.destinations, reading);
    stats += devices->read(reader, parts.device, request.destinations, reading);
    arrivals->delivered(parts.device);
    watch.arrived(stats.bytes_wanted);
    check_shared_memory(reader, request, reading);
  });
  if (reading.checks != nullptr) {
    compare_together(checks, comm);
    stats.bytes_unchecked = checks.unchecked_bytes();
  }
  if (options.verify == Verify::kSha256) stats.bytes_unchecked = 0;
  agree(comm, "padding the tensors", [&] {
    std::for_each(request.to_pad.begin(), request.to_pad.end(), pad_with_edge);
    arrivals->finish();
  });
  return stats;
}

std::unordered_map<std::uint32_t, Value> fetch_objects(const CheckpointReader& reader,
                                                       std::span<const std::uint32_t> objects,
                                                       const LoadOptions& options,
                                                       Communicator& comm, LoadWatch& watch,
                                                       PhaseClock* phases) {
  const PhaseClock::Scope reading(phases, Phase::kRead);
  if (shares(options, comm)) {
    agree(comm, "reading objects", [&] { watch.check(); });
    return read_objects_together(reader, objects, options.parallel.exchange, comm, options.staging);
  }
  std::unordered_map<std::uint32_t, Value> values;
  watch.heartbeat.agree("reading objects", [&] {
    for (const std::uint32_t object : objects) {
      watch.check();
      values[object] = reader.object(object);
    }
  });
  return values;
}

std::unordered_map<std::uint32_t, Value> fetch_objects(const LoadContext& load,
                                                       std::span<const std::uint32_t> objects) {
  return fetch_objects(load.reader, objects, load.options, load.comm, load.watch, &load.phases);
}

}  // namespace dckpt
