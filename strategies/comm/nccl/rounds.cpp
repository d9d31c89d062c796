#include "strategies/comm/nccl/rounds.h"

#include <algorithm>

namespace dckpt {

std::vector<std::vector<Piece>> plan_rounds(std::span<const std::size_t> lengths, std::size_t longest, std::size_t room) {
  std::vector<std::vector<Piece>> rounds;
  bool more = true;
  for (std::size_t offset = 0; more; offset += longest) {
    more = false;
    std::size_t place = room;  // full: what follows goes into a new round
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

}  // namespace dckpt
