#include "mapping/planning/save/plan_file.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/format.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

constexpr std::string_view kFileMagic = "dckpt plans\n";
/// The version of the layout, of the local plans' own bytes (encode_plan), and of the rules and the
/// decisions made from them: it changes with each of these.
constexpr std::uint64_t kVersion = 2;
constexpr std::uint64_t kWithoutReplicas = 1;  // a version that lacks the last part

constexpr std::uint64_t kPiece = 1;     // the item is a piece
constexpr std::uint64_t kOldChunk = 2;  // the chunk of its tensor is not the next one

void write_fingerprint(WireWriter& writer, const Fingerprint& fingerprint) {
  writer.number(fingerprint.low);
  writer.number(fingerprint.high);
}

Fingerprint read_fingerprint(WireReader& reader) {
  Fingerprint fingerprint;
  fingerprint.low = reader.number();
  fingerprint.high = reader.number();
  return fingerprint;
}

void write_extents(WireWriter& writer, ShapeView shape) {
  writer.number(shape.size());
  for (const std::int64_t extent : shape) writer.number(static_cast<std::uint64_t>(extent));
}

/// Returns a fingerprint of the contents that a plan describes; places, files and paths belong to
/// one save.
Fingerprint fingerprint_of_contents(const Metadata& metadata) {
  Fingerprinter fingerprinter;
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(metadata.tensors.size());
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const TensorProperties& properties = tensor.properties;
    writer.text(tensor.key);
    writer.number(static_cast<std::uint64_t>(properties.dtype));
    writer.number(static_cast<std::uint64_t>(properties.memory_format) << 3 |
                  (properties.requires_grad ? 4U : 0U) | (properties.pin_memory ? 2U : 0U) |
                  (tensor.flattened_shape ? 1U : 0U));
    write_extents(writer, tensor.size);
    if (tensor.flattened_shape) write_extents(writer, *tensor.flattened_shape);
    writer.number(tensor.chunks.size());
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      write_extents(writer, tensor.chunks.offsets(chunk));
      write_extents(writer, tensor.chunks.sizes(chunk));
    }
    fingerprinter.update(bytes);
    bytes.clear();
  }
  for (const BytesStorageMetadata& object : metadata.objects) writer.text(object.key);
  fingerprinter.update(bytes);
  return fingerprinter.value();
}

/// Numbers the entries of the metadata, tensors first, and counts the chunks seen so far: ranks
/// name most entries in order, and nearly all chunks.
class Entries {
 public:
  explicit Entries(const Metadata& metadata)
      : metadata_(metadata), met_(metadata.tensors.size() + metadata.objects.size(), 0) {}

  std::size_t size() const noexcept { return met_.size(); }
  std::uint64_t number_of(const GlobalPlan::Slot& slot) const noexcept {
    return slot.entry + (slot.is_object ? metadata_.tensors.size() : 0);
  }
  GlobalPlan::Slot slot_of(std::uint64_t number, std::uint32_t chunk) const noexcept {
    const std::size_t tensors = metadata_.tensors.size();
    const bool is_object = number >= tensors;
    return {static_cast<std::uint32_t>(is_object ? number - tensors : number), chunk, is_object};
  }
  std::uint32_t& met(std::uint64_t number) { return met_[number]; }
  /// Returns the number of chunks of an entry; an object has one.
  std::size_t chunks(std::uint64_t number) const {
    return number < metadata_.tensors.size() ? metadata_.tensors[number].chunks.size() : 1;
  }
  bool all_met() const {
    for (std::size_t number = 0; number < met_.size(); ++number) {
      if (met_[number] != chunks(number)) return false;
    }
    return true;
  }

 private:
  const Metadata& metadata_;
  std::vector<std::uint32_t> met_;
};

/// Encodes an entry as the distance from the one after the last, in either direction, since entries
/// follow each other.
std::uint64_t zigzag(std::uint64_t from, std::uint64_t to) noexcept {
  return to >= from ? (to - from) << 1 : ((from - to) << 1) - 1;
}
std::uint64_t unzigzag(std::uint64_t from, std::uint64_t code) noexcept {
  return (code & 1U) == 0 ? from + (code >> 1) : from - ((code >> 1) + 1);
}

void write_rank(WireWriter& writer, std::span<const AssignedItem> items,
                std::span<const GlobalPlan::Slot> slots, Entries& entries) {
  writer.number(items.size());
  std::uint64_t next_item = 0;
  std::uint64_t next_entry = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const AssignedItem& item = items[i];
    const std::uint64_t entry = entries.number_of(slots[i]);
    const bool old = slots[i].chunk != entries.met(entry);
    writer.number((item.item - next_item) << 2 | (old ? kOldChunk : 0U) |
                  (item.end != 0 ? kPiece : 0U));
    if (item.end != 0) {
      writer.number(static_cast<std::uint64_t>(item.begin));
      writer.number(static_cast<std::uint64_t>(item.end));
    }
    writer.number(zigzag(next_entry, entry));
    if (old) {
      writer.number(slots[i].chunk);
    } else {
      ++entries.met(entry);
    }
    next_item = item.item + 1;
    next_entry = entry + 1;
  }
}

