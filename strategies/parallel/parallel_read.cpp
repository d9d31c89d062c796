// How ranks load together.
//
//   1 all_gather   every rank tells all others which parts of stored chunks it wants (a few bytes each)
//   2 local        every rank shares out the reading by the same rules (distribute_load) and puts what has to travel into rounds
//   3 rounds       each rank reads what it sends in the next round, straight into its own destination, while the parts of this round travel
//                  (run_exchange); what it alone wants, it reads at the end
//
// A rank thus holds its own destinations and the buffers of a round, never a tensor that it did not ask for. Local work lies between collectives in agree().

#include "strategies/parallel/parallel_read.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/load_distribution.h"
#include "strategies/comm/agree.h"
#include "strategies/parallel/exchange.h"
#include "strategies/parallel/schedule.h"

namespace dckpt {
namespace {

using Part = LoadDistribution::Part;
using Transfer = ExchangeSchedule::Transfer;
using Use = LoadDistribution::Use;

constexpr const char* kReading = "reading tensors";

/// A hash of what the ranks' numbers refer to: the ranks of a job may see different checkpoints under one path.
std::uint64_t identity_of(const Metadata& metadata) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto number = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  };
  const auto text = [&](const std::string& value) {
    number(value.size());
    for (const char c : value) number(static_cast<unsigned char>(c));
  };
  const auto place = [&](const Place& value) {
    number(value.file);
    number(value.offset);
    number(value.length);
  };
  for (const TensorMetadata& tensor : metadata.tensors) {
    text(tensor.key);
    number(static_cast<std::uint64_t>(tensor.properties.dtype));
    for (const std::int64_t extent : tensor.size) number(static_cast<std::uint64_t>(extent));
    std::for_each(tensor.places.begin(), tensor.places.end(), place);
  }
  for (const ObjectMetadata& object : metadata.objects) {
    text(object.key);
    place(object.place);
  }
  std::for_each(metadata.files.begin(), metadata.files.end(), text);
  return hash;
}

/// What every rank sends first: the identity of its checkpoint, the bytes it can hold in a round, and its wish.
struct Request {
  std::uint64_t identity = 0;
  std::uint64_t budget = 0;
  ByteView wish;
};

Bytes encode(const Request& request) {
  Bytes out;
  append_le(out, request.identity);
  append_le(out, request.budget);
  out.insert(out.end(), request.wish.begin(), request.wish.end());
  return out;
}

/// Throws CheckpointError: (corrupt) for a message that is none; (mismatch) if a rank sees another checkpoint than rank 0.
std::vector<Request> decode(std::span<const Bytes> messages) {
  std::vector<Request> requests;
  for (const Bytes& message : messages) {
    const auto rank = static_cast<int>(requests.size());
    constexpr std::size_t kHead = 2 * sizeof(std::uint64_t);
    if (message.size() < kHead) throw CheckpointError(ErrorCode::kCorrupt, "a rank's request to load together is too short: do all ranks run the same build?", {.rank = rank});
    requests.push_back({load_le<std::uint64_t>(message, 0), load_le<std::uint64_t>(message, sizeof(std::uint64_t)), ByteView(message).subspan(kHead)});
    if (requests.back().identity != requests.front().identity) {
      throw CheckpointError(ErrorCode::kMismatch, "rank " + std::to_string(rank) + " sees another checkpoint under this path than rank 0: is it on a file system that all ranks "
                                                  "share, and does a training root lead all of them to the same iteration?", {.rank = rank});
    }
  }
  return requests;
}

std::uint64_t smallest_budget(std::span<const Request> requests) {
  return std::min_element(requests.begin(), requests.end(), [](const Request& a, const Request& b) { return a.budget < b.budget; })->budget;
}

/// Staging is shared between what a rank sends and what it receives.
std::uint64_t budget_of(std::uint64_t staging) { return std::max<std::uint64_t>(staging / 2, 1); }

std::uint32_t number_of(int rank) { return static_cast<std::uint32_t>(rank); }

