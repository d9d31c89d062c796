#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "mapping/base/bytes.h"
#include "mapping/state/value.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

/// Knowledge of a reader beyond the pickle itself.
struct ValueHooks {
  /// Returns the value that a persistent id stands for, mostly a TorchStorage. Without this hook a
  /// persistent id is an error (corrupt).
  std::function<Value(const Value& persistent_id)> persistent{};
  /// Returns the value of a call or object that the caller knows, mostly a Tensor; an empty result
  /// keeps it as Opaque. Called once an object is complete, after the calls for its arguments and
  /// states.
  std::function<std::optional<Value>(const Opaque& object)> known{};
};

/// Turns nodes of a graph into Values. A part that leads back to a node that contains it becomes a
/// reference. A node that is referred to twice becomes copies of one Value, within and between
/// calls, so that sharing costs no memory and is kept when the Value is written again. Calls and
/// objects stay Opaque, except those that only spell a plain value in old protocols:
/// `_codecs.encode(str, 'latin1')` and `bytes()` (bytes), `bytearray(…)`, `set([…])`,
/// `frozenset([…])`, `complex(re, im)`, `copyreg.__newobj__` and `copyreg.__newobj_ex__` (a new
/// object). Keeps a reference to the graph. One thread at a time may use it.
class GraphValues {
 public:
  explicit GraphValues(const Graph& graph, ValueHooks hooks = {}, const Limits& limits = {});
  ~GraphValues();
  GraphValues(GraphValues&&) noexcept;
  GraphValues& operator=(GraphValues&&) noexcept;

  /// Throws CheckpointError without a file (see with_context): corrupt for unhashable or repeated
  /// keys and members and for persistent ids that no hook resolves; unsupported for values that are
  /// nested deeper than max_depth, or that would be larger as a tree than as a graph by more than
  /// max_expanded references and 16-byte pieces of text.
  Value value(Graph::Id id);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the value of the graph's root.
Value value_from_graph(const Graph& graph, ValueHooks hooks = {}, const Limits& limits = {});

struct WriteOptions {
  int protocol = 2;  ///< 2 (as torch.save writes) or 4
  /// Returns the value to write for a tensor: mostly an Opaque call with a TorchStorage among its
  /// arguments. Without it a tensor is an error (invalid argument).
  std::function<Value(const Tensor& tensor)> reduce_tensor{};
  /// Returns the persistent id of a storage. Without it a storage is an error (invalid argument).
  std::function<Value(const TorchStorage& storage)> persistent_id{};
};

/// Returns the pickle of a value, which Python loads as an equal object. Values that share data
/// (Value::identity) are written once. Throws CheckpointError (invalid argument) for sharded
/// leaves, factories and non-persistent objects, for references to values that are not written, and
/// for more than 1100 levels.
Bytes write_pickle(const Value& value, const WriteOptions& options = {});

}  // namespace dckpt::pickle
