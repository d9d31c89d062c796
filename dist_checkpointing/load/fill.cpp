#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/casts.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/shared_memory.h"
#include "mapping/base/format.h"
#include "mapping/base/progress.h"
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
    std::memset(tensor.mutable_data(), 0, tensor.nbytes());
    return;
  }
  const Tensor zeros = Tensor::zeros(tensor.dtype(), tensor.shape());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), zeros.data(), {0, zeros.strides()},
               tensor.mutable_data(), {0, tensor.strides()});
}

/// Combines pieces of records that several ranks have read, unless there are too many.
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

/// Returns the engine. Data that several ranks read by themselves is best in the page cache.
ReadEngine engine_of(const LoadOptions& options, bool share, const Communicator& comm) {
  const bool alone = share || comm.size() == 1;
  return options.engine == ReadEngine::kAuto && !alone ? ReadEngine::kBuffered : options.engine;
}

using Items = std::span<const ReadItem>;

/// The items of a request, grouped by how they are read.
struct ItemParts {
  std::vector<ReadItem> sorted;  ///< backs the spans, unless they refer to the request
  Items shared;                  ///< exchanged between ranks
  Items own;                     ///< read by this rank
  Items device;                  ///< read by this rank, into device memory
};

/// Groups items. Ranks exchange elements as they are stored, from the destinations that they were
/// read into, so each rank reads its cast or planner-resolved tensors by itself.
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

/// Returns the bytes that arrive in the destination, counted as stored.
std::uint64_t bytes_of(const ReadItem& item, const Metadata& metadata) {
  return static_cast<std::uint64_t>(numel(item.sizes)) *
         item_size(metadata.tensors[item.tensor].properties.dtype);
}

/// Detects when all elements of a destination have been read. Safe to use from several threads.
class Arrivals {
 public:
  /// Calls `complete` once for each destination, in the thread that reads its last element. All
  /// arguments must outlive this object. Without `complete` nothing is counted.
  Arrivals(const TensorRequest& request, const Metadata& metadata,
           std::function<void(std::uint32_t destination)> complete);

  explicit operator bool() const noexcept { return static_cast<bool>(complete_); }

  /// Records that `bytes` bytes, counted as stored, have arrived in the destination.
  void delivered(std::uint32_t destination, std::uint64_t bytes);
  /// Records that all of these items have arrived, for items not reported one by one.
  void delivered(std::span<const ReadItem> items);
  /// Completes the destinations that are padded after reading and those without elements.
  void finish();

 private:
  const Metadata& metadata_;
  std::function<void(std::uint32_t)> complete_;
  std::vector<std::atomic<std::uint64_t>> left_;  ///< bytes missing in each destination
  std::vector<std::uint32_t> late_;               ///< destinations for finish()
};

Arrivals::Arrivals(const TensorRequest& request, const Metadata& metadata,
                   std::function<void(std::uint32_t)> complete)
    : metadata_(metadata),
      complete_(std::move(complete)),
      left_(complete_ ? request.destinations.size() : 0) {
  if (!complete_) return;
  for (const ReadItem& item : request.items) left_[item.destination] += bytes_of(item, metadata);
  std::unordered_set<const std::byte*> changed_later;
  for (const EdgePadding& padding : request.to_pad) changed_later.insert(padding.tensor.data());
  for (std::uint32_t i = 0; i < left_.size(); ++i) {
    const bool late = changed_later.contains(request.destinations[i].data());
    if (late) left_[i] += 1;  // never reached by reading
    if (left_[i] == 0 || late) late_.push_back(i);
  }
}

void Arrivals::delivered(std::uint32_t destination, std::uint64_t bytes) {
  if (left_[destination].fetch_sub(bytes) == bytes) complete_(destination);
}

void Arrivals::delivered(std::span<const ReadItem> items) {
  if (!complete_) return;
  for (const ReadItem& item : items) delivered(item.destination, bytes_of(item, metadata_));
}

void Arrivals::finish() {
  for (const std::uint32_t destination : std::exchange(late_, {})) complete_(destination);
}

/// Returns the tensor of the request that a destination belongs to; it differs if a range is
/// padded.
const Tensor& filled_tensor(const TensorRequest& request, std::uint32_t destination) {
  const Tensor& tensor = request.destinations[destination];
  for (const EdgePadding& padding : request.to_pad) {
    if (padding.range && padding.tensor.data() == tensor.data()) return padding.range->destination;
  }
  return tensor;
}

/// Fills the destinations of a request: the only place where a load moves tensor bytes.
class Filling {
 public:
  Filling(LoadCall& load, const OpenedCheckpoint& from, const TensorRequest& request)
      : load_(load),
        comm_(load.comm),
        reader_(*from.reader),
        planned_(from.planned.get()),
        request_(request),
        share_(shares(load.options, comm_)),
        reading_{.threads = load.options.threads,
                 .engine = engine_of(load.options, share_, comm_),
                 .staging = load.options.staging,
                 .verify = load.options.verify != Verify::kNone,
                 .cast = load.options.cast == Cast::kAllow,
                 .phases = &load.phases},
        checks_(reader_.metadata()) {}

