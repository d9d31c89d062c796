// The messages. Numbers are LEB128 and never negative.
//
//   local plan   "DCP3", the number of strings and items, the strings (keys, each once), the items.
//                A plan of 256 items is a few kilobytes.
//   proposal     one byte of rules, one byte that says what follows, and a local plan or the 16
//                bytes of its fingerprint
//   answer       one byte that says what follows, and nothing (unchanged) or a list of items: their
//                number, then for each the distance from the previous item and whether it is a
//                piece, then the piece

#include "mapping/planning/save/messages.h"

#include <algorithm>
#include <unordered_map>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

constexpr std::string_view kMagic = "DCP3";
constexpr std::size_t kReservedItems = std::size_t{1}
                                       << 16;  // the most reserved on a message's word

constexpr std::uint64_t kIsObject = 1;
constexpr std::uint64_t kRequiresGrad = 2;
constexpr std::uint64_t kPinned = 4;
constexpr std::uint64_t kReformulated = 8;
constexpr std::uint64_t kFlattened = 16;
constexpr std::uint64_t kReplica = 32;
constexpr std::uint64_t kReshaped = 64;
constexpr std::uint64_t kAdded = 128;
constexpr std::uint64_t kAllFlags = 255;

enum ProposalKind : std::uint8_t { kPlan = 0, kSamePlan = 1 };
enum AnswerKind : std::uint8_t { kItems = 0, kSameItems = 1 };

void append_fingerprint(Bytes& message, const Fingerprint& fingerprint) {
  append_le(message, fingerprint.low);
  append_le(message, fingerprint.high);
}

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
  if (flags & kReshaped) item.source_shape = read_shape(reader);
  if (!checked_numel(item.size) || !fits(item.chunk, item.size))
    reader.malformed("a chunk lies outside its tensor");
  if (item.flattened_shape && !checked_numel(*item.flattened_shape))
    reader.malformed("an original shape is too large");
  if (item.source_shape && !checked_numel(*item.source_shape))
    reader.malformed("the shape of a source is too large");
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
  std::unordered_map<std::string_view, std::uint64_t> known;
  known.reserve(plan.size());
  std::vector<std::string_view> keys;
  std::vector<std::uint64_t> numbers;  // of the items' keys
  numbers.reserve(plan.size());
  for (const WriteItem& item : plan) {
    const auto [key, is_new] = known.try_emplace(item.key, keys.size());
    if (is_new) keys.push_back(item.key);
    numbers.push_back(key->second);
  }
  Bytes out = to_bytes(kMagic);
  WireWriter writer(out);
  writer.number(keys.size());
  writer.number(plan.size());
  for (const std::string_view key : keys) writer.text(key);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const WriteItem& item = plan[i];
    const bool is_object = item.kind == WriteItem::Kind::kObject;
    writer.number(
        (is_object ? kIsObject : 0U) | (item.properties.requires_grad ? kRequiresGrad : 0U) |
        (item.properties.pin_memory ? kPinned : 0U) | (item.flattened_shape ? kReformulated : 0U) |
        (item.flattened ? kFlattened : 0U) | (item.main_replica ? 0U : kReplica) |
        (item.source_shape ? kReshaped : 0U) | (item.added ? kAdded : 0U));
    writer.number(numbers[i]);
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
    if (item.source_shape) write_shape(writer, *item.source_shape);
  }
  return out;
}

SavePlan decode_plan(ByteView bytes) {
  const std::string what = "a save plan from another rank";
  if (!as_text(bytes).starts_with(kMagic))
    throw_error(ErrorCode::kCorrupt,
                what + " does not begin with 'DCP3'; all ranks must run the same version");
  WireReader reader(bytes.subspan(kMagic.size()), what);
  const std::size_t key_count = reader.count();
  const std::size_t item_count = reader.count();
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < key_count; ++i) keys.push_back(reader.text());
  SavePlan plan;
  plan.reserve(std::min(item_count, kReservedItems));
  for (std::size_t i = 0; i < item_count; ++i) {
    WriteItem item;
    const std::uint64_t flags = reader.number(kAllFlags);
    const std::uint64_t key = reader.number();
    if (key >= keys.size()) reader.malformed("a key number is out of range");
    item.key = keys[key];
    item.main_replica = (flags & kReplica) == 0;
    item.added = (flags & kAdded) != 0;
    item.source = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    item.kind = (flags & kIsObject) ? WriteItem::Kind::kObject : WriteItem::Kind::kTensor;
    item.kind == WriteItem::Kind::kTensor ? decode_tensor(reader, flags, item)
                                          : decode_object(reader, item);
    plan.push_back(std::move(item));
  }
  reader.finish();
  return plan;
}

