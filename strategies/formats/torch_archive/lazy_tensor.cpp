#include "strategies/formats/torch_archive/lazy_tensor.h"

#include <algorithm>
#include <memory>

#include "mapping/base/error.h"

namespace dckpt {

std::uint64_t extent_bytes(const Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < tensor.dim(); ++axis)
    last += (tensor.shape()[axis] - 1) * tensor.strides()[axis];
  return static_cast<std::uint64_t>(last + 1) * item_size(tensor.dtype());
}

std::optional<RecordedCrc> exact_record(std::span<const RecordedCrc> records, std::uint64_t offset,
                                        std::uint64_t length) {
  const auto found = std::ranges::lower_bound(records, offset, {}, &RecordedCrc::offset);
  if (found == records.end() || found->offset != offset || found->length != length)
    return std::nullopt;
  return *found;
}

Tensor read_lazy_tensor(const Tensor& tensor, const ReadableFile& file,
                        std::span<const RecordedCrc> records) {
  if (tensor.file_range() == nullptr) return tensor;
  auto bytes = std::make_shared<Bytes>(extent_bytes(tensor));
  file.read(tensor.file_range()->offset, *bytes);
  const auto record = exact_record(records, tensor.file_range()->offset, bytes->size());
  if (record && crc32(*bytes) != record->crc) {
    throw CheckpointError(ErrorCode::kCorrupt,
                          "the elements of a tensor do not match the CRC-32 in the archive: they "
                          "were damaged after writing",
                          {.file = file.name(), .offset = record->offset});
  }
  Tensor read(tensor.dtype(), tensor.shape(), tensor.strides(), bytes->data(), bytes);
  read.requires_grad = tensor.requires_grad;
  return read;
}

Value replace_tensors(const Value& value, const std::function<Tensor(const Tensor&)>& replacement) {
  const auto replaced = [&](const Value& item) { return replace_tensors(item, replacement); };
  const auto replaced_items = [&] {
    ValueList items;
    for (const Value& item : value.items()) items.push_back(replaced(item));
    return items;
  };
  switch (value.kind()) {
    case Value::Kind::kTensor: return replacement(value.as_tensor());
    case Value::Kind::kStorage: {
      TorchStorage storage = value.as_storage();
      storage.elements = replacement(storage.elements);
      return storage;
    }
    case Value::Kind::kList: return Value::list(replaced_items());
    case Value::Kind::kTuple: return Value::tuple(replaced_items());
    case Value::Kind::kDict: {
      Dict dict;
      for (const auto& [key, item] : value.as_dict()) dict.set(key, replaced(item));
      return dict;
    }
    case Value::Kind::kOpaque: {
      Opaque object = value.as_opaque();
      object.callable = replaced(object.callable);
      object.args = replaced(object.args);
      if (object.kwargs) object.kwargs = replaced(*object.kwargs);
      for (Value& state : object.states) state = replaced(state);
      for (Value& item : object.list_items) item = replaced(item);
      for (auto& [key, item] : object.dict_items) item = replaced(item);
      return object;
    }
    default: return value;
  }
}

}  // namespace dckpt
