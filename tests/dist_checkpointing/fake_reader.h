#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/memory.h"

namespace dckpt::testing {

/// A checkpoint of raw elements in memory. The file "data" holds all chunks one after the other,
/// each as its box's row-major elements.
class FakeReader final : public CheckpointReader {
 public:
  FakeReader() {
    info_.format = "fake";
    metadata_.files = {"data"};
  }

  /// Adds a tensor cut into boxes; `elements` are those of the whole tensor.
  template <typename T>
  FakeReader& tensor(std::string key, DType dtype, Shape shape, const std::vector<T>& elements,
                     std::vector<Box> boxes = {}) {
    if (boxes.empty()) boxes.push_back(whole(shape));
    TensorStorageMetadata added{.key = std::move(key),
                                .properties = {.dtype = dtype},
                                .size = shape,
                                .chunks = BoxList(shape.size())};
    for (const Box& box : boxes) {
      std::vector<T> piece(static_cast<std::size_t>(numel(box.sizes)));
      std::int64_t start = 0;
      const Shape strides = row_major_strides(shape);
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        start += box.offsets[axis] * strides[axis];
      strided_copy(box.sizes, sizeof(T), reinterpret_cast<const std::byte*>(elements.data()),
                   {start, strides}, reinterpret_cast<std::byte*>(piece.data()),
                   {0, row_major_strides(box.sizes)});
      const auto* const bytes = reinterpret_cast<const std::byte*>(piece.data());
      added.chunks.push_back(box);
      added.places.push_back({0, content_.size(), piece.size() * sizeof(T)});
      content_.insert(content_.end(), bytes, bytes + piece.size() * sizeof(T));
    }
    metadata_.tensors.push_back(std::move(added));
    return *this;
  }

  FakeReader& object(std::string key, Value value) {
    metadata_.objects.push_back({std::move(key), {0, content_.size(), 1}});
    content_.push_back(std::byte{'o'});
    objects_.push_back(std::move(value));
    return *this;
  }

  FakeReader& common(Value value) {
    common_ = std::move(value);
    return *this;
  }

  FakeReader& conventions(const Conventions& conventions) {
    info_.conventions = conventions;
    return *this;
  }

  FakeReader& checksum(bool present) {
    has_checksums_ = present;
    return *this;
  }

  /// Writes the file as it is now, or with its end missing.
  FakeReader& write(std::size_t missing_bytes = 0) {
    const auto file = storage_->create("data");
    file->append(ByteView(content_).first(content_.size() - missing_bytes));
    file->close();
    return *this;
  }

  Metadata& bend() { return metadata_; }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }
  Value common_state() const override { return common_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk, const ReadableFile&) const override {
    const TensorStorageMetadata& entry = metadata_.tensors[tensor];
    return {entry.places[chunk].offset, entry.properties.dtype,
            row_major_strides(entry.chunks.sizes(chunk)), true};
  }

  Bytes object_bytes(std::size_t object) const override {
    return to_bytes("stored bytes of " + metadata_.objects[object].key);
  }
  Value decode_object(std::size_t object, ByteView) const override { return objects_[object]; }
  bool check_chunk(std::size_t, std::size_t, const ReadableFile&) const override {
    return has_checksums_;
  }
  bool check_object(std::size_t) const override { return has_checksums_; }

 private:
  CheckpointInfo info_;
  Metadata metadata_;
  std::shared_ptr<Storage> storage_ = memory_storage("fake:");
  Bytes content_;
  std::vector<Value> objects_;
  Value common_;
  bool has_checksums_ = true;
};

/// Returns 0, 1, 2, …
template <typename T>
std::vector<T> counting(std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(i);
  return values;
}

}  // namespace dckpt::testing
