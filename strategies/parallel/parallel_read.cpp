// How ranks load together.
//
//   1 all_gather   every rank tells all others which parts of stored chunks it wants (a few bytes each)
//   2 local        every rank shares out the reading by the same rules (distribute_load)
//   3 all_gather   a chunk that is read in pieces is looked up in its file by one of its readers, who tells where its elements lie. If they do not lie row-major,
//                  so that the chunk can only be read as a whole, every rank repeats step 2 with that knowledge
//   4 local        every rank puts what has to travel into rounds
//   5 rounds       each rank reads what it sends in the next round while the parts of this round travel (run_exchange); what it alone wants, it reads at the end
//
// A part goes straight into the destination of the rank that reads it and is sent from there. Where ranks want short runs that lie between each other's, one of
// them reads all of it, a slab, into memory of the round; in that round it copies its own parts out of the slab and packs the others, each for one rank that
// wants it, the holder. With all_to_all the holder hands it on to the rest in later rounds; with the other kinds all get it at once.
//
// A rank thus holds its own destinations, the buffers of a round, and the slabs of the round that is packed and of the one that is read: for each of these rounds
// at most half of what it may send in one, or one chunk that can only be read as a whole. Local work lies between collectives in agree().

#include "strategies/parallel/parallel_read.h"

#include <algorithm>
#include <array>
#include <future>
#include <utility>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/load_distribution.h"
#include "strategies/comm/agree.h"
#include "strategies/parallel/exchange.h"
#include "strategies/parallel/located_reader.h"
#include "strategies/parallel/request.h"
#include "strategies/parallel/schedule.h"
#include "strategies/parallel/tensor_batch.h"

namespace dckpt {
namespace {

using Part = LoadDistribution::Part;
using Slab = LoadDistribution::Slab;
using Transfer = ExchangeSchedule::Transfer;
using Use = LoadDistribution::Use;

constexpr const char* kReading = "reading tensors";

std::uint32_t number_of(int rank) { return static_cast<std::uint32_t>(rank); }

class ParallelTensorRead {
 public:
  ParallelTensorRead(const CheckpointReader& reader, std::span<const ReadItem> items, std::span<const Tensor> destinations, Exchange how, Communicator& comm, const ReadOptions& options)
      : reader_(reader), items_(items), destinations_(destinations), asked_(how), how_(how == Exchange::kAuto ? Exchange::kAllToAll : how), comm_(comm), options_(options), rank_(number_of(comm.rank())) {
    options_.shared = true;
  }

  ReadStats run() {
    Bytes message;
    agree(comm_, "listing the wanted parts", [&] {
      check_destinations(reader_, items_, destinations_);
      message = encode_request({identity_of(reader_.metadata()), round_budget(options_.staging), WantedParts(items_).encode()});
    });
    const std::vector<Bytes> messages = comm_.all_gather(message);
    Bytes found;
    agree(comm_, "sharing out the reading", [&] {
      take_wishes(messages);
      share_out({});
      found = LocatedReader::look_for(reader_, distribution_.splits, rank_);
    });
    std::vector<Bytes> answers;
    if (!distribution_.splits.empty()) answers = comm_.all_gather(found);
    agree(comm_, "preparing the exchange", [&] {
      if (const auto read_whole = located_.learn(distribution_.splits, answers); !read_whole.empty()) share_out(read_whole);
      wanted_ = {};
      if (worth_exchanging()) prepare_rounds();
    });
    if (!worth_exchanging()) {
      agree(comm_, kReading, [&] { stats_ = read_tensors(located_, items_, destinations_, options_); });
      return stats_;
    }
    const ExchangeSteps steps{.what = kReading,
                              .prepare = [&](std::uint32_t round) { prepare(round); },
                              .pack = [&](const Transfer& transfer, MutableByteView into) { pack(distribution_.shared[transfer.shipment], transfer.round, into); },
                              .unpack = [&](const Transfer& transfer, ByteView from) { unpack(distribution_.shared[transfer.shipment], from); }};
    run_exchange(schedule_, how_, steps, comm_);
    for (const ReadItem& item : items_) stats_.bytes_wanted += static_cast<std::uint64_t>(numel(item.sizes)) * size_of(item.tensor);
    return stats_;
  }

 private:
  std::size_t size_of(std::uint32_t tensor) const { return item_size(reader_.metadata().tensors[tensor].properties.dtype); }

  void take_wishes(std::span<const Bytes> messages) {
    const std::vector<Request> requests = decode_requests(messages);
    budget_ = smallest_budget(requests);
    for (const Request& request : requests) {
      wanted_.push_back(with_context({.rank = static_cast<int>(wanted_.size())}, [&] { return WantedParts::decode(request.wish, reader_.metadata()); }));
    }
  }

