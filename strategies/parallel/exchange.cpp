// The protocol of an exchange of R rounds. Every rank does the same steps; collectives are marked
// with *.
//
//   for each round:   1* agree: the rank's own work, which is prepare and pack, and unpacking in
//                        the round before, succeeded everywhere
//                     2* the buffers travel: one all_to_all. Where it can take and place boxes in
//                        memory of a device (DeviceExchange), a rank neither packs nor unpacks what
//                        lies there on its side; the bytes between two ranks are the same
//                     3  unpack; a failure is kept for step 1 of the next round, since the other
//                        ranks are on their way there
//   at the end        4* agree, as step 1, without packing
//
// So a rank that fails never leaves the others in a collective, and no data travel after a failure.

#include "strategies/parallel/exchange.h"

#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/phase_clock.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"

namespace dckpt {
namespace {

using Transfer = ExchangeSchedule::Transfer;
using Incoming = ExchangeSteps::Incoming;
using Outgoing = ExchangeSteps::Outgoing;

class RoundRunner {
 public:
  RoundRunner(const ExchangeSchedule& schedule, const ExchangeSteps& steps, Communicator& comm)
      : schedule_(schedule),
        steps_(steps),
        comm_(comm),
        devices_(steps.sent_from ? dynamic_cast<DeviceExchange*>(&comm) : nullptr),
        buffers_(static_cast<std::size_t>(comm.size())),
        outgoing_(buffers_.size()),
        incoming_(buffers_.size()) {}

  void run() {
    for (std::uint32_t round = 0; round < schedule_.rounds; ++round) {
      const std::span<const Transfer> packed = take(schedule_.packed, next_packed_, round);
      const std::span<const Transfer> unpacked = take(schedule_.unpacked, next_unpacked_, round);
      agree(comm_, steps_.what, [&] {
        finish_unpacking();
        steps_.prepare(round);
        if (devices_ != nullptr)
          pack_parts(packed, unpacked);
        else
          pack(packed);
      });
      devices_ != nullptr ? move_parts() : move(unpacked);
    }
    const PhaseClock::Pause reading(Phase::kExchange);
    Heartbeat(comm_).agree(steps_.what, [&] {  // everything that only one rank wants is read here
      finish_unpacking();
      steps_.prepare(schedule_.rounds);
    });
  }

 private:
  /// Returns the transfers of a round, which come next.
  static std::span<const Transfer> take(const std::vector<Transfer>& transfers, std::size_t& next,
                                        std::uint32_t round) {
    const std::size_t first = next;
    while (next < transfers.size() && transfers[next].round == round) ++next;
    return std::span(transfers).subspan(first, next - first);
  }

  /// Packs a round into buffers that came in the last one: fresh memory is slower than the copy
  /// into it.
  void pack(std::span<const Transfer> transfers) {
    std::vector<std::size_t> sizes(buffers_.size());
    for (const Transfer& transfer : transfers)
      sizes[transfer.peer] = transfer.offset + transfer.bytes;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].resize(sizes[i]);
    std::vector<Outgoing> messages;
    messages.reserve(transfers.size());
    for (const Transfer& transfer : transfers)
      messages.push_back(
          {transfer,
           MutableByteView(buffers_[transfer.peer]).subspan(transfer.offset, transfer.bytes)});
    steps_.pack(messages);
  }

  /// Lays out the parts of a round's messages; those without boxes are in host memory.
  void pack_parts(std::span<const Transfer> packed, std::span<const Transfer> unpacked) {
    from_host_.clear();
    to_host_.clear();
    lay_out(packed, steps_.sent_from, outgoing_, sent_, from_host_);
    lay_out(unpacked, steps_.received_into, incoming_, received_, to_host_);
    steps_.pack(from_host_);
  }

  template <typename BoxesOf>
  static void lay_out(std::span<const Transfer> transfers, const BoxesOf& boxes_of,
                      std::vector<std::vector<MessagePart>>& messages, Bytes& memory,
                      std::vector<Outgoing>& in_memory) {
    for (auto& message : messages) message.clear();
    std::vector<std::vector<DeviceBox>> boxes;
    std::uint64_t size = 0;
    for (const Transfer& transfer : transfers) {
      boxes.push_back(boxes_of(transfer));
      if (boxes.back().empty()) size += transfer.bytes;
    }
    memory.resize(static_cast<std::size_t>(size));
    MutableByteView rest = memory;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const Transfer& transfer = transfers[i];
      MessagePart part{.bytes = transfer.bytes, .boxes = std::move(boxes[i])};
      if (part.boxes.empty()) {
        in_memory.push_back({transfer, rest.first(transfer.bytes)});
        part.host = rest.data();
        rest = rest.subspan(transfer.bytes);
      }
      messages[transfer.peer].push_back(std::move(part));
    }
  }

  void move_parts() {
    devices_->all_to_all(outgoing_, incoming_);
    try {
      std::vector<Incoming> messages;
      messages.reserve(to_host_.size());
      for (const auto& [transfer, bytes] : to_host_) messages.push_back({transfer, bytes});
      steps_.unpack(messages);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void move(std::span<const Transfer> transfers) {
    buffers_ = comm_.all_to_all(std::move(buffers_));
    try {
      std::vector<Incoming> messages;
      messages.reserve(transfers.size());
      for (const Transfer& transfer : transfers) {
        const ByteView buffer = buffers_[transfer.peer];
        if (!range_fits(transfer.offset, transfer.bytes, buffer.size())) {
          throw_error(
              ErrorCode::kCorrupt,
              "rank {} sent {} bytes, but {} were expected: do all ranks run the same build?",
              transfer.peer, buffer.size(), transfer.offset + transfer.bytes);
        }
        messages.push_back({transfer, buffer.subspan(transfer.offset, transfer.bytes)});
      }
      steps_.unpack(messages);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void finish_unpacking() const {
    if (failure_) std::rethrow_exception(failure_);
  }

  const ExchangeSchedule& schedule_;
  const ExchangeSteps& steps_;
  Communicator& comm_;
  DeviceExchange* devices_;     ///< null: everything goes through the host
  std::vector<Bytes> buffers_;  ///< one per receiver, then one per sender
  // These are used with devices_, for one round:
  std::vector<std::vector<MessagePart>> outgoing_;  ///< per rank
  std::vector<std::vector<MessagePart>> incoming_;
  Bytes sent_;
  Bytes received_;
  std::vector<Outgoing> from_host_;  ///< views of sent_
  std::vector<Outgoing> to_host_;    ///< views of received_
  std::size_t next_packed_ = 0;
  std::size_t next_unpacked_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

void run_exchange(const ExchangeSchedule& schedule, const ExchangeSteps& steps,
                  Communicator& comm) {
  RoundRunner(schedule, steps, comm).run();
}

}  // namespace dckpt
