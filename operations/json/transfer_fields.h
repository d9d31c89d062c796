#pragma once

#include <span>
#include <vector>

#include "operations/json/json_record.h"
#include "transfer/transfer_plan.h"

namespace dckpt {

constexpr auto json_record(const TransferPlan::Move*) {
  using M = TransferPlan::Move;
  return JsonRecord(
      "move", "A copy of a box to one place that wants it.",
      Field("from", &M::from, "Rank that sends it."),
      Field("from_item", &M::from_item,
            "Position of the item that holds it in that rank's layout."),
      Field("to", &M::to, "Rank that receives it; the sender itself copies in its memory."),
      Field("to_item", &M::to_item, "Position of the item that wants it in that rank's layout."));
}

/// A part of a tensor that moves as a whole.
struct MovedPart {
  const TransferPlan* plan = nullptr;
  const TransferPlan::Part* part = nullptr;

  const Box& box() const { return part->box; }
};

constexpr auto json_record(const MovedPart*) {
  using M = MovedPart;
  return JsonRecord(
      "part", "A box of a tensor that moves as a whole.",
      Field("offsets", nested(&M::box, &Box::offsets),
            "First element of the box in the global tensor."),
      Field("sizes", nested(&M::box, &Box::sizes), "Extents of the box."),
      Field("bytes", nested(&M::part, &TransferPlan::Part::bytes), "Bytes of the box."),
      Field(
          "moves", [](const M& of) { return of.plan->moves_of(*of.part); },
          "One for each place that wants the box."));
}

/// A tensor of which something moves.
struct MovedTensor {
  const TransferPlan::Tensor* tensor = nullptr;
  std::vector<MovedPart> parts{};
};

constexpr auto json_record(const MovedTensor*) {
  using M = MovedTensor;
  using T = TransferPlan::Tensor;
  return JsonRecord("tensor", "A tensor of which something moves.",
                    Field("key", nested(&M::tensor, &T::key), "Its name."),
                    Field("dtype", nested(&M::tensor, &T::dtype)),
                    Field("shape", nested(&M::tensor, &T::shape), "Global shape."),
                    Field("parts", &M::parts, "Boxes of the tensor that move as a whole."));
}

/// Returns the tensors with their parts, without those of which nothing moves.
inline std::vector<MovedTensor> moved_tensors(const TransferPlan& plan) {
  std::vector<MovedTensor> tensors(plan.tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor = &plan.tensors[i];
  for (const TransferPlan::Part& part : plan.parts)
    tensors[part.tensor].parts.push_back({&plan, &part});
  std::erase_if(tensors, [](const MovedTensor& tensor) { return tensor.parts.empty(); });
  return tensors;
}

constexpr auto json_record(const TransferPlan*) {
  using P = TransferPlan;
  return JsonRecord(
      "", "", Field("ranks", &P::ranks, "Ranks of the job, numbered from 0."),
      Field(
          "tensors", [](const P& plan) { return moved_tensors(plan); },
          "Tensors of which something moves, in the order in which ranks mention them."),
      Field("sent_bytes", &P::sent_bytes, "Bytes that each rank sends to others."),
      Field("received_bytes", &P::received_bytes, "Bytes that each rank receives from others."));
}

}  // namespace dckpt