class ParallelTensorRead {
 public:
  ParallelTensorRead(const CheckpointReader& reader, std::span<const ReadItem> items, std::span<const Tensor> destinations, Exchange how, Communicator& comm, const ReadOptions& options)
      : reader_(reader), items_(items), destinations_(destinations), how_(how), comm_(comm), options_(options), rank_(number_of(comm.rank())) {}

  ReadStats run() {
    Bytes message;
    agree(comm_, "listing the wanted parts", [&] {
      check_destinations(reader_, items_, destinations_);
      message = encode({identity_of(reader_.metadata()), budget_of(options_.staging), WantedParts(items_).encode()});
    });
    const std::vector<Bytes> messages = comm_.all_gather(message);
    agree(comm_, "sharing out the reading", [&] {
      share_out(messages);
      if (exchanges_) prepare_rounds();
    });
    if (!exchanges_) {
      agree(comm_, kReading, [&] { stats_ = read_tensors(reader_, items_, destinations_, options_); });
      return stats_;
    }
    const ExchangeSteps steps{.what = kReading,
                              .prepare = [&](std::uint32_t round) { prepare(round); },
                              .pack = [&](const Transfer& transfer, MutableByteView into) { pack(distribution_.shared[transfer.shipment], into); },
                              .unpack = [&](const Transfer& transfer, ByteView from) { unpack(distribution_.shared[transfer.shipment], from); }};
    run_exchange(schedule_, how_, steps, comm_);
    for (const ReadItem& item : items_) stats_.bytes_wanted += static_cast<std::uint64_t>(numel(item.sizes)) * size_of(item.tensor);
    return stats_;
  }

 private:
  std::size_t size_of(std::uint32_t tensor) const { return item_size(reader_.metadata().tensors[tensor].properties.dtype); }

  void share_out(std::span<const Bytes> messages) {
    const std::vector<Request> requests = decode(messages);
    budget_ = smallest_budget(requests);
    std::vector<WantedParts> wanted;
    for (const Request& request : requests) {
      wanted.push_back(with_context({.rank = static_cast<int>(wanted.size())}, [&] { return WantedParts::decode(request.wish, reader_.metadata()); }));
    }
    PartLimits limits;
    limits.largest = std::max<std::uint64_t>(std::min(limits.largest, how_ == Exchange::kGather ? budget_ / wanted.size() : budget_), 1);
    limits.smallest = std::min(limits.smallest, limits.largest);
    distribution_ = distribute_load(reader_.metadata(), wanted, rank_, limits);
    exchanges_ = how_ != Exchange::kAuto || distribution_.saved_bytes >= kWorthExchanging;
    if (how_ == Exchange::kAuto) how_ = Exchange::kAllToAll;
  }

  /// batches_[r] is read before round r is packed, the last one at the end.
  void prepare_rounds() {
    ScheduleBuilder builder(number_of(comm_.size()), rank_, how_, budget_);
    std::vector<std::uint32_t> receivers;
    for (std::uint32_t i = 0; i < distribution_.shared.size(); ++i) {
      const Part& part = distribution_.shared[i];
      receivers.clear();
      for (const Use& use : distribution_.uses_of(part)) {
        if (use.rank != part.reader && (receivers.empty() || receivers.back() != use.rank)) receivers.push_back(use.rank);
      }
      builder.add(i, part.reader, receivers, part.bytes);
    }
    schedule_ = builder.finish();
    batches_.resize(schedule_.rounds + 1);
    std::vector<bool> has_batch(distribution_.shared.size());
    for (const Transfer& transfer : schedule_.packed) {
      if (has_batch[transfer.shipment]) continue;
      has_batch[transfer.shipment] = true;
      batches_[transfer.round].push_back(first_item(distribution_.shared[transfer.shipment]));
    }
    for (const Part& part : distribution_.own) batches_.back().push_back(first_item(part));
    start_reading(0);
  }

