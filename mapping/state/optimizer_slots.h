#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// The part of a parameter for which an optimizer's state has one element. State is cut among the
/// ranks as the parameter is, along the axes that both have. Ranks with pieces along the other axes
/// have the same elements, and the first one saves them.
enum class StateCut : std::uint8_t {
  kParam,   ///< an element: momenta
  kRow,     ///< a row; the state lacks the last axis: Adafactor's factors of rows
  kColumn,  ///< a column; the state lacks the last axis but one: Adafactor's factors of columns
  kNumber,  ///< the whole parameter; the state has no axis: a counter, a scale
};

/// One of the tensors that an optimizer keeps for a parameter.
struct OptimizerSlot {
  std::string name;  ///< "exp_avg"
  StateCut cut = StateCut::kParam;
  /// Extents of axes in front that no rank cuts: those of a history of LBFGS.
  Shape stacked{};
  /// Returns the tensor on this rank, whose memory the description shares: the one that the
  /// optimizer has, or, before its first step, one that it makes in this shape and keeps.
  std::function<Tensor(const Shape& shape)> tensor{};
};

/// The state that an optimizer keeps for the parameter stored under `key`, of which this rank has
/// `param`; none for a frozen one.
using OptimizerHook =
    std::function<std::vector<OptimizerSlot>(const std::string& key, const Tensor& param)>;

/// Describes an optimizer of your own: per slot a tree like `params`, a tree of ShardedTensors and
/// factories, with the state of each parameter that has it under the key PREFIX.SLOT.KEY. Throws
/// CheckpointError (invalid argument), with the key, if a tensor has another shape than its slot,
/// if a slot has no tensor, if two slots have one name, or if a slot does not fit the parameter:
/// one by row or column for fewer than two axes or a flattened range, and one by row or with
/// stacked axes for a factory.
Value optimizer_state(const Value& params, const OptimizerHook& hook,
                      std::string_view prefix = "optimizer.state");

/// Describes one slot of a parameter, without its data. Throws as optimizer_state() does.
ShardedTensor shard_like(const ShardedTensor& param, std::string key, StateCut cut,
                         const Shape& stacked = {});

}  // namespace dckpt
