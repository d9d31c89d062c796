// Loads without a state dict: the parts to read are selected from the stored ones.

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/select_keys.h"
#include "dist_checkpointing/open/key_groups.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/state/flatten.h"
#include "strategies/comm/agree.h"
#include "strategies/contract/common_state.h"

namespace dckpt {
namespace {

/// Returns a whole stored tensor, without data.
ShardedTensor whole_tensor(const TensorStorageMetadata& tensor) {
  return ShardedTensor::whole(tensor.key,
                              Tensor::meta(tensor.properties.dtype, tensor.global_shape()));
}

StateDict described_tensors(const Metadata& metadata) {
  Value state = Value::dict();
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    state[tensor.key] = whole_tensor(tensor);
  return state;
}

/// The parts to read for some keys, and their places in the result.
struct KeyChoice {
  std::vector<SelectedKey> chosen{};
  std::vector<std::pair<KeyPath, Value>> leaves{};  ///< tensors for `chosen`, none for objects
  ReadRequest read{};
};

KeyChoice choose(const LoadCall& call, const OpenedCheckpoint& from,
                 const std::vector<std::string>& keys) {
  KeyChoice choice;
  std::set<std::string> unused;
  choice.chosen = select_keys(from.metadata(), keys, unused);
  if (!unused.empty() && !call.options.allow_partial_load)
    throw_error(ErrorCode::kMismatch,
                "Missing key in checkpoint state_dict (load.allow_partial_load goes on "
                "without such keys):" +
                    table_of_unknown(unused, from.keys.names()));
  std::erase_if(choice.chosen,
                [&](const SelectedKey& entry) { return !from.keys.contains(entry.key); });
  TensorRequestBuilder builder(*from.reader, from.keys, call.options);
  for (const SelectedKey& entry : choice.chosen) {
    const auto tensor = from.keys.tensor(entry.key);
    choice.leaves.emplace_back(
        entry.path,
        tensor ? Value(builder.add(whole_tensor(from.metadata().tensors[*tensor]))) : Value());
    if (const auto object = from.keys.object(entry.key)) choice.read.objects.push_back(*object);
  }
  choice.read.tensors = builder.finish();
  return choice;
}

/// Returns the objects of a key, in the order of their places in the grid.
std::vector<std::uint32_t> cells_of(const OpenedCheckpoint& from, const std::string& key,
                                    const Location& location) {
  std::vector<std::uint32_t> positions = from.keys.cells(key);
  if (const auto plain = from.keys.object(key); positions.empty() && plain)
    positions.push_back(*plain);
  if (!positions.empty()) return positions;
  const bool is_tensor = from.keys.tensor(key).has_value();
  throw_error(ErrorCode::kMismatch, {.key = key, .file = location.display()},
              str_format("the checkpoint has no objects of this key{}",
                         is_tensor ? ": a tensor is stored under it" : ":") +
                  (is_tensor ? "" : table_of_unknown({key}, from.keys.keys())));
}

}  // namespace

StateDict load_state_dict(const Location& location, const std::vector<std::string>& keys,
                          const LoadOptions& options, Communicator& comm) try {
  LoadCall call(location, options, comm);
  const OpenedCheckpoint from = open_for(Call::kLoadAll, call);
  KeyChoice choice;
  agree(comm, "choosing what to load", [&] { choice = choose(call, from, keys); });
  const ReadObjects objects = read_request(call, from, choice.read);
  StateDict state;
  finish_load(call, [&] {
    for (std::size_t i = 0; i < choice.chosen.size(); ++i) {
      if (const auto object = from.keys.object(choice.chosen[i].key))
        choice.leaves[i].second = objects.at(*object);
    }
    state = unflatten_state_dict(choice.leaves);
  });
  return state;
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_state_dict(const Location& location, const std::vector<std::string>& keys,
                          const LoadOptions& options) {
  const auto alone = single_rank();
  return load_state_dict(location, keys, options, *alone);
}

std::vector<ShardedObject> load_objects(const Location& location, const std::string& key,
                                        const LoadOptions& options) try {
  const auto alone = single_rank();
  LoadCall call(location, options, *alone);
  const OpenedCheckpoint from = open_for(Call::kLoadTensors, call);
  const ReadRequest request{.objects = cells_of(from, key, location)};
  const ReadObjects objects = read_request(call, from, request);
  std::vector<ShardedObject> cells;
  finish_load(call, [&] {
    for (const std::uint32_t position : request.objects) {
      const std::string& stored = from.metadata().objects[position].key;
      cells.push_back(
          ShardedObject::parse_unique_key(stored).value_or(ShardedObject{.key = stored}));
      cells.back().data = objects.at(position);
      cells.back().has_data = true;
    }
  });
  return cells;
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_plain_tensors(const Location& location, const LoadOptions& options) try {
  const auto alone = single_rank();
  LoadCall call(location, options, *alone);
  const OpenedCheckpoint from = open_for(Call::kLoadTensors, call);
  TensorRequestBuilder builder(*from.reader, from.keys, options);
  Value state = Value::dict();
  for (const TensorStorageMetadata& tensor : from.metadata().tensors)
    state[tensor.key] = builder.add(whole_tensor(tensor));
  read_request(call, from, {.tensors = builder.finish()});
  finish_load(call, [] {});
  return state;
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_common_state(const Location& location, const OpenOptions& options) try {
  return open_checkpoint(location, options)->common_state();
} catch (...) {
  throw_checkpoint_error();
}

std::optional<Value> load_content_metadata(const Location& location,
                                           const OpenOptions& options) try {
  const Value common = load_common_state(location, options);
  const Value* const found = common.is_dict() ? common.find(kContentMetadataKey) : nullptr;
  if (found == nullptr || found->is_none()) return std::nullopt;
  return *found;
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_tensors_metadata(const Location& location, const OpenOptions& options) try {
  return described_tensors(open_checkpoint(location, options)->metadata());
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_sharded_metadata(const Location& location, const OpenOptions& options) try {
  const auto reader = open_checkpoint(location, options);
  Value state = described_tensors(reader->metadata());
  for (const BytesStorageMetadata& object : reader->metadata().objects) {
    const auto cell = ShardedObject::parse_unique_key(object.key);
    state[object.key] =
        cell ? Value(*cell) : Value();  // a plain DCP directory stores values under their paths
  }
  return state;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