  /// Reads one batch in the background while the round before travels.
  void start_reading(std::size_t batch) {
    if (batch == batches_.size()) return;
    reading_ = std::async(std::launch::async, [this, batch] { return read_tensors(reader_, batches_[batch], destinations_, options_); });
  }

  void prepare(std::uint32_t round) {
    stats_.bytes_read += reading_.get().bytes_read;
    batches_[round] = {};
    start_reading(round + 1);
    if (round == schedule_.rounds) copy_repeated();
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

  void pack(const Part& part, MutableByteView into) const {
    const ReadItem item = first_item(part);
    strided_copy(item.sizes, size_of(item.tensor), data_of(item), item.target, into.data(), {0, row_major_strides(item.sizes)});
  }

  void unpack(const Part& part, ByteView from) const {
    for_own_items(part, [&](const ReadItem& item) {
      strided_copy(item.sizes, size_of(item.tensor), from.data(), {0, row_major_strides(item.sizes)}, data_of(item), item.target);
    });
  }

  /// What this rank has read and wants in several places.
  void copy_repeated() const {
    for (const std::vector<Part>* const parts : {&distribution_.shared, &distribution_.own}) {
      for (const Part& part : *parts) {
        if (part.reader != rank_) continue;
        const ReadItem read = first_item(part);
        for_own_items(part, [&](const ReadItem& item) {
          if (data_of(item) == data_of(read) && item.target == read.target) return;
          strided_copy(item.sizes, size_of(item.tensor), data_of(read), read.target, data_of(item), item.target);
        });
      }
    }
  }

  const CheckpointReader& reader_;
  std::span<const ReadItem> items_;
  std::span<const Tensor> destinations_;
  Exchange how_;
  Communicator& comm_;
  const ReadOptions& options_;
  std::uint32_t rank_;
  std::uint64_t budget_ = 0;
  bool exchanges_ = false;
  LoadDistribution distribution_;
  ExchangeSchedule schedule_;
  std::vector<std::vector<ReadItem>> batches_;
  ReadStats stats_;
  std::future<ReadStats> reading_;  ///< last: its destructor waits for the thread that uses the others
};

class ParallelObjectRead {
 public:
  ParallelObjectRead(const CheckpointReader& reader, std::span<const std::uint32_t> objects, Exchange how, Communicator& comm, std::uint64_t staging)
      : reader_(reader), objects_(objects.begin(), objects.end()), how_(how == Exchange::kAuto ? Exchange::kAllToAll : how), comm_(comm), staging_(staging), rank_(number_of(comm.rank())) {}

  std::unordered_map<std::uint32_t, Value> run() {
    Bytes message;
    agree(comm_, "listing the wanted objects", [&] { message = encode_request(); });
    const std::vector<Bytes> messages = comm_.all_gather(message);
    agree(comm_, "sharing out the reading of objects", [&] { share_out(messages); });
    const ExchangeSteps steps{.what = "reading objects",
                              .prepare = [&](std::uint32_t round) { read(round); },
                              .pack = [&](const Transfer& transfer, MutableByteView into) { std::copy(read_.at(transfer.shipment).begin(), read_.at(transfer.shipment).end(), into.begin()); },
                              .unpack = [&](const Transfer& transfer, ByteView from) { values_[transfer.shipment] = reader_.decode_object(transfer.shipment, from); }};
    run_exchange(schedule_, how_, steps, comm_);
    return std::move(values_);
  }

 private:
  Bytes encode_request() {
    std::sort(objects_.begin(), objects_.end());
    objects_.erase(std::unique(objects_.begin(), objects_.end()), objects_.end());
    Bytes wish;
    WireWriter writer(wish);
    writer.number(objects_.size());
    for (const std::uint32_t object : objects_) writer.number(object);
    return encode({identity_of(reader_.metadata()), budget_of(staging_), wish});
  }

