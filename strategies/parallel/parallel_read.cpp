// The protocol by which ranks load together.
//
//   1 all_gather   every rank tells all others which parts of stored chunks it wants (a few bytes
//                  each), or that it wants the same as last time. If all do, they go on with step 5
//                  and the plan of last time; if some do, these tell now what it is
//   2 local        every rank shares out the reading by the same rules (distribute_load)
//   3 all_gather   a chunk that is read in pieces is looked up in its file by one of its readers,
//                  who tells where its elements lie. If they do not lie row-major, so that the
//                  chunk can only be read as a whole, every rank repeats step 2 with that knowledge
//   4 local        every rank puts what has to travel into rounds
//   5 rounds       each rank reads what it sends in the next round while the parts of this round
//                  travel (run_exchange); what it alone wants, it reads at the end
//
// Steps 1 to 4 are in exchange_plan.cpp.
//
// A part is read straight into the destination of its reader and sent from there. If that is on a
// device, it is copied to host memory first; but where the communicator is a DeviceExchange and the
// kind all_to_all, it is sent from the device, and what arrives goes straight to destinations on
// the receiver's device. Each side decides for itself, since the bytes between them are the same.
// Where ranks need short interleaved runs, one of them reads the whole region, a slab, into memory
// of the round. In that round it copies its own parts out of the slab and packs the others, each
// for one rank that needs it, the holder. With all_to_all the holder forwards it to the rest in
// later rounds; with the other kinds all ranks get it at once.
//
// A rank thus holds its own destinations, the buffers of a round, and the slabs of the round being
// packed and of the round being read: for each of these at most half of what it may send in a
// round, or one chunk that can only be read as a whole. Local work between collectives runs inside
// agree().

#include "strategies/parallel/parallel_read.h"

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/parallel/exchange.h"
#include "strategies/parallel/exchange_plan.h"
#include "strategies/parallel/located_reader.h"
#include "strategies/parallel/tensor_batch.h"

namespace dckpt {
namespace {

using Part = LoadDistribution::Part;
using Slab = LoadDistribution::Slab;
using Transfer = ExchangeSchedule::Transfer;
using Use = LoadDistribution::Use;

constexpr const char* kReadingTensors = "reading tensors";

/// The items of one rank, cut to parts of a distribution.
class OwnItems {
 public:
  OwnItems(std::span<const ReadItem> items, const LoadDistribution& distribution,
           std::uint32_t rank)
      : items_(items), distribution_(distribution), rank_(rank) {}

  /// Calls visit(item) for this rank's items that contain the part.
  template <typename Visit>
  void visit(const Part& part, Visit&& visit_item) const {
    for (const Use& use : distribution_.uses_of(part)) {
      if (use.rank == rank_) visit_item(item_of(part, use));
    }
  }

  /// Returns, of the items that contain the part, the one into which it is read.
  ReadItem first(const Part& part) const {
    const auto uses = distribution_.uses_of(part);
    return item_of(part, *std::find_if(uses.begin(), uses.end(),
                                       [&](const Use& use) { return use.rank == rank_; }));
  }

 private:
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

  std::span<const ReadItem> items_;
  const LoadDistribution& distribution_;
  std::uint32_t rank_;
};

StridedView view_in_slab(const Part& part, const Box& slab) {
  StridedView view{0, row_major_strides(slab.sizes)};
  for (std::size_t axis = 0; axis < slab.dims(); ++axis)
    view.offset += (part.box.offsets[axis] - slab.offsets[axis]) * view.strides[axis];
  return view;
}

class ParallelTensorReader {
 public:
  ParallelTensorReader(const CheckpointReader& reader, std::span<const ReadItem> items,
                       std::span<const Tensor> destinations, Communicator& comm,
                       const ParallelReadOptions& options)
      : located_(reader),
        items_(items),
        destinations_(destinations),
        comm_(comm),
        options_(options.read),
        devices_(options.devices),
        rank_(static_cast<std::uint32_t>(comm.rank())) {
    options_.shared = true;
    const auto* const exchange = dynamic_cast<const DeviceExchange*>(&comm);
    if (exchange != nullptr && devices_ != nullptr &&
        std::ranges::any_of(destinations, [&](const Tensor& tensor) {
          return tensor.device() == exchange->device();
        }))
      exchange_device_ = exchange->device();
  }