void read_rank(WireReader& reader, Entries& entries, std::vector<AssignedItem>& items,
               std::vector<GlobalPlan::Slot>& slots) {
  std::uint64_t next_item = 0;
  std::uint64_t next_entry = 0;
  for (std::size_t count = reader.count(); count > 0; --count) {
    const std::uint64_t code = reader.number();
    if (code >> 2 > UINT32_MAX || next_item + (code >> 2) > UINT32_MAX)
      reader.malformed("an item's number is too large");
    AssignedItem item{static_cast<std::uint32_t>(next_item + (code >> 2))};
    if ((code & kPiece) != 0) {
      item.begin = reader.signed_number();
      item.end = reader.signed_number();
      if (item.begin >= item.end) reader.malformed("a piece is empty");
    }
    const std::uint64_t entry = unzigzag(next_entry, reader.number());
    if (entry >= entries.size()) reader.malformed("an item is none of the metadata");
    std::uint32_t& met = entries.met(entry);
    std::uint32_t chunk = met;
    if ((code & kOldChunk) != 0) {
      chunk = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
      if (chunk >= met) reader.malformed("a chunk is written again before it is written");
    } else if (++met > entries.chunks(entry)) {
      reader.malformed("a tensor has more chunks than in the metadata");
    }
    items.push_back(item);
    slots.push_back(entries.slot_of(entry, chunk));
    next_item = std::uint64_t{item.item} + 1;
    next_entry = entry + 1;
  }
}

/// Returns the metadata as a plan has it: without places.
Metadata planned(const Metadata& stored) {
  Metadata metadata;
  metadata.tensors = stored.tensors;
  for (TensorStorageMetadata& tensor : metadata.tensors) {
    tensor.places.assign(tensor.chunks.size(), {});
    metadata.has_mcore_data |= tensor.flattened_shape.has_value();
  }
  for (const BytesStorageMetadata& object : stored.objects)
    metadata.objects.push_back({object.key, {}});
  return metadata;
}

/// Returns the plan's order of paths, which is that of the stored paths.
std::vector<GlobalPlan::Slot> order_of_paths(const Metadata& stored) {
  std::unordered_map<std::string_view, GlobalPlan::Slot> slots;
  for (const TensorStorageMetadata& tensor : stored.tensors)
    slots.try_emplace(tensor.key,
                      GlobalPlan::Slot{static_cast<std::uint32_t>(slots.size()), 0, false});
  for (std::uint32_t i = 0; i < stored.objects.size(); ++i)
    slots.try_emplace(stored.objects[i].key, GlobalPlan::Slot{i, 0, true});
  std::vector<GlobalPlan::Slot> order;
  for (const auto& [key, path] : stored.paths) {
    if (const auto slot = slots.find(key); slot != slots.end()) order.push_back(slot->second);
  }
  return order;
}

}  // namespace

Bytes encode_plan_file(const SavePlanCache::Global& global) {
  const GlobalPlan& plan = *global.plan;
  Bytes body;
  WireWriter writer(body);
  writer.number(global.rules);
  write_fingerprint(writer, fingerprint_of_contents(plan.metadata));
  writer.number(global.fingerprints.size());
  Entries entries(plan.metadata);
  for (std::size_t rank = 0; rank < global.fingerprints.size(); ++rank) {
    write_fingerprint(writer, global.fingerprints[rank]);
    write_rank(writer, plan.items[rank], plan.slots[rank], entries);
  }
  if (global.replicas) write_to(writer, *global.replicas);
  Bytes file = to_bytes(kFileMagic);
  WireWriter head(file);
  head.number(global.replicas ? kVersion : kWithoutReplicas);
  write_fingerprint(head, fingerprint_of(body));
  file.insert(file.end(), body.begin(), body.end());
  return file;
}

std::shared_ptr<const SavePlanCache::Global> decode_plan_file(ByteView bytes,
                                                              const Metadata& metadata) {
  if (!as_text(bytes).starts_with(kFileMagic))
    throw CheckpointError(ErrorCode::kCorrupt, "does not begin with 'dckpt plans'");
  WireReader reader(bytes.subspan(kFileMagic.size()), "the file of plans");
  const std::uint64_t version = reader.number();
  if (version != kVersion && version != kWithoutReplicas)
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("has version {}; this dckpt reads 1 to {}", version, kVersion));
  const Fingerprint sum = read_fingerprint(reader);
  if (fingerprint_of(reader.rest()) != sum)
    throw CheckpointError(ErrorCode::kCorrupt, "its bytes do not have its checksum");
  auto global = std::make_shared<SavePlanCache::Global>();
  global->rules = static_cast<std::uint8_t>(reader.number(UINT8_MAX));
  if (read_fingerprint(reader) != fingerprint_of_contents(metadata))
    throw CheckpointError(ErrorCode::kMismatch, "belongs to other contents");
  GlobalPlan& plan = global->plan.emplace();
  plan.metadata = planned(metadata);
  Entries entries(plan.metadata);
  for (std::size_t ranks = reader.count(); ranks > 0; --ranks) {
    global->fingerprints.push_back(read_fingerprint(reader));
    read_rank(reader, entries, plan.items.emplace_back(), plan.slots.emplace_back());
  }
  if (version == kVersion) global->replicas = read_replicas(reader, plan.items.size());
  reader.finish();
  if (!entries.all_met()) reader.malformed("some contents are written by no rank");
  plan.path_order = order_of_paths(metadata);
  return global;
}

}  // namespace dckpt