  ReadStats run() {
    agree(comm_, "preparing the tensors", [&] { prepare(); });
    if (share_) read_together();
    load_.watch.heartbeat.agree("reading tensors", [&] { read_own(); });
    if (reading_.checks != nullptr) {
      compare_together(checks_, comm_);
      stats_.bytes_unchecked = checks_.unchecked_bytes();
    }
    if (load_.options.verify == Verify::kSha256) stats_.bytes_unchecked = 0;
    agree(comm_, "padding the tensors", [&] {
      std::for_each(request_.to_pad.begin(), request_.to_pad.end(), pad_with_edge);
      arrivals_->finish();
    });
    return stats_;
  }

 private:
  void prepare() {
    load_.watch.check();
    std::uint64_t total = 0;
    for (const ReadItem& item : request_.items) total += bytes_of(item, reader_.metadata());
    const auto tell = [&](std::uint64_t arrived, std::uint64_t all) {
      load_.watch.arrived(std::min(arrived, all), all);  // slabs have more bytes than requested
    };
    progress_.emplace(tell, total, kToldEvery);
    reading_.progress = &*progress_;
    parts_ = parts_of(request_, reader_, planned_, share_);
    arrivals_.emplace(request_, reader_.metadata(), on_complete());
    if (*arrivals_)
      reading_.delivered = [&](std::uint32_t destination, std::uint64_t bytes) {
        arrivals_->delivered(destination, bytes);
      };
    devices_.emplace(request_.destinations);
    devices_->fill_zero(request_.to_zero);
    for (const Tensor& tensor : request_.to_zero) {
      if (!is_in_device_memory(tensor)) fill_zero(tensor);
    }
    if ((comm_.size() > 1 || !parts_.device.empty()) && reading_.verify) reading_.checks = &checks_;
  }

  /// Returns a function that calls the planner and the trainer; empty if neither is interested.
  std::function<void(std::uint32_t)> on_complete() {
    if (planned_ == nullptr && !load_.watch.follows_tensors()) return {};
    return [&](std::uint32_t destination) {
      const Tensor tensor = filled_tensor(request_, destination);
      if (planned_ != nullptr && planned_->fills(tensor)) {
        const auto complete = planned_->arrived(tensor);
        if (complete && load_.watch.follows_tensors())
          load_.watch.ready(complete->key, *complete->data);
      } else if (load_.watch.follows_tensors()) {
        load_.watch.ready(request_.keys[destination], tensor);
      }
    };
  }

  void read_together() {
    const bool to_devices = std::ranges::any_of(request_.destinations, is_in_device_memory);
    ReadOptions together = reading_;
    together.delivered = nullptr;  // other ranks may still need data that this one has read
    stats_ = read_tensors_parallel(reader_, parts_.shared, request_.destinations, comm_,
                                   {.exchange = load_.options.parallel.exchange,
                                    .read = together,
                                    .cache = load_.plan_cache,
                                    .devices = to_devices ? &*devices_ : nullptr});
  }

  void read_own() {
    const PhaseClock::Scope reading_now(&load_.phases, Phase::kRead);
    arrivals_->delivered(parts_.shared);
    stats_ += read_tensors(reader_, parts_.own, request_.destinations, reading_);
    stats_ += devices_->read(reader_, parts_.device, request_.destinations, reading_);
    arrivals_->delivered(parts_.device);
    load_.watch.arrived(stats_.bytes_wanted, stats_.bytes_wanted);
    check_shared_memory(reader_, request_, reading_);
  }

  static constexpr std::uint64_t kToldEvery = std::uint64_t{16} << 20;

  LoadCall& load_;
  Communicator& comm_;
  const CheckpointReader& reader_;
  PlannedLoad* const planned_;
  const TensorRequest& request_;
  const bool share_;
  ReadOptions reading_;
  RecordChecks checks_;
  ItemParts parts_{};
  std::optional<ProgressCounter> progress_{};
  std::optional<Arrivals> arrivals_{};
  std::optional<DeviceDestinations> devices_{};
  ReadStats stats_{};
};

/// Reads objects; no other part of a load does.
ReadObjects fetch_objects(LoadCall& load, const CheckpointReader& reader,
                          std::span<const std::uint32_t> objects) {
  const PhaseClock::Scope reading(&load.phases, Phase::kRead);
  if (shares(load.options, load.comm)) {
    agree(load.comm, "reading objects", [&] { load.watch.check(); });
    return read_objects_together(reader, objects, load.comm, load.options.staging);
  }
  ReadObjects values;
  load.watch.heartbeat.agree("reading objects", [&] {
    for (const std::uint32_t object : objects) {
      load.watch.check();
      values[object] = reader.object(object);
    }
  });
  return values;
}

}  // namespace

ReadObjects read_request(LoadCall& load, const OpenedCheckpoint& from, const ReadRequest& request) {
  LoadReport& report = load.report;
  if (!load.options.error_on.empty()) {  // the same on all ranks
    decide(load.comm, [&] {
      refuse(report.findings, load.options.error_on,
             "findings of these kinds are to be errors (load.error_on), so nothing was loaded:");
    });
  }
  if (load.options.cast == Cast::kAllow)
    report.casts = report_casts(request.tensors.casts, load.comm);
  load.opening.reset();
  const ReadStats stats = Filling(load, from, request.tensors).run();
  report.bytes_wanted = stats.bytes_wanted;
  report.bytes_read = stats.bytes_read;
  report.bytes_direct = stats.bytes_direct;
  report.bytes_mapped = stats.bytes_mapped;
  report.bytes_unchecked = stats.bytes_unchecked;
  return fetch_objects(load, *from.reader, request.objects);
}

}  // namespace dckpt
