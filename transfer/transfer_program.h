#pragma once

#include <cstdint>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/parallel/schedule.h"
#include "transfer/transfer_plan.h"

namespace dckpt {

/// The part of one rank in a TransferPlan, cut so that it travels in rounds.
struct TransferProgram {
  struct Step {
    enum class Kind : std::uint8_t { kCopy, kSend, kReceive };
    Kind kind = Kind::kCopy;
    std::uint32_t item = 0;   ///< in the layout that the rank holds, or for kReceive wants
    std::uint32_t other = 0;  ///< for kCopy the wanted item, else the other rank
    Box box;                  ///< in the whole tensor; inside the items' boxes
    std::uint64_t bytes = 0;
  };
  std::vector<Step> steps;
  ExchangeSchedule schedule;  ///< its messages are positions in `steps`
};

/// Returns the encoded programs of all ranks, in which a rank sends, and receives, at most `budget`
/// bytes in a round, but for an element that is larger.
std::vector<Bytes> encode_programs(const TransferPlan& plan, std::uint64_t budget);

/// Throws CheckpointError (corrupt) for a malformed program, and for one that does not fit the
/// layouts of this rank.
TransferProgram decode_program(ByteView bytes, const TransferLayout& held,
                               const TransferLayout& wanted, std::uint32_t rank,
                               std::uint32_t ranks);

}  // namespace dckpt