  ReadStats read(const ParallelReadOptions& options) {
    std::optional<PhaseClock::Scope> exchanging(std::in_place, options_.phases, Phase::kExchange);
    const std::shared_ptr<const ExchangePlan> plan =
        plan_parallel_read(located_, items_, destinations_, comm_, options);
    plan_ = plan.get();
    own_.emplace(items_, plan->distribution, rank_);
    if (!plan->exchanges) {
      exchanging.reset();
      Heartbeat(comm_).agree(kReadingTensors, [&] {
        const PhaseClock::Scope reading(options_.phases, Phase::kRead);
        stats_ = read_all();
      });
      return stats_;
    }
    agree(comm_, "preparing the reading of tensors", [&] { prepare_rounds(); });
    ExchangeSteps steps{.what = kReadingTensors,
                        .prepare = [&](std::uint32_t round) { prepare(round); },
                        .pack =
                            [&](std::span<const ExchangeSteps::Outgoing> messages) {
                              BoxCopies copies(devices_);
                              for (const auto& [transfer, into] : messages)
                                pack(part_of(transfer), transfer.round, into, copies);
                              copies.finish();
                            },
                        .unpack =
                            [&](std::span<const ExchangeSteps::Incoming> messages) {
                              BoxCopies copies(devices_);
                              for (const auto& [transfer, from] : messages)
                                unpack(part_of(transfer), from, copies);
                              copies.finish();
                            }};
    if (exchange_device_) {
      steps.sent_from = [&](const Transfer& transfer) { return source_box(part_of(transfer)); };
      steps.received_into = [&](const Transfer& transfer) {
        return target_boxes(part_of(transfer));
      };
    }
    run_exchange(plan->schedule, steps, comm_);
    for (const ReadItem& item : items_)
      stats_.bytes_wanted += static_cast<std::uint64_t>(numel(item.sizes)) * size_of(item.tensor);
    return stats_;
  }

 private:
  /// Reads everything that this rank wants, without the other ranks.
  ReadStats read_all() const {
    if (devices_ == nullptr) return read_tensors(located_, items_, destinations_, options_);
    TensorBatch all;
    for (const ReadItem& item : items_) all.add_item(item, destinations_[item.destination]);
    Bytes no_slabs;
    return all.read(located_, no_slabs, options_, devices_);
  }

  std::size_t size_of(std::uint32_t tensor) const {
    return item_size(located_.metadata().tensors[tensor].properties.dtype);
  }
  const Part& part_of(const Transfer& transfer) const {
    return plan_->distribution.shared[transfer.message];
  }

  /// batches_[r] is read before round r is packed, the last one at the end.
  void prepare_rounds() {
    batches_.resize(plan_->schedule.rounds + 1);
    for (const auto& [slab, round] : plan_->slab_rounds)
      batches_[round].add_slab(slab, plan_->distribution.slabs[slab], located_.metadata());
    std::vector<bool> is_read(plan_->distribution.shared.size());
    for (const Transfer& transfer : plan_->schedule.packed) {
      const Part& part = part_of(transfer);
      if (part.slab != LoadDistribution::kNoSlab || is_read[transfer.message]) continue;
      is_read[transfer.message] = true;
      add_item(batches_[transfer.round], part);
    }
    for (const Part& part : plan_->distribution.own) add_item(batches_.back(), part);
    start_reading(0);
  }

  void add_item(TensorBatch& batch, const Part& part) const {
    const ReadItem item = own_->first(part);
    batch.add_item(item, destinations_[item.destination]);
  }

  /// Reads one batch in the background while the previous round travels, or on request if no thread
  /// can be started.
  void start_reading(std::size_t batch) {
    if (batch == batches_.size()) return;
    reading_ = std::async(std::launch::async | std::launch::deferred, [this, batch] {
      const PhaseClock::Scope reading(options_.phases, Phase::kRead);
      ReadStats stats = batches_[batch].read(located_, slab_memory_[batch % 2], options_, devices_);
      // Data from other ranks goes to destinations only after the kernels that still use them.
      if (batch == 0 && exchange_device_) devices_->wait_for_producers();
      return stats;
    });
  }

  void prepare(std::uint32_t round) {
    ReadStats read = [&] {
      const PhaseClock::Pause waiting(Phase::kExchange);
      return reading_.get();
    }();
    read.bytes_wanted = 0;  // is counted by items, at the end
    stats_ += read;
    if (round > 0) batches_[round - 1].clear();
    start_reading(round + 1);
    BoxCopies copies(devices_);
    for (const std::uint32_t slab : batches_[round].slabs()) take_own_parts(slab, round, copies);
    if (round == plan_->schedule.rounds) copy_repeated(copies);
    copies.finish();
  }

  const Box& slab_of(const Part& part) const { return plan_->distribution.slabs[part.slab].box; }