std::uint8_t encode_rules(const PlannerOptions& options, bool use_replicas) noexcept {
  return static_cast<std::uint8_t>(
      static_cast<unsigned>(options.kind) | static_cast<unsigned>(options.effective_dedup()) << 2 |
      (options.cache ? 16U : 0U) | (options.validate ? 32U : 0U) |
      (options.split_replicas ? 64U : 0U) | (use_replicas ? 128U : 0U));
}

std::string describe_rules(std::uint8_t rules) {
  const auto on = [&](unsigned bit) { return (rules & bit) != 0 ? "true" : "false"; };
  return str_format(
      "kind {}, dedup {}, cache {}, validate {}, split_replicas {}, fully parallel {}",
      to_string(static_cast<PlannerKind>(rules & 3U)),
      to_string(static_cast<Dedup>(rules >> 2 & 3U)), on(16), on(32), on(64), on(128));
}

Bytes encode_proposal(std::uint8_t rules, ByteView plan) {
  Bytes message{std::byte{rules}, std::byte{kPlan}};
  message.insert(message.end(), plan.begin(), plan.end());
  return message;
}

Bytes encode_unchanged_proposal(std::uint8_t rules, const Fingerprint& plan) {
  Bytes message{std::byte{rules}, std::byte{kSamePlan}};
  append_fingerprint(message, plan);
  return message;
}

Proposal decode_proposal(ByteView bytes) {
  if (bytes.size() < 2)
    throw_error(ErrorCode::kCorrupt, "the proposal of a plan has {} bytes", bytes.size());
  if (bytes[1] > std::byte{kSamePlan})
    throw_error(ErrorCode::kCorrupt, "the proposal of a plan is of kind {}, expected at most {}",
                std::to_integer<int>(bytes[1]), +kSamePlan);
  return {static_cast<std::uint8_t>(bytes[0]), bytes[1] != std::byte{kPlan}, bytes.subspan(2)};
}

bool refers_to(const Proposal& proposal, const Fingerprint& plan) {
  Bytes expected;
  append_fingerprint(expected, plan);
  return std::ranges::equal(proposal.content, expected);
}

Bytes encode_unchanged_answer() {
  return {std::byte{kSameItems}};
}

Bytes encode_answer(std::span<const AssignedItem> items) {
  Bytes bytes{std::byte{kItems}};
  WireWriter writer(bytes);
  writer.number(items.size());
  std::uint32_t next = 0;
  for (const AssignedItem& assigned : items) {
    writer.number(std::uint64_t{assigned.item - next} << 1 | (assigned.end != 0 ? 1U : 0U));
    next = assigned.item + 1;
    if (assigned.end == 0) continue;
    writer.number(static_cast<std::uint64_t>(assigned.begin));
    writer.number(static_cast<std::uint64_t>(assigned.end));
  }
  return bytes;
}

std::optional<std::vector<AssignedItem>> decode_answer(ByteView bytes, const SavePlan& local) {
  WireReader reader(bytes.subspan(std::min<std::size_t>(bytes.size(), 1)),
                    "the final plan from the coordinator");
  if (bytes.empty() || bytes[0] > std::byte{kSameItems})
    reader.malformed("it does not say whether it has changed");
  if (bytes[0] == std::byte{kSameItems}) {
    reader.finish();
    return std::nullopt;
  }
  std::vector<AssignedItem> items;
  std::uint64_t next = 0;
  for (std::size_t count = reader.count(); count > 0; --count) {
    const std::uint64_t code = reader.number(UINT32_MAX);
    next += code >> 1;
    if (next >= local.size())
      reader.malformed("it names an item that the local plan does not have");
    AssignedItem assigned{static_cast<std::uint32_t>(next++)};
    if ((code & 1U) != 0) {
      assigned.begin = reader.signed_number();
      assigned.end = reader.signed_number();
      const Shape& sizes = local[assigned.item].chunk.sizes;
      const auto axis = cut_axis(sizes);
      if (!axis || assigned.begin >= assigned.end || assigned.end > sizes[*axis])
        reader.malformed("it names a piece that the item does not have");
    }
    items.push_back(assigned);
  }
  reader.finish();
  return items;
}

}  // namespace dckpt
