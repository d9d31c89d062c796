#include "mapping/planning/load/wanted_parts.h"

#include "mapping/base/wire.h"

namespace dckpt {

WantedParts::WantedParts(std::span<const ReadItem> items) {
  entries_.reserve(items.size());
  for (const ReadItem& item : items) add(item.tensor, item.chunk, item.offsets, item.sizes);
}

void WantedParts::add(std::uint32_t tensor, std::uint32_t chunk, ShapeView offsets,
                      ShapeView sizes) {
  entries_.push_back({tensor, chunk, static_cast<std::uint32_t>(sizes.size()), extents_.size()});
  extents_.insert(extents_.end(), offsets.begin(), offsets.end());
  extents_.insert(extents_.end(), sizes.begin(), sizes.end());
}

Bytes WantedParts::encode() const {
  Bytes out;
  WireWriter writer(out);
  writer.number(size());
  for (std::size_t i = 0; i < size(); ++i) {
    writer.number(tensor(i));
    writer.number(chunk(i));
    for (const std::int64_t offset : offsets(i)) writer.number(static_cast<std::uint64_t>(offset));
    for (const std::int64_t extent : sizes(i)) writer.number(static_cast<std::uint64_t>(extent));
  }
  return out;
}

WantedParts WantedParts::decode(ByteView bytes, const Metadata& metadata) {
  WireReader reader(bytes, "another rank's list of wanted parts");
  WantedParts parts;
  Box box;
  for (std::size_t count = reader.count(); count > 0; --count) {
    const auto tensor = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    if (tensor >= metadata.tensors.size()) reader.malformed("a tensor's number is out of range");
    const TensorStorageMetadata& stored = metadata.tensors[tensor];
    const auto chunk = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    if (chunk >= stored.chunks.size()) reader.malformed("a chunk's number is out of range");
    box.offsets.resize(stored.global_shape().size());
    box.sizes.resize(stored.global_shape().size());
    for (std::int64_t& offset : box.offsets) offset = reader.signed_number();
    for (std::int64_t& extent : box.sizes) extent = reader.signed_number();
    if (!fits(box, stored.global_shape())) reader.malformed("a part lies outside its tensor");
    parts.add(tensor, chunk, box.offsets, box.sizes);
  }
  reader.finish();
  return parts;
}

}  // namespace dckpt
