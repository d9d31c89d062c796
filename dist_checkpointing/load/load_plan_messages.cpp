#include "dist_checkpointing/load/load_plan_messages.h"

#include <concepts>
#include <tuple>
#include <utility>

#include "mapping/base/wire_fields.h"
#include "mapping/geometry/box.h"
#include "mapping/geometry/shape.h"

namespace dckpt {

// These are found where the types are, by the functions of wire_fields.h.
static constexpr auto fields(const FlattenedRange*) {
  return std::tuple(Field(&FlattenedRange::begin), Field(&FlattenedRange::end));
}
static constexpr auto fields(const ShardedTensor*) {
  using S = ShardedTensor;
  return std::tuple(
      Field(&S::key), Field(&S::dtype), Field(&S::local_shape), Field(&S::global_shape),
      Field(&S::global_offset), Field(&S::axis_fragmentations), Field(&S::replica_id),
      Field(&S::prepend_axis_num), Field(&S::allow_shape_mismatch), Field(&S::flattened_range));
}
static constexpr auto fields(const Box*) {
  return std::tuple(Field(&Box::offsets), Field(&Box::sizes));
}
static constexpr auto fields(const LoadItem*) {
  using L = LoadItem;
  return std::tuple(Field(&L::target), Field(&L::wanted), Field(&L::tensor), Field(&L::part));
}

static void write_to(WireWriter& writer, DType dtype) {
  writer.text(to_string(dtype));
}

static void read_from(WireReader& reader, DType& dtype) {
  const auto known = parse_dtype(reader.text());
  if (!known) reader.malformed("it names an element type that does not exist");
  dtype = *known;
}

template <std::same_as<ReplicaId> Id>  // numbers convert to one
static void write_to(WireWriter& writer, const Id& id) {
  write_value(writer, id.is_tuple());
  write_value(writer, id.parts());
}

static void read_from(WireReader& reader, ReplicaId& id) {
  const bool is_tuple = reader.number(1) == 1;
  Shape parts(reader.count());
  for (std::int64_t& part : parts) part = static_cast<std::int64_t>(reader.number());
  if (!is_tuple && parts.size() != 1)
    reader.malformed("a replica id that is no tuple has one part");
  id = is_tuple ? ReplicaId(std::move(parts)) : ReplicaId(parts[0]);
}

Bytes encode(const LoadPlan& plan) {
  for (const LoadItem& item : plan) item.tensor.validate();
  return message_of(plan);
}

LoadPlan decode_load_plan(ByteView bytes) {
  auto plan = read_message<LoadPlan>(bytes, "a rank's load plan");
  for (const LoadItem& item : plan) item.tensor.validate();
  return plan;
}

}  // namespace dckpt