  void share_out(std::span<const ChunkNumber> read_whole) {
    PartLimits limits;
    limits.largest = std::max<std::uint64_t>(std::min(limits.largest, asked_ == Exchange::kGather ? budget_ / wanted_.size() : budget_), 1);
    limits.largest_slab = std::max<std::uint64_t>(std::min(limits.largest_slab, limits.largest / 2), 1);
    limits.smallest = std::min(limits.smallest, limits.largest);
    distribution_ = distribute_load(reader_.metadata(), wanted_, rank_, limits, read_whole);
  }

  bool worth_exchanging() const { return asked_ != Exchange::kAuto || distribution_.saved_bytes >= kWorthExchanging || !distribution_.slabs.empty(); }

  /// The ranks that want a part, but for two.
  std::vector<std::uint32_t> others(const Part& part, std::uint32_t one, std::uint32_t another) const {
    std::vector<std::uint32_t> ranks;
    for (const Use& use : distribution_.uses_of(part)) {
      if (use.rank != one && use.rank != another && (ranks.empty() || ranks.back() != use.rank)) ranks.push_back(use.rank);
    }
    return ranks;
  }

  /// batches_[r] is read before round r is packed, the last one at the end.
  void prepare_rounds() {
    ScheduleBuilder builder(number_of(comm_.size()), rank_, how_, budget_);
    for (std::uint32_t i = 0; i < distribution_.shared.size(); ++i) {
      const Part& part = distribution_.shared[i];
      if (part.slab == LoadDistribution::kNoSlab) {
        builder.add(part.holder, {i, others(part, part.holder, part.holder), part.bytes});
      } else if (distribution_.slabs[part.slab].first_part == i) {
        add_slab(part.slab, builder);
      }
    }
    schedule_ = builder.finish();
    batches_.resize(schedule_.rounds + 1);
    for (const auto& [slab, round] : slab_rounds_) batches_[round].add_slab(slab, distribution_.slabs[slab], reader_.metadata());
    std::vector<bool> is_read(distribution_.shared.size());
    for (const Transfer& transfer : schedule_.packed) {
      const Part& part = distribution_.shared[transfer.shipment];
      if (part.slab != LoadDistribution::kNoSlab || is_read[transfer.shipment]) continue;
      is_read[transfer.shipment] = true;
      add_item(batches_[transfer.round], part);
    }
    for (const Part& part : distribution_.own) add_item(batches_.back(), part);
    start_reading(0);
  }

  void add_slab(std::uint32_t index, ScheduleBuilder& builder) {
    const Slab& slab = distribution_.slabs[index];
    const bool to_holders = how_ == Exchange::kAllToAll;
    std::vector<Shipment> shipments;
    for (std::uint32_t i = slab.first_part; i < slab.first_part + slab.part_count; ++i) {
      const Part& part = distribution_.shared[i];
      Shipment shipment{i, to_holders ? std::vector{part.holder} : others(part, slab.reader, slab.reader), part.bytes};
      if (!shipment.to.empty() && shipment.to.front() != slab.reader) shipments.push_back(std::move(shipment));
    }
    const std::uint32_t round = builder.add_held(slab.reader, shipments, slab.bytes);
    if (slab.reader == rank_) slab_rounds_.emplace_back(index, round);
    if (!to_holders) return;
    for (std::uint32_t i = slab.first_part; i < slab.first_part + slab.part_count; ++i) {
      const Part& part = distribution_.shared[i];
      builder.add(part.holder, {i, others(part, part.holder, part.holder), part.bytes}, part.holder == slab.reader ? round : round + 1);
    }
  }

  void add_item(TensorBatch& batch, const Part& part) const {
    const ReadItem item = first_item(part);
    batch.add_item(item, destinations_[item.destination]);
  }

  /// Reads one batch in the background while the round before travels.
  void start_reading(std::size_t batch) {
    if (batch == batches_.size()) return;
    reading_ = std::async(std::launch::async, [this, batch] { return batches_[batch].read(located_, slab_memory_[batch % 2], options_); });
  }

  void prepare(std::uint32_t round) {
    stats_.bytes_read += reading_.get().bytes_read;
    if (round > 0) batches_[round - 1].clear();
    start_reading(round + 1);
    for (const std::uint32_t slab : batches_[round].slabs()) take_own_parts(slab, round);
    if (round == schedule_.rounds) copy_repeated();
  }

