// The protocol by which ranks read objects together.
//
//   1 all_gather   every rank tells which objects it wants; every rank gives each of them to one of
//                  those that want it, by the same rules
//   2 all_gather   readers tell the lengths of objects that other ranks want, too. These are only
//                  known after reading, since an object may be compressed, or be a part of another
//                  one. Objects that fit into the temporary memory are kept, the others are read
//                  again in their round
//   3 rounds       run_exchange; a rank reads objects that it alone wants at the end

#include <algorithm>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/parallel/exchange.h"
#include "strategies/parallel/parallel_read.h"
#include "strategies/parallel/request.h"
#include "strategies/parallel/schedule.h"

namespace dckpt {
namespace {

using Transfer = ExchangeSchedule::Transfer;

constexpr const char* kReadingObjects = "reading objects";
constexpr std::uint64_t kLongest = std::uint64_t{1} << 48;  // bytes, of an object

class ParallelObjectReader {
 public:
  ParallelObjectReader(const CheckpointReader& reader, std::span<const std::uint32_t> objects,
                       Communicator& comm, std::uint64_t staging)
      : reader_(reader),
        objects_(objects.begin(), objects.end()),
        comm_(comm),
        staging_(staging),
        rank_(static_cast<std::uint32_t>(comm.rank())) {}

  std::unordered_map<std::uint32_t, Value> read_all() {
    Bytes message;
    agree(comm_, "listing the wanted objects", [&] { message = list_objects(); });
    const std::vector<Bytes> messages = comm_.all_gather(message);
    agree(comm_, "sharing out the reading of objects", [&] { share_out(messages); });
    if (!shared_.empty()) {
      Bytes lengths;
      Heartbeat(comm_).agree(kReadingObjects, [&] { lengths = read_shared(); });
      const std::vector<Bytes> all_lengths = comm_.all_gather(lengths);
      agree(comm_, "scheduling objects", [&] { schedule(all_lengths); });
    }
    const ExchangeSteps steps{.what = kReadingObjects,
                              .prepare = [&](std::uint32_t round) { read(round); },
                              .pack =
                                  [&](std::span<const ExchangeSteps::Outgoing> parts) {
                                    for (const auto& [transfer, into] : parts) {
                                      const Bytes& from = read_.at(transfer.message);
                                      std::copy(from.begin(), from.end(), into.begin());
                                    }
                                  },
                              .unpack =
                                  [&](std::span<const ExchangeSteps::Incoming> parts) {
                                    for (const auto& [transfer, from] : parts)
                                      values_[transfer.message] =
                                          reader_.decode_object(transfer.message, from);
                                  }};
    run_exchange(schedule_, steps, comm_);
    return std::move(values_);
  }

 private:
  Bytes list_objects() {
    std::sort(objects_.begin(), objects_.end());
    objects_.erase(std::unique(objects_.begin(), objects_.end()), objects_.end());
    Bytes wanted;
    WireWriter writer(wanted);
    writer.number(objects_.size());
    for (const std::uint32_t object : objects_) writer.number(object);
    return encode_request({.identity = identity_of(reader_.metadata()),
                           .budget = round_budget(staging_, comm_.size()),
                           .wanted = wanted});
  }

  /// Gives every object to the rank with the fewest bytes among those that want it.
  void share_out(std::span<const Bytes> messages) {
    const std::vector<Request> requests = decode_requests(messages);
    const std::vector<BytesStorageMetadata>& stored = reader_.metadata().objects;
    std::vector<std::vector<std::uint32_t>> wanting(stored.size());
    for (std::uint32_t rank = 0; rank < requests.size(); ++rank) {
      WireReader wanted(requests[rank].wanted, "another rank's list of wanted objects");
      for (std::size_t count = wanted.count(); count > 0; --count) {
        const std::uint64_t object = wanted.number();
        if (object >= stored.size() || (!wanting[object].empty() && wanting[object].back() == rank))
          wanted.malformed("an object's number is out of range, or there twice");
        wanting[object].push_back(rank);
      }
      wanted.finish();
    }
    budget_ = smallest_budget(requests);
    std::vector<std::uint64_t> load(requests.size());
    for (std::uint32_t object = 0; object < stored.size(); ++object) {
      std::vector<std::uint32_t>& ranks = wanting[object];
      if (ranks.empty()) continue;
      const auto least =
          std::min_element(ranks.begin(), ranks.end(),
                           [&](std::uint32_t a, std::uint32_t b) { return load[a] < load[b]; });
      const std::uint32_t from = *least;
      load[from] += stored[object].place.length + 1;
      ranks.erase(least);
      if (!ranks.empty()) {
        shared_.push_back({object, from, std::move(ranks)});
      } else if (from == rank_) {
        own_.push_back(object);
      }
    }
  }

