#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/state/value.h"
#include "strategies/formats/pickle/value.h"

namespace dckpt::testing {

inline constexpr const char* kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr const char* kFilesystemModule = "torch.distributed.checkpoint.filesystem";

/// Python values as their pickles describe them.
inline Value call(const char* module, const char* name, ValueList args) {
  Opaque opaque;
  opaque.callable = Global{module, name};
  opaque.args = Value::tuple(std::move(args));
  return opaque;
}
inline Value object(const char* module, const char* name, std::optional<Value> state = {}) {
  Opaque opaque;
  opaque.form = Opaque::Form::kNew;
  opaque.callable = Global{module, name};
  if (state) opaque.states.push_back(*state);
  return opaque;
}
/// Returns a dict that may name a key twice.
inline Value ordered_dict(std::vector<std::pair<Value, Value>> items) {
  Opaque opaque;
  opaque.callable = Global{"collections", "OrderedDict"};
  opaque.dict_items = std::move(items);
  return opaque;
}
inline Value size(ValueList numbers) {
  return call("torch", "Size", {Value::tuple(std::move(numbers))});
}
inline Value layout(const char* name = "torch.strided") {
  return call("torch.serialization", "_get_layout", {name});
}
inline Value memory_format(int value = 0) {
  return call(kMetadataModule, "_MEM_FORMAT_ENCODING", {value});
}
inline Value properties(Value dtype, Value new_layout = layout(),
                        Value new_format = memory_format()) {
  return object(
      kMetadataModule, "TensorProperties",
      Value::tuple({std::move(dtype), std::move(new_layout), false, std::move(new_format), false}));
}
inline Value properties(const char* dtype) {
  return properties(Global{"torch", dtype});
}
inline Value chunk(ValueList offsets, ValueList sizes) {
  return object(
      kMetadataModule, "ChunkStorageMetadata",
      Value::dict({{"offsets", size(std::move(offsets))}, {"sizes", size(std::move(sizes))}}));
}
inline Value bytes_entry() {
  return object(kMetadataModule, "BytesStorageMetadata");
}
inline Value info(Value path, Value offset, Value length, Dict more = {}) {
  Dict state{{"relative_path", std::move(path)},
             {"offset", std::move(offset)},
             {"length", std::move(length)}};
  for (const auto& [key, value] : more) state.set(key, value);
  return object(kFilesystemModule, "_StorageInfo", Value(std::move(state)));
}
inline Value index(Value fqn, std::optional<Value> offset = {}, Value hint = {}) {
  Dict state{{"fqn", std::move(fqn)}, {"index", std::move(hint)}};
  if (offset) state.set("offset", *offset);
  return object(kMetadataModule, "MetadataIndex", Value(std::move(state)));
}

/// The metadata of a small sound checkpoint, of which a test can change every value before it is
/// pickled: tensor "w" float32 (8, 6) in two chunks, tensor "b" bfloat16 (5,) in one, object
/// "rng/shard_0_1".
struct MetadataModel {
  struct Tensor {
    Value properties;
    Value size;
    ValueList chunks;
  };
  Tensor w{properties("float32"), size({8, 6}), {chunk({0, 0}, {4, 6}), chunk({4, 0}, {4, 6})}};
  Tensor b{properties("bfloat16"), size({5}), {chunk({0}, {5})}};
  Value w_key = "w";
  Value b_key = "b";
  Value rng = bytes_entry();
  std::vector<std::pair<Value, Value>> more_entries;
  std::vector<std::pair<Value, Value>> records{
      {index("w", size({0, 0}), 0), info("__0_0.distcp", 0, 1000)},
      {index("w", size({4, 0}), 1), info("__1_0.distcp", 0, 1000)},
      {index("b", size({0}), 0), info("__0_0.distcp", 1000, 500)},
      {index("rng/shard_0_1"), info("__1_0.distcp", 1000, 700)},
  };
  Dict more{{"planner_data", Value()}, {"storage_meta", Value()}};
  std::optional<Value> storage_data;  // instead of the records
  Global type{kMetadataModule, "Metadata"};

  static Value entry(const Tensor& tensor) {
    return object(kMetadataModule, "TensorStorageMetadata",
                  Value::dict({{"properties", tensor.properties},
                               {"size", tensor.size},
                               {"chunks", Value::list(tensor.chunks)}}));
  }

  Bytes pickle() const {
    std::vector<std::pair<Value, Value>> entries{
        {w_key, entry(w)}, {b_key, entry(b)}, {"rng/shard_0_1", rng}};
    entries.insert(entries.end(), more_entries.begin(), more_entries.end());
    Dict state{{"state_dict_metadata", ordered_dict(std::move(entries))},
               {"storage_data", storage_data.value_or(ordered_dict(records))}};
    for (const auto& [key, value] : more) state.set(key, value);
    return pickle::write_pickle(
        object(type.module.c_str(), type.name.c_str(), Value(std::move(state))), {.protocol = 4});
  }
};

}  // namespace dckpt::testing
