#include "strategies/formats/torch_archive/lazy_tensor.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

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
    throw_error(ErrorCode::kCorrupt, {.file = file.name(), .offset = record->offset},
                "the elements of a tensor do not match the CRC-32 in the archive: they "
                "were damaged after writing");
  }
  Tensor read(tensor.dtype(), tensor.shape(), tensor.strides(), bytes->data(), bytes);
  read.requires_grad = tensor.requires_grad;
  return read;
}

namespace {

/// Replaces tensors in values. Makes each value once, so that shared values are shared in the
/// result, and keeps labels.
class Replacement {
 public:
  explicit Replacement(const std::function<Tensor(const Tensor&)>& tensor) : tensor_(tensor) {}

  Value operator()(const Value& value) {
    const auto known = made_.find(value.identity());
    if (value.identity() != nullptr && known != made_.end()) return known->second;
    Value result = make(value);
    result.set_label(value.label());
    if (value.identity() != nullptr) made_.emplace(value.identity(), result);
    return result;
  }

 private:
  ValueList items(const Value& value) {
    ValueList result;
    for (const Value& item : value.items()) result.push_back((*this)(item));
    return result;
  }

  Value make(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kTensor: return tensor_(value.as_tensor());
      case Value::Kind::kStorage: {
        TorchStorage storage = value.as_storage();
        storage.elements = tensor_(storage.elements);
        return storage;
      }
      case Value::Kind::kList: return Value::list(items(value));
      case Value::Kind::kTuple: return Value::tuple(items(value));
      case Value::Kind::kDict: {
        Dict dict;
        for (const auto& [key, item] : value.as_dict()) dict.set(key, (*this)(item));
        return dict;
      }
      case Value::Kind::kOpaque: {
        Opaque object = value.as_opaque();
        object.callable = (*this)(object.callable);
        object.args = (*this)(object.args);
        if (object.kwargs) object.kwargs = (*this)(*object.kwargs);
        for (Value& state : object.states) state = (*this)(state);
        for (Value& item : object.list_items) item = (*this)(item);
        for (auto& [key, item] : object.dict_items) item = (*this)(item);
        return object;
      }
      default: return value;
    }
  }

  const std::function<Tensor(const Tensor&)>& tensor_;
  std::unordered_map<const void*, Value> made_;
};

}  // namespace

Value replace_tensors(const Value& value, const std::function<Tensor(const Tensor&)>& replacement) {
  return Replacement(replacement)(value);
}

}  // namespace dckpt