  /// What this rank itself wants of a slab that it has read.
  void take_own_parts(std::uint32_t index, std::uint32_t round) const {
    const Slab& slab = distribution_.slabs[index];
    for (std::uint32_t i = slab.first_part; i < slab.first_part + slab.part_count; ++i) {
      const Part& part = distribution_.shared[i];
      const StridedView view = view_in_slab(part);
      for_own_items(part, [&](const ReadItem& item) {
        strided_copy(item.sizes, size_of(item.tensor), batches_[round].slab(index).data(), view, data_of(item), item.target);
      });
    }
  }

  StridedView view_in_slab(const Part& part) const {
    const Box& box = distribution_.slabs[part.slab].box;
    StridedView view{0, row_major_strides(box.sizes)};
    for (std::size_t axis = 0; axis < box.dims(); ++axis) view.offset += (part.box.offsets[axis] - box.offsets[axis]) * view.strides[axis];
    return view;
  }

  ReadItem item_of(const Part& part, const Use& use) const {
    ReadItem item = items_[use.entry];
    for (std::size_t axis = 0; axis < part.box.dims(); ++axis) {
      const std::int64_t shift = part.box.offsets[axis] - item.offsets[axis];
      item.source.offset += shift * item.source.strides[axis];
      item.target.offset += shift * item.target.strides[axis];
    }
    item.offsets = part.box.offsets;
    item.sizes = part.box.sizes;
    return item;
  }

  /// Calls visit(item) for this rank's items that contain the part.
  template <typename Visit>
  void for_own_items(const Part& part, Visit&& visit) const {
    for (const Use& use : distribution_.uses_of(part)) {
      if (use.rank == rank_) visit(item_of(part, use));
    }
  }

  /// Of the items that contain the part, the one that it is read into.
  ReadItem first_item(const Part& part) const {
    const auto uses = distribution_.uses_of(part);
    return item_of(part, *std::find_if(uses.begin(), uses.end(), [&](const Use& use) { return use.rank == rank_; }));
  }

  std::byte* data_of(const ReadItem& item) const { return destinations_[item.destination].data(); }

  void pack(const Part& part, std::uint32_t round, MutableByteView into) const {
    const StridedView packed{0, row_major_strides(part.box.sizes)};
    if (part.holder != rank_) {
      strided_copy(part.box.sizes, size_of(part.tensor), batches_[round].slab(part.slab).data(), view_in_slab(part), into.data(), packed);
      return;
    }
    const ReadItem item = first_item(part);
    strided_copy(item.sizes, size_of(item.tensor), data_of(item), item.target, into.data(), packed);
  }

  void unpack(const Part& part, ByteView from) const {
    for_own_items(part, [&](const ReadItem& item) {
      strided_copy(item.sizes, size_of(item.tensor), from.data(), {0, row_major_strides(item.sizes)}, data_of(item), item.target);
    });
  }

  /// What this rank has read straight into one place and wants in several.
  void copy_repeated() const {
    for (const std::vector<Part>* const parts : {&distribution_.shared, &distribution_.own}) {
      for (const Part& part : *parts) {
        if (part.reader != rank_ || part.slab != LoadDistribution::kNoSlab) continue;
        const ReadItem read = first_item(part);
        for_own_items(part, [&](const ReadItem& item) {
          if (data_of(item) == data_of(read) && item.target == read.target) return;
          strided_copy(item.sizes, size_of(item.tensor), data_of(read), read.target, data_of(item), item.target);
        });
      }
    }
  }

  const CheckpointReader& reader_;
  LocatedReader located_{reader_};
  std::span<const ReadItem> items_;
  std::span<const Tensor> destinations_;
  Exchange asked_;
  Exchange how_;  ///< not `auto`
  Communicator& comm_;
  ReadOptions options_;
  std::uint32_t rank_;
  std::uint64_t budget_ = 0;
  std::vector<WantedParts> wanted_;
  LoadDistribution distribution_;
  ExchangeSchedule schedule_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> slab_rounds_;  ///< slabs that this rank reads, and when
  std::vector<TensorBatch> batches_;
  std::array<Bytes, 2> slab_memory_;
  ReadStats stats_;
  std::future<ReadStats> reading_;  ///< last: its destructor waits for the thread that uses the others
};

}  // namespace

ReadStats read_tensors_together(const CheckpointReader& reader, std::span<const ReadItem> items, std::span<const Tensor> destinations, Exchange exchange, Communicator& comm,
                                const ReadOptions& options) {
  return ParallelTensorRead(reader, items, destinations, exchange, comm, options).run();
}

}  // namespace dckpt
