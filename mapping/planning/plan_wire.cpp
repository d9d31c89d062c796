// A local plan on the wire: "DCP2", the number of strings and items, the strings (keys, each once),
// the items. Numbers are LEB128: none of them is negative. A plan of 256 items is a few kilobytes.

#include <unordered_map>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "mapping/planning/save_plan.h"

namespace dckpt {
namespace {

constexpr std::string_view kMagic = "DCP2";

constexpr std::uint64_t kIsObject = 1;
constexpr std::uint64_t kRequiresGrad = 2;
constexpr std::uint64_t kPinned = 4;
constexpr std::uint64_t kReformulated = 8;
constexpr std::uint64_t kFlattened = 16;
constexpr std::uint64_t kReplica = 32;
constexpr std::uint64_t kAllFlags = 63;

void write_shape(WireWriter& writer, ShapeView shape) {
  writer.number(shape.size());
  for (const std::int64_t extent : shape) writer.number(static_cast<std::uint64_t>(extent));
}

Shape read_shape(WireReader& reader) {
  Shape shape(reader.number(kMaxDims + 1));
  for (std::int64_t& extent : shape) extent = reader.signed_number();
  return shape;
}

void decode_tensor(WireReader& reader, std::uint64_t flags, WriteItem& item) {
  const auto dtype = static_cast<DType>(reader.number(static_cast<std::uint64_t>(DType::kQInt32)));
  const auto memory_format = static_cast<TensorProperties::MemoryFormat>(
      reader.number(static_cast<std::uint64_t>(TensorProperties::MemoryFormat::kPreserve)));
  item.properties = {dtype, (flags & kRequiresGrad) != 0, memory_format, (flags & kPinned) != 0};
  item.source_begin = reader.signed_number();
  item.size = read_shape(reader);
  item.chunk.offsets = read_shape(reader);
  item.chunk.sizes = read_shape(reader);
  item.flattened = (flags & kFlattened) != 0;
  if (flags & kReformulated) item.flattened_shape = read_shape(reader);
  if (!checked_numel(item.size) || !fits(item.chunk, item.size))
    reader.malformed("a chunk lies outside its tensor");
  if (item.flattened_shape && !checked_numel(*item.flattened_shape))
    reader.malformed("an original shape is too large");
  const auto bytes = checked_mul(static_cast<std::uint64_t>(numel(item.chunk.sizes)),
                                 static_cast<std::uint64_t>(item_size(dtype)));
  if (!bytes) reader.malformed("a chunk is too large");
  item.nbytes = *bytes;
}

void decode_object(WireReader& reader, WriteItem& item) {
  item.grid_key = reader.text();
  item.size = read_shape(reader);
  item.chunk.offsets = read_shape(reader);
  item.chunk.sizes.assign(item.chunk.offsets.size(), 1);
  if (!checked_numel(item.size) || !fits(item.chunk, item.size))
    reader.malformed("an object lies outside its grid");
}

}  // namespace

Bytes encode_plan(const SavePlan& plan) {
  std::unordered_map<std::string_view, std::uint64_t> numbers;
  std::vector<std::string_view> keys;
  for (const WriteItem& item : plan) {
    if (numbers.try_emplace(item.key, keys.size()).second) keys.push_back(item.key);
  }
  Bytes out = to_bytes(kMagic);
  WireWriter writer(out);
  writer.number(keys.size());
  writer.number(plan.size());
  for (const std::string_view key : keys) writer.text(key);
  for (const WriteItem& item : plan) {
    const bool is_object = item.kind == WriteItem::Kind::kObject;
    writer.number(
        (is_object ? kIsObject : 0U) | (item.properties.requires_grad ? kRequiresGrad : 0U) |
        (item.properties.pin_memory ? kPinned : 0U) | (item.flattened_shape ? kReformulated : 0U) |
        (item.flattened ? kFlattened : 0U) | (item.main_replica ? 0U : kReplica));
    writer.number(numbers.at(item.key));
    writer.number(item.source);
    if (is_object) {
      writer.text(item.grid_key);
      write_shape(writer, item.size);
      write_shape(writer, item.chunk.offsets);
      continue;
    }
    writer.number(static_cast<std::uint64_t>(item.properties.dtype));
    writer.number(static_cast<std::uint64_t>(item.properties.memory_format));
    writer.number(static_cast<std::uint64_t>(item.source_begin));
    write_shape(writer, item.size);
    write_shape(writer, item.chunk.offsets);
    write_shape(writer, item.chunk.sizes);
    if (item.flattened_shape) write_shape(writer, *item.flattened_shape);
  }
  return out;
}

SavePlan decode_plan(ByteView bytes) {
  const std::string what = "a save plan from another rank";
  if (!as_text(bytes).starts_with(kMagic))
    throw CheckpointError(
        ErrorCode::kCorrupt,
        what + " does not begin with 'DCP2'; all ranks must run the same version");
  WireReader reader(bytes.subspan(kMagic.size()), what);
  const std::size_t key_count = reader.count();
  const std::size_t item_count = reader.count();
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < key_count; ++i) keys.push_back(reader.text());
  SavePlan plan;
  for (std::size_t i = 0; i < item_count; ++i) {
    WriteItem item;
    const std::uint64_t flags = reader.number(kAllFlags);
    const std::uint64_t key = reader.number();
    if (key >= keys.size()) reader.malformed("a key number is out of range");
    item.key = keys[key];
    item.main_replica = (flags & kReplica) == 0;
    item.source = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    item.kind = (flags & kIsObject) ? WriteItem::Kind::kObject : WriteItem::Kind::kTensor;
    item.kind == WriteItem::Kind::kTensor ? decode_tensor(reader, flags, item)
                                          : decode_object(reader, item);
    plan.push_back(std::move(item));
  }
  reader.finish();
  return plan;
}

}  // namespace dckpt
