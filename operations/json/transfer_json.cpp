#include "operations/json/reports.h"
#include "operations/json/values.h"
#include "transfer/transfer_plan.h"

namespace dckpt {
namespace {

Value to_value(const TransferPlan::Move& move) {
  return Value::dict({{"from", move.from},
                      {"from_item", move.from_item},
                      {"to", move.to},
                      {"to_item", move.to_item}});
}

}  // namespace

std::string to_json(const TransferPlan& plan) {
  std::vector<ValueList> parts(plan.tensors.size());
  for (const TransferPlan::Part& part : plan.parts)
    parts[part.tensor].push_back(
        Value::dict({{"offsets", json_list(part.box.offsets)},
                     {"sizes", json_list(part.box.sizes)},
                     {"bytes", part.bytes},
                     {"moves", json_list(plan.moves_of(part), [](const TransferPlan::Move& move) {
                        return to_value(move);
                      })}}));
  ValueList tensors;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const TransferPlan::Tensor& tensor = plan.tensors[i];
    if (parts[i].empty()) continue;
    tensors.push_back(Value::dict({{"key", tensor.key},
                                   {"dtype", to_string(tensor.dtype)},
                                   {"shape", json_list(tensor.shape)},
                                   {"parts", Value::list(std::move(parts[i]))}}));
  }
  return json_text(Value::dict({{"ranks", plan.ranks},
                                {"tensors", Value::list(std::move(tensors))},
                                {"sent_bytes", json_list(plan.sent_bytes)},
                                {"received_bytes", json_list(plan.received_bytes)}}));
}

}  // namespace dckpt
