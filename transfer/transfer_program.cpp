// A program's numbers (LEB128): the budget of a round, the rounds of all ranks, the steps of this
// rank; then for each step its kind, item, other, round (not for copies) and box.
//
// Rounds are found once, for all ranks. A rank that adds its own messages to a ScheduleBuilder, in
// the same order and not before their rounds, gets the same rounds, and thereby the offsets.

#include "transfer/transfer_program.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "mapping/base/wire.h"
#include "mapping/geometry/cut.h"

namespace dckpt {
namespace {

using Kind = TransferProgram::Step::Kind;

// Messages of at most this part of a budget fit into every round that is not nearly full.
constexpr std::uint64_t kMessagesPerRound = 8;

Bytes encode(const Box& box) {
  Bytes out;
  WireWriter writer(out);
  for (const std::int64_t offset : box.offsets) writer.number(static_cast<std::uint64_t>(offset));
  for (const std::int64_t extent : box.sizes) writer.number(static_cast<std::uint64_t>(extent));
  return out;
}

bool contains(const Box& box, const Box& part) {
  const auto common = intersect(box, part);
  return common && *common == part;
}

const WriteItem& item_at(const TransferLayout& layout, std::uint32_t position,
                         const WireReader& reader) {
  if (position >= layout.size()) reader.malformed("an item's number is out of range");
  return layout[position];
}

/// The steps of all ranks, encoded.
class ProgramWriter {
 public:
  explicit ProgramWriter(std::uint32_t ranks) : steps_(ranks), counts_(ranks) {}

  void step(std::uint32_t rank, Kind kind, std::uint32_t item, std::uint32_t other,
            std::optional<std::uint32_t> round, const Bytes& box) {
    WireWriter writer(steps_[rank]);
    writer.number(static_cast<std::uint64_t>(kind));
    writer.number(item);
    writer.number(other);
    if (round) writer.number(*round);
    steps_[rank].insert(steps_[rank].end(), box.begin(), box.end());
    ++counts_[rank];
    if (round) rounds_ = std::max(rounds_, *round + 1);
  }

  std::vector<Bytes> finish(std::uint64_t budget) && {
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
      Bytes head;
      WireWriter writer(head);
      for (const std::uint64_t number : {budget, std::uint64_t{rounds_}, counts_[rank]})
        writer.number(number);
      steps_[rank].insert(steps_[rank].begin(), head.begin(), head.end());
    }
    return std::move(steps_);
  }

 private:
  std::vector<Bytes> steps_;  ///< by rank
  std::vector<std::uint64_t> counts_;
  std::uint32_t rounds_ = 0;
};

/// A piece of a part that travels in one message.
struct Piece {
  std::uint64_t bytes;
  Bytes box;
};

}  // namespace

std::vector<Bytes> encode_programs(const TransferPlan& plan, std::uint64_t budget) {
  ScheduleBuilder builder(plan.ranks, plan.ranks, budget);  // no rank's own
  ProgramWriter writer(plan.ranks);
  ScheduledMessage message{.to = {0}};
  for (const TransferPlan::Part& part : plan.parts) {
    const std::uint64_t item = item_size(plan.tensors[part.tensor].dtype);
    const Bytes whole = encode(part.box);
    std::vector<Box> boxes;
    cut_box(part.box, item, std::max<std::uint64_t>(budget / kMessagesPerRound, 1), boxes);
    std::vector<Piece> pieces;
    for (const Box& box : boxes)
      pieces.push_back({static_cast<std::uint64_t>(numel(box.sizes)) * item, encode(box)});
    for (const TransferPlan::Move& move : plan.moves_of(part)) {
      if (move.from == move.to) {
        writer.step(move.to, Kind::kCopy, move.from_item, move.to_item, {}, whole);
        continue;
      }
      message.to.front() = move.to;
      for (const Piece& piece : pieces) {
        message.bytes = piece.bytes;
        const std::uint32_t round = builder.add(move.from, message);
        writer.step(move.from, Kind::kSend, move.from_item, move.to, round, piece.box);
        writer.step(move.to, Kind::kReceive, move.to_item, move.from, round, piece.box);
      }
    }
  }
  return std::move(writer).finish(budget);
}

TransferProgram decode_program(ByteView bytes, const TransferLayout& held,
                               const TransferLayout& wanted, std::uint32_t rank,
                               std::uint32_t ranks) {
  WireReader reader(bytes, "this rank's part of a transfer plan");
  const std::uint64_t budget = reader.number();
  const auto rounds = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
  ScheduleBuilder builder(ranks, rank, budget);
  TransferProgram program;
  for (std::size_t count = reader.count(); count > 0; --count) {
    TransferProgram::Step step;
    step.kind = static_cast<Kind>(reader.number(static_cast<std::uint64_t>(Kind::kReceive)));
    step.item = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    step.other = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    const bool receives = step.kind == Kind::kReceive;
    const WriteItem& item = item_at(receives ? wanted : held, step.item, reader);
    const auto round =
        static_cast<std::uint32_t>(step.kind == Kind::kCopy ? 0 : reader.number(UINT32_MAX));
    step.box = {Shape(item.chunk.dims(), 0), Shape(item.chunk.dims(), 0)};
    for (std::int64_t& offset : step.box.offsets) offset = reader.signed_number();
    for (std::int64_t& extent : step.box.sizes) extent = reader.signed_number();
    if (!is_valid(step.box) || !contains(item.chunk, step.box))
      reader.malformed("a part lies outside its item");
    step.bytes =
        static_cast<std::uint64_t>(numel(step.box.sizes)) * item_size(item.properties.dtype);
    if (step.kind == Kind::kCopy) {
      const WriteItem& target = item_at(wanted, step.other, reader);
      if (target.key != item.key || !contains(target.chunk, step.box))
        reader.malformed("a copy lies outside its item");
    } else {
      if (step.other >= ranks || step.other == rank || round >= rounds)
        reader.malformed("a message's rank or round is out of range");
      const auto id = static_cast<std::uint32_t>(program.steps.size());
      const std::uint32_t from = receives ? step.other : rank;
      const std::uint32_t to = receives ? rank : step.other;
      if (builder.add(from, {id, {to}, step.bytes}, round) != round)
        reader.malformed("a round has too many messages");
    }
    program.steps.push_back(std::move(step));
  }
  reader.finish();
  program.schedule = builder.finish();
  program.schedule.rounds = rounds;
  return program;
}

}  // namespace dckpt
