#include "strategies/formats/torch_archive/storage_table.h"

#include <optional>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
pickle::ValueHooks StorageTable::hooks() {
  pickle::ValueHooks hooks;
  hooks.persistent = [this](const Value& id) { return resolve(id); };
  hooks.known = [](const Opaque& object) -> std::optional<Value> {
    std::optional<Tensor> tensor = rebuild_tensor(object);
    return tensor ? std::optional<Value>(std::move(*tensor)) : std::nullopt;
  };
  return hooks;
}

Value StorageTable::resolve(const Value& persistent_id) {
  const StorageId id = parse_storage_id(persistent_id);
  const auto [place, added] = entries_.try_emplace(id.key);
  Entry& entry = place->second;
  if (added) {
    entry = {id.type, id.numel,
             TorchStorage{.type = id.type, .location = id.location, .elements = elements(id)}};
  } else if (entry.type != id.type || entry.numel != id.numel) {
    throw_error(ErrorCode::kCorrupt, "storage {} is used as {} elements of {} and as {} of {}",
                quote(id.key), entry.numel, entry.type, id.numel, id.type);
  }
  return entry.storage;
}

Tensor StorageTable::elements(const StorageId& id) {
  const auto [offset, record] = locate_(id);
  if (options_.lazy) {
    if (options_.records != nullptr && record) options_.records->push_back(*record);
    return Tensor::in_file(id.dtype, Shape(1, id.numel), Shape(1, 1), {file_.name(), offset});
  }
  if (id.nbytes() > options_.max_tensor_bytes - bytes_read_) {
    throw_error(ErrorCode::kUnsupported, "the file holds more than the limit of {} of tensors",
                human_bytes(options_.max_tensor_bytes));
  }
  bytes_read_ += id.nbytes();
  Tensor tensor = Tensor::empty(id.dtype, Shape(1, id.numel));
  if (id.numel > 0) file_.read(offset, tensor.bytes());
  if (record) compare(tensor, *record);
  return tensor;
}

void StorageTable::compare(const Tensor& elements, const RecordedCrc& record) const {
  const ByteView bytes = elements.numel() == 0 ? ByteView() : ByteView(elements.bytes());
  Bytes rest(record.length - bytes.size());  // for an untyped storage, less than an element
  if (!rest.empty()) file_.read(record.offset + bytes.size(), rest);
  if (crc32(rest, crc32(bytes)) == record.crc) return;
  throw_error(ErrorCode::kCorrupt, {.file = file_.name(), .offset = record.offset},
              "the elements of a tensor do not match the CRC-32 in the archive: they "
              "were damaged after writing");
}

}  // namespace dckpt