  /// Reads the objects that this rank sends; returns their lengths.
  Bytes read_shared() {
    Bytes lengths;
    WireWriter writer(lengths);
    std::uint64_t kept = 0;
    for (const Shared& shared : shared_) {
      if (shared.from != rank_) continue;
      Bytes bytes = reader_.object_bytes(shared.object);
      values_[shared.object] = reader_.decode_object(shared.object, bytes);
      writer.number(bytes.size());
      if (bytes.size() > staging_ - kept) continue;
      kept += bytes.size();
      read_.emplace(shared.object, std::move(bytes));
    }
    return lengths;
  }

  void schedule(std::span<const Bytes> all_lengths) {
    std::vector<WireReader> lengths;
    for (const Bytes& bytes : all_lengths)
      lengths.emplace_back(bytes, "another rank's list of the lengths of objects");
    ScheduleBuilder builder(static_cast<std::uint32_t>(comm_.size()), rank_, budget_);
    for (Shared& shared : shared_)
      builder.add(shared.from,
                  {shared.object, std::move(shared.to), lengths[shared.from].number(kLongest)});
    for (const WireReader& list : lengths) list.finish();
    schedule_ = builder.finish();
    for (const Transfer& transfer : schedule_.packed)
      last_round_[transfer.message] = transfer.round;
  }

  /// Reads the objects that are first packed in this round; at the end reads those that no other
  /// rank wants.
  void read(std::uint32_t round) {
    std::erase_if(read_, [&](const auto& entry) { return last_round_.at(entry.first) < round; });
    for (; next_packed_ < schedule_.packed.size() && schedule_.packed[next_packed_].round == round;
         ++next_packed_) {
      const Transfer& transfer = schedule_.packed[next_packed_];
      if (read_.contains(transfer.message)) continue;
      Bytes bytes = reader_.object_bytes(transfer.message);
      if (bytes.size() != transfer.bytes) {
        throw_error(ErrorCode::kCorrupt, {.key = reader_.metadata().objects[transfer.message].key},
                    "the object has {} bytes, and had {} before: did its file change?",
                    bytes.size(), transfer.bytes);
      }
      read_.emplace(transfer.message, std::move(bytes));
    }
    if (round < schedule_.rounds) return;
    for (const std::uint32_t object : own_) values_[object] = reader_.object(object);
  }

  /// An object that several ranks want.
  struct Shared {
    std::uint32_t object = 0;
    std::uint32_t from = 0;  ///< its reader
    std::vector<std::uint32_t> to;
  };

  const CheckpointReader& reader_;
  std::vector<std::uint32_t> objects_;
  Communicator& comm_;
  std::uint64_t staging_;
  std::uint32_t rank_;
  std::uint64_t budget_ = 0;        ///< budget of a round
  std::vector<std::uint32_t> own_;  ///< objects that no other rank wants
  std::vector<Shared> shared_;      ///< by object, the same on all ranks
  ExchangeSchedule schedule_;
  std::size_t next_packed_ = 0;
  /// Last round in which an object is packed.
  std::unordered_map<std::uint32_t, std::uint32_t> last_round_;
  std::unordered_map<std::uint32_t, Bytes> read_;  ///< kept until that round
  std::unordered_map<std::uint32_t, Value> values_;
};

}  // namespace

std::unordered_map<std::uint32_t, Value> read_objects_together(
    const CheckpointReader& reader, std::span<const std::uint32_t> objects, Communicator& comm,
    std::uint64_t staging) {
  return ParallelObjectReader(reader, objects, comm, staging).read_all();
}

}  // namespace dckpt
