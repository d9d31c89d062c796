#include "dist_checkpointing/load/load_plan_messages.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "mapping/base/wire.h"
#include "mapping/geometry/shape.h"

namespace dckpt {
namespace {

void encode_shape(WireWriter& writer, const Shape& shape) {
  writer.number(shape.size());
  for (const std::int64_t extent : shape) writer.number(static_cast<std::uint64_t>(extent));
}

Shape decode_shape(WireReader& reader) {
  Shape shape(reader.count());
  for (std::int64_t& extent : shape) extent = reader.signed_number();
  return shape;
}

void encode_dtype(WireWriter& writer, DType dtype) {
  writer.text(to_string(dtype));
}

DType decode_dtype(WireReader& reader) {
  const std::optional<DType> dtype = parse_dtype(reader.text());
  if (!dtype) reader.malformed("it names an element type that does not exist");
  return *dtype;
}

void encode_tensor(WireWriter& writer, const ShardedTensor& tensor) {
  writer.text(tensor.key);
  encode_dtype(writer, tensor.dtype);
  encode_shape(writer, tensor.local_shape);
  encode_shape(writer, tensor.global_shape);
  encode_shape(writer, tensor.global_offset);
  writer.number(tensor.axis_fragmentations ? 1 : 0);
  if (tensor.axis_fragmentations) encode_shape(writer, *tensor.axis_fragmentations);
  writer.number(tensor.replica_id.is_tuple() ? 1 : 0);
  encode_shape(writer, tensor.replica_id.parts());
  writer.number(static_cast<std::uint64_t>(tensor.prepend_axis_num));
  writer.number(tensor.allow_shape_mismatch ? 1 : 0);
  writer.number(tensor.flattened_range ? 1 : 0);
  if (!tensor.flattened_range) return;
  writer.number(static_cast<std::uint64_t>(tensor.flattened_range->begin));
  writer.number(static_cast<std::uint64_t>(tensor.flattened_range->end));
}

ReplicaId decode_replica(WireReader& reader) {
  const bool is_tuple = reader.number(1) == 1;
  Shape parts(reader.count());
  for (std::int64_t& part : parts) part = static_cast<std::int64_t>(reader.number());
  if (is_tuple) return ReplicaId(std::move(parts));
  if (parts.size() != 1) reader.malformed("a replica id that is no tuple has one part");
  return {parts[0]};
}

ShardedTensor decode_tensor(WireReader& reader) {
  ShardedTensor tensor;
  tensor.key = reader.text();
  tensor.dtype = decode_dtype(reader);
  tensor.local_shape = decode_shape(reader);
  tensor.global_shape = decode_shape(reader);
  tensor.global_offset = decode_shape(reader);
  if (reader.number(1) == 1) tensor.axis_fragmentations = decode_shape(reader);
  tensor.replica_id = decode_replica(reader);
  tensor.prepend_axis_num = static_cast<std::int64_t>(reader.number(INT32_MAX));
  tensor.allow_shape_mismatch = reader.number(1) == 1;
  if (reader.number(1) == 1) {
    const std::int64_t begin = reader.signed_number();
    tensor.flattened_range = {begin, reader.signed_number()};
  }
  tensor.validate();
  return tensor;
}

}  // namespace

Bytes encode(const LoadPlan& plan) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(plan.size());
  for (const LoadItem& item : plan) {
    item.tensor.validate();
    writer.number(item.target);
    encode_dtype(writer, item.wanted);
    encode_tensor(writer, item.tensor);
  }
  return bytes;
}

LoadPlan decode_load_plan(ByteView bytes) {
  WireReader reader(bytes, "a rank's load plan");
  LoadPlan plan;
  const std::size_t items = reader.count();
  for (std::size_t i = 0; i < items; ++i) {
    LoadItem item;
    item.target = reader.number();
    item.wanted = decode_dtype(reader);
    item.tensor = decode_tensor(reader);
    plan.push_back(std::move(item));
  }
  reader.finish();
  return plan;
}

}  // namespace dckpt