  /// Copies the parts of a slab that this rank itself wants, after it has read the slab.
  void take_own_parts(std::uint32_t index, std::uint32_t round, BoxCopies& copies) const {
    const Slab& slab = plan_->distribution.slabs[index];
    for (std::uint32_t i = slab.first_part; i < slab.first_part + slab.part_count; ++i) {
      const Part& part = plan_->distribution.shared[i];
      copy_in(part, batches_[round].slab(index).data(), view_in_slab(part, slab_of(part)), copies);
    }
  }

  const Tensor& tensor_of(const ReadItem& item) const { return destinations_[item.destination]; }

  /// Copies a part from host memory to all places where this rank wants it.
  void copy_in(const Part& part, const std::byte* from, const StridedView& view,
               BoxCopies& copies) const {
    std::optional<ReadItem> first;
    own_->visit(part, [&](const ReadItem& item) {
      if (first) return copy_again(*first, item, copies);
      first = item;
      copies.put(item.sizes, from, view, tensor_of(item), item.target);
    });
  }

  /// Copies an item from one place where this rank wants it to another.
  void copy_again(const ReadItem& done, const ReadItem& item, BoxCopies& copies) const {
    const Tensor& from = tensor_of(done);
    const Tensor& to = tensor_of(item);
    if (to.data() == from.data() && item.target == done.target) return;
    copies.copy(item.sizes, from, done.target, to, item.target);
  }

  void pack(const Part& part, std::uint32_t round, MutableByteView into, BoxCopies& copies) const {
    const StridedView packed{0, row_major_strides(part.box.sizes)};
    if (part.holder != rank_) {
      strided_copy(part.box.sizes, size_of(part.tensor), batches_[round].slab(part.slab).data(),
                   view_in_slab(part, slab_of(part)), into.data(), packed);
      return;
    }
    const ReadItem item = own_->first(part);
    copies.get(item.sizes, tensor_of(item), item.target, into.data(), packed);
  }

  DeviceBox box_of(const ReadItem& item) const {
    return {tensor_of(item).mutable_data(), size_of(item.tensor), item.sizes, item.target};
  }

  /// Returns the place of a part to send on the exchange's device, if it is there.
  std::vector<DeviceBox> source_box(const Part& part) const {
    if (part.holder != rank_) return {};  // in a slab
    const ReadItem item = own_->first(part);
    if (tensor_of(item).device() != exchange_device_) return {};
    return {box_of(item)};
  }

  /// Returns all places of a part to receive, if all are on the exchange's device.
  std::vector<DeviceBox> target_boxes(const Part& part) const {
    std::vector<DeviceBox> boxes;
    bool all_there = true;
    own_->visit(part, [&](const ReadItem& item) {
      all_there = all_there && tensor_of(item).device() == exchange_device_;
      boxes.push_back(box_of(item));
    });
    if (!all_there) boxes.clear();
    return boxes;
  }

  void unpack(const Part& part, ByteView from, BoxCopies& copies) const {
    copy_in(part, from.data(), {0, row_major_strides(part.box.sizes)}, copies);
  }

  /// Copies the parts that this rank has read straight into one place and wants in several.
  void copy_repeated(BoxCopies& copies) const {
    for (const std::vector<Part>* const parts :
         {&plan_->distribution.shared, &plan_->distribution.own}) {
      for (const Part& part : *parts) {
        if (part.reader != rank_ || part.slab != LoadDistribution::kNoSlab) continue;
        const ReadItem read = own_->first(part);
        own_->visit(part, [&](const ReadItem& item) { copy_again(read, item, copies); });
      }
    }
  }

  LocatedReader located_;
  std::span<const ReadItem> items_;
  std::span<const Tensor> destinations_;
  Communicator& comm_;
  ReadOptions options_;
  DeviceDestinations* devices_;  ///< null if no destination is on a device
  /// The device whose data ranks exchange without the host; empty if there is none here.
  std::optional<Device> exchange_device_;
  std::uint32_t rank_;
  const ExchangePlan* plan_ = nullptr;
  std::optional<OwnItems> own_;
  std::vector<TensorBatch> batches_;
  std::array<Bytes, 2> slab_memory_;
  ReadStats stats_;
  /// This is the last member: its destructor waits for the thread that uses the others.
  std::future<ReadStats> reading_;
};

}  // namespace

ReadStats read_tensors_parallel(const CheckpointReader& reader, std::span<const ReadItem> items,
                                std::span<const Tensor> destinations, Communicator& comm,
                                const ParallelReadOptions& options) {
  return ParallelTensorReader(reader, items, destinations, comm, options).read(options);
}

}  // namespace dckpt
