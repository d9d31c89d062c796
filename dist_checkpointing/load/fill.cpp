#include "dist_checkpointing/load/fill.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "dist_checkpointing/load/casts.h"
#include "mapping/base/format.h"
#include "mapping/geometry/strided_copy.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/parallel/parallel_read.h"

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

/// Ranks exchange elements as they are stored, out of the destinations that they were read into:
/// what is cast is read by each rank that needs it. Moves that to the end and returns where.
std::vector<ReadItem>::iterator split_off_casts(std::vector<ReadItem>& items,
                                                const CheckpointReader& reader,
                                                const TensorRequest& request) {
  return std::stable_partition(items.begin(), items.end(), [&](const ReadItem& item) {
    return request.destinations[item.destination].dtype() ==
           reader.metadata().tensors[item.tensor].properties.dtype;
  });
}

void add(ReadStats& stats, const ReadStats& more) {
  stats.bytes_wanted += more.bytes_wanted;
  stats.bytes_read += more.bytes_read;
  stats.bytes_unchecked += more.bytes_unchecked;
}

}  // namespace

void fill_destinations(const LoadContext& load, const TensorRequest& request) {
  if (load.options.cast == Cast::kAllow) load.report.casts = report_casts(request.casts, load.comm);
  load.opening.reset();
  const ReadStats stats = fill_destinations(load.reader, request, load.options, load.comm,
                                            &load.plan_cache, &load.phases);
  load.report.bytes_wanted = stats.bytes_wanted;
  load.report.bytes_read = stats.bytes_read;
  load.report.bytes_unchecked = stats.bytes_unchecked;
}

ReadStats fill_destinations(const CheckpointReader& reader, const TensorRequest& request,
                            const LoadOptions& options, Communicator& comm, LoadPlanCache* cache,
                            PhaseClock* phases) {
  ReadOptions reading{.threads = options.threads,
                      .staging = options.staging,
                      .verify = options.verify != Verify::kNone,
                      .cast = options.cast == Cast::kAllow,
                      .phases = phases};
  RecordChecks checks(reader.metadata());
  if (comm.size() > 1 && reading.verify) reading.checks = &checks;
  ReadStats stats;
  agree(comm, "preparing the tensors",
        [&] { std::for_each(request.to_zero.begin(), request.to_zero.end(), fill_zero); });
  using Items = std::span<const ReadItem>;
  const auto read_alone = [&](Items items) {
    Heartbeat(comm).agree("reading tensors", [&] {
      const PhaseClock::Scope reading_now(phases, Phase::kRead);
      add(stats, read_tensors(reader, items, request.destinations, reading));
    });
  };
  const auto read_together = [&](Items items) {
    stats = read_tensors_parallel(reader, items, request.destinations, options.parallel.exchange,
                                  comm, reading, cache);
  };
  if (!shares(options, comm)) {
    read_alone(request.items);
  } else if (options.cast == Cast::kForbid) {
    read_together(request.items);
  } else {
    std::vector<ReadItem> items = request.items;
    const auto casts = split_off_casts(items, reader, request);
    read_together({items.begin(), casts});
    read_alone({casts, items.end()});
  }
  if (reading.checks != nullptr) {
    compare_together(checks, comm);
    stats.bytes_unchecked = checks.unchecked_bytes();
  }
  if (options.verify == Verify::kSha256) stats.bytes_unchecked = 0;
  agree(comm, "padding the tensors",
        [&] { std::for_each(request.to_pad.begin(), request.to_pad.end(), pad_with_edge); });
  return stats;
}

std::unordered_map<std::uint32_t, Value> fetch_objects(const CheckpointReader& reader,
                                                       std::span<const std::uint32_t> objects,
                                                       const LoadOptions& options,
                                                       Communicator& comm, PhaseClock* phases) {
  const PhaseClock::Scope reading(phases, Phase::kRead);
  if (shares(options, comm))
    return read_objects_together(reader, objects, options.parallel.exchange, comm, options.staging);
  std::unordered_map<std::uint32_t, Value> values;
  Heartbeat(comm).agree("reading objects", [&] {
    for (const std::uint32_t object : objects) values[object] = reader.object(object);
  });
  return values;
}

std::unordered_map<std::uint32_t, Value> fetch_objects(const LoadContext& load,
                                                       std::span<const std::uint32_t> objects) {
  return fetch_objects(load.reader, objects, load.options, load.comm, &load.phases);
}

}  // namespace dckpt