  /// Every object to the one with the fewest bytes of those that want it.
  void share_out(std::span<const Bytes> messages) {
    const std::vector<Request> requests = decode(messages);
    const std::vector<ObjectMetadata>& stored = reader_.metadata().objects;
    std::vector<std::vector<std::uint32_t>> wanting(stored.size());
    for (std::uint32_t rank = 0; rank < requests.size(); ++rank) {
      WireReader wish(requests[rank].wish, "another rank's list of wanted objects");
      for (std::size_t count = wish.count(); count > 0; --count) {
        const std::uint64_t object = wish.number();
        if (object >= stored.size() || (!wanting[object].empty() && wanting[object].back() == rank)) wish.malformed("an object's number is out of range, or there twice");
        wanting[object].push_back(rank);
      }
      wish.finish();
    }
    ScheduleBuilder builder(number_of(comm_.size()), rank_, how_, smallest_budget(requests));
    std::vector<std::uint64_t> load(requests.size());
    for (std::uint32_t object = 0; object < stored.size(); ++object) {
      std::vector<std::uint32_t>& ranks = wanting[object];
      if (ranks.empty()) continue;
      const auto least = std::min_element(ranks.begin(), ranks.end(), [&](std::uint32_t a, std::uint32_t b) { return load[a] < load[b]; });
      const std::uint32_t from = *least;
      load[from] += stored[object].place.length + 1;
      ranks.erase(least);
      if (!ranks.empty()) {
        builder.add(object, from, ranks, stored[object].place.length);
      } else if (from == rank_) {
        own_.push_back(object);
      }
    }
    schedule_ = builder.finish();
    for (const Transfer& transfer : schedule_.packed) last_round_[transfer.shipment] = transfer.round;
  }

  /// Reads what is first packed in this round; at the end what no other rank wants.
  void read(std::uint32_t round) {
    std::erase_if(read_, [&](const auto& entry) { return last_round_.at(entry.first) < round; });
    for (; next_packed_ < schedule_.packed.size() && schedule_.packed[next_packed_].round == round; ++next_packed_) {
      const Transfer& transfer = schedule_.packed[next_packed_];
      if (read_.contains(transfer.shipment)) continue;
      Bytes bytes = reader_.object_bytes(transfer.shipment);
      if (bytes.size() != transfer.bytes) {
        throw CheckpointError(ErrorCode::kCorrupt, "the object has " + std::to_string(bytes.size()) + " bytes, expected " + std::to_string(transfer.bytes) + "; did its file change?",
                              {.key = reader_.metadata().objects[transfer.shipment].key});
      }
      values_[transfer.shipment] = reader_.decode_object(transfer.shipment, bytes);
      read_.emplace(transfer.shipment, std::move(bytes));
    }
    if (round < schedule_.rounds) return;
    for (const std::uint32_t object : own_) values_[object] = reader_.object(object);
  }

  const CheckpointReader& reader_;
  std::vector<std::uint32_t> objects_;
  Exchange how_;
  Communicator& comm_;
  std::uint64_t staging_;
  std::uint32_t rank_;
  std::vector<std::uint32_t> own_;  ///< that no other rank wants
  ExchangeSchedule schedule_;
  std::size_t next_packed_ = 0;
  std::unordered_map<std::uint32_t, std::uint32_t> last_round_;  ///< in which an object is packed
  std::unordered_map<std::uint32_t, Bytes> read_;                ///< until then
  std::unordered_map<std::uint32_t, Value> values_;
};

}  // namespace

ReadStats read_tensors_together(const CheckpointReader& reader, std::span<const ReadItem> items, std::span<const Tensor> destinations, Exchange exchange, Communicator& comm,
                                const ReadOptions& options) {
  return ParallelTensorRead(reader, items, destinations, exchange, comm, options).run();
}

std::unordered_map<std::uint32_t, Value> read_objects_together(const CheckpointReader& reader, std::span<const std::uint32_t> objects, Exchange exchange, Communicator& comm,
                                                               std::uint64_t staging) {
  return ParallelObjectRead(reader, objects, exchange, comm, staging).run();
}

}  // namespace dckpt
