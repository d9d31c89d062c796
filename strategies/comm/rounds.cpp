#include "strategies/comm/rounds.h"

#include <algorithm>
#include <utility>

namespace dckpt {

std::vector<std::vector<TransferPiece>> plan_rounds(std::span<const std::size_t> lengths,
                                                    std::size_t longest, std::size_t room) {
  std::vector<std::vector<TransferPiece>> rounds;
  bool more = true;
  for (std::size_t offset = 0; more; offset += longest) {
    more = false;
    std::size_t place = room;  // full: the next piece goes into a new round
    for (std::size_t message = 0; message < lengths.size(); ++message) {
      if (lengths[message] <= offset) continue;
      const std::size_t length = std::min(longest, lengths[message] - offset);
      if (length > room - place) {
        rounds.emplace_back();
        place = 0;
      }
      rounds.back().push_back({message, offset, length, place});
      place += (length + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
      more = more || lengths[message] - offset > longest;
    }
  }
  return rounds;
}

std::vector<Round> plan_exchange(std::span<const MessageSize> outgoing,
                                 std::span<const MessageSize> incoming, std::size_t longest,
                                 std::size_t room) {
  const auto plan = [&](std::span<const MessageSize> messages) {
    std::vector<std::size_t> lengths;
    for (const MessageSize& message : messages) lengths.push_back(message.bytes);
    return plan_rounds(lengths, longest, room);
  };
  std::vector<std::vector<TransferPiece>> out = plan(outgoing);
  std::vector<std::vector<TransferPiece>> in = plan(incoming);
  std::vector<Round> rounds(std::max(out.size(), in.size()));
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    Round& round = rounds[i];
    if (i < out.size()) round.outgoing = std::move(out[i]);
    if (i < in.size()) round.incoming = std::move(in[i]);
    for (const TransferPiece& piece : round.outgoing)
      round.peers.push_back(outgoing[piece.message].peer);
    for (const TransferPiece& piece : round.incoming)
      round.peers.push_back(incoming[piece.message].peer);
    std::ranges::sort(round.peers);
    round.peers.erase(std::unique(round.peers.begin(), round.peers.end()), round.peers.end());
  }
  return rounds;
}

std::vector<Round> plan_exchange(std::span<const Transport::Outgoing> outgoing,
                                 std::span<const Transport::Incoming> incoming, std::size_t longest,
                                 std::size_t room) {
  std::vector<MessageSize> out;
  std::vector<MessageSize> in;
  for (const auto& message : outgoing) out.push_back({message.to, message.bytes.size()});
  for (const auto& message : incoming) in.push_back({message.from, message.bytes.size()});
  return plan_exchange(out, in, longest, room);
}

}  // namespace dckpt
