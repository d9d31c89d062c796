// The protocol of an exchange of R rounds. Every rank does the same steps; collectives are marked
// with *.
//
//   for each round:   1* agree: the rank's own work, which is prepare and pack, and unpacking in
//                        the round before, succeeded everywhere
//                     2* the buffers travel: one all_to_all, or one all_gather, or one broadcast
//                        after the other
//                     3  unpack; a failure is kept for step 1 of the next round, since the other
//                        ranks are on their way there
//   at the end        4* agree, as step 1, without packing
//
// So a rank that fails never leaves the others in a collective, and no data travel after a failure.

#include "strategies/parallel/exchange.h"

#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"

namespace dckpt {
namespace {

using Transfer = ExchangeSchedule::Transfer;

class Rounds {
 public:
  Rounds(const ExchangeSchedule& schedule, Exchange how, const ExchangeSteps& steps,
         Communicator& comm)
      : schedule_(schedule),
        how_(how),
        steps_(steps),
        comm_(comm),
        buffers_(how == Exchange::kAllToAll ? static_cast<std::size_t>(comm.size()) : 1) {}

  void run() {
    for (std::uint32_t round = 0; round < schedule_.rounds; ++round) {
      agree(comm_, steps_.what, [&] {
        finish_unpacking();
        steps_.prepare(round);
        pack(take(schedule_.packed, next_packed_, round));
      });
      move(round, take(schedule_.unpacked, next_unpacked_, round));
    }
    Heartbeat(comm_).agree(steps_.what, [&] {  // all that only one rank wants is read here
      finish_unpacking();
      steps_.prepare(schedule_.rounds);
    });
  }

 private:
  /// The transfers of a round, which come next.
  static std::span<const Transfer> take(const std::vector<Transfer>& transfers, std::size_t& next,
                                        std::uint32_t round) {
    const std::size_t first = next;
    while (next < transfers.size() && transfers[next].round == round) ++next;
    return std::span(transfers).subspan(first, next - first);
  }

  Bytes& buffer_for(const Transfer& transfer) {
    return buffers_[how_ == Exchange::kAllToAll ? transfer.peer : 0];
  }

  /// Buffers that came in the last round are packed in this one: fresh memory is slower than the
  /// copy into it.
  void pack(std::span<const Transfer> transfers) {
    std::vector<std::size_t> sizes(buffers_.size());
    for (const Transfer& transfer : transfers)
      sizes[static_cast<std::size_t>(&buffer_for(transfer) - buffers_.data())] =
          transfer.offset + transfer.bytes;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].resize(sizes[i]);
    for (const Transfer& transfer : transfers)
      steps_.pack(transfer,
                  MutableByteView(buffer_for(transfer)).subspan(transfer.offset, transfer.bytes));
  }

  void move(std::uint32_t round, std::span<const Transfer> unpacked) {
    switch (how_) {
      case Exchange::kGather: {
        const std::vector<Bytes> all = comm_.all_gather(buffers_.front());
        unpack(unpacked, [&](const Transfer& transfer) -> ByteView { return all[transfer.peer]; });
        break;
      }
      case Exchange::kBroadcast:
        for (; next_broadcast_ < schedule_.broadcasts.size() &&
               schedule_.broadcasts[next_broadcast_].first == round;
             ++next_broadcast_) {
          const std::uint32_t root = schedule_.broadcasts[next_broadcast_].second;
          const Bytes bytes = comm_.broadcast(buffers_.front(), static_cast<int>(root));
          unpack(
              unpacked, [&](const Transfer&) -> ByteView { return bytes; }, root);
        }
        break;
      default:
        buffers_ = comm_.all_to_all(std::move(buffers_));
        unpack(unpacked,
               [&](const Transfer& transfer) -> ByteView { return buffers_[transfer.peer]; });
    }
  }

  template <typename BufferOf>
  void unpack(std::span<const Transfer> transfers, BufferOf&& buffer_of,
              std::optional<std::uint32_t> only_from = {}) {
    if (failure_) return;
    try {
      for (const Transfer& transfer : transfers) {
        if (only_from && transfer.peer != *only_from) continue;
        const ByteView buffer = buffer_of(transfer);
        if (!range_fits(transfer.offset, transfer.bytes, buffer.size())) {
          throw CheckpointError(
              ErrorCode::kCorrupt,
              str_format(
                  "rank {} sent {} bytes where {} were due: do all ranks run the same build?",
                  transfer.peer, buffer.size(), transfer.offset + transfer.bytes));
        }
        steps_.unpack(transfer, buffer.subspan(transfer.offset, transfer.bytes));
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void finish_unpacking() const {
    if (failure_) std::rethrow_exception(failure_);
  }

  const ExchangeSchedule& schedule_;
  Exchange how_;
  const ExchangeSteps& steps_;
  Communicator& comm_;
  std::vector<Bytes> buffers_;  ///< one per receiver, or one for all
  std::size_t next_packed_ = 0;
  std::size_t next_unpacked_ = 0;
  std::size_t next_broadcast_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

void run_exchange(const ExchangeSchedule& schedule, Exchange how, const ExchangeSteps& steps,
                  Communicator& comm) {
  Rounds(schedule, how, steps, comm).run();
}

}  // namespace dckpt
