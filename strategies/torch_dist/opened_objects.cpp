#include "strategies/torch_dist/opened_objects.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {

/// The result of flattening an object.
struct OpenedObjects::Contents {
  struct Leaf {
    FlatLeaf leaf;
    std::optional<Tensor> tensor;
    std::uint64_t size = 0;  ///< size of the archive that torch.save makes of an object
  };
  std::vector<Leaf> leaves;       ///< empty if the object stays closed
  std::uint32_t content_crc = 0;  ///< if .metadata gives it
  std::vector<RecordedCrc> records;
};

namespace {

/// Returns whether an error is about an object, not about this attempt to read it.
bool is_lasting(ErrorCode code) {
  return code != ErrorCode::kCancelled && code != ErrorCode::kUnavailable &&
         code != ErrorCode::kAborted && code != ErrorCode::kInternal;
}

}  // namespace

OpenedObjects::Contents OpenedObjects::contents_of(const BytesStorageMetadata& object,
                                                   const ReadableFile& file) {
  Contents contents;
  const Value value = load_torch_file(file, object.place.offset, object.place.length,
                                      {.lazy = true, .records = &contents.records});
  if (mapping_items(value) == nullptr && !value.is_list()) return {};
  bool has_tensors = false;
  for (FlatLeaf& leaf :
       flatten_state_dict(Value::dict({{object.key, value}}), FlattenRule::kKeepEmpty)) {
    std::optional<Tensor> tensor = tensor_of(leaf.value);
    has_tensors |= tensor.has_value();
    contents.leaves.push_back({std::move(leaf), std::move(tensor)});
  }
  if (!has_tensors) return {};
  for (Contents::Leaf& part : contents.leaves) {
    if (part.tensor) continue;
    part.size = torch_file_size(replace_tensors(part.leaf.value, [](const Tensor& inner) {
      return Tensor::meta(inner.dtype(), inner.shape());
    }));
    if (part.size > object.place.length) return {};
  }
  std::ranges::sort(contents.records, {}, &RecordedCrc::offset);
  if (object.place.crc != 0)
    contents.content_crc = content_crc(file, object.place.offset, object.place.length);
  return contents;
}

OpenedObjects::OpenedObjects(Metadata& metadata, const Storage& storage)
    : storage_(&storage),
      first_tensor_(metadata.tensors.size()),
      first_object_(metadata.objects.size()) {
  if (!metadata.paths.empty()) return;
  std::unordered_set<std::string> names;
  for (const TensorStorageMetadata& tensor : metadata.tensors) names.insert(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) names.insert(object.key);
  std::unique_ptr<const ReadableFile> file;
  std::optional<std::uint32_t> file_index;
  const auto try_to_open = [&](const BytesStorageMetadata& object) -> Contents {
    if (ShardedObject::is_unique_key(object.key)) return {};  // one value each, wherever it is
    try {
      if (object.place.codec != StorageCodec::kPlain) return {};
      if (file_index != object.place.file) {
        file_index.reset();
        file = storage.open(metadata.files[object.place.file]);
        file_index = object.place.file;
      }
      return contents_of(object, *file);
    } catch (const CheckpointError& error) {
      if (!is_lasting(error.code())) throw error.with({.key = object.key});
      return {};
    }
  };
  std::vector<std::pair<BytesStorageMetadata, Contents>> found;
  std::vector<BytesStorageMetadata> closed;
  for (const BytesStorageMetadata& object : metadata.objects) {
    Contents contents = try_to_open(object);
    const auto is_taken = [&](const Contents::Leaf& part) {
      return names.contains(part.leaf.name);  // "a.b" beside {"a": {"b": …}}
    };
    if (contents.leaves.empty() || std::ranges::any_of(contents.leaves, is_taken)) {
      closed.push_back(object);
      continue;
    }
    for (const Contents::Leaf& part : contents.leaves) names.insert(part.leaf.name);
    found.emplace_back(object, std::move(contents));
  }
  if (found.empty()) return;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    metadata.paths.emplace_back(tensor.key, KeyPath{tensor.key});
  for (const BytesStorageMetadata& object : closed)
    metadata.paths.emplace_back(object.key, KeyPath{object.key});
  metadata.objects = std::move(closed);
  first_object_ = metadata.objects.size();
  for (auto& [object, contents] : found) open(metadata, object, std::move(contents));
  checks_ = std::make_unique<Check[]>(archives_.size());
}

void OpenedObjects::open(Metadata& metadata, const BytesStorageMetadata& object,
                         Contents contents) {
  const StorageInfo& place = object.place;
  const std::size_t archive = archives_.size();
  for (Contents::Leaf& part : contents.leaves) {
    metadata.paths.emplace_back(part.leaf.name, part.leaf.path);
    if (!part.tensor) {
      metadata.objects.push_back(
          {part.leaf.name,
           {.file = place.file, .offset = place.offset, .length = part.size, .crc = place.crc}});
      objects_.push_back({archive, std::move(part.leaf.value)});
      continue;
    }
    const Tensor& tensor = *part.tensor;
    const std::uint64_t extent = extent_bytes(tensor);
    const std::uint64_t offset =  // a tensor without elements may lack it
        tensor.file_range() == nullptr ? place.offset : tensor.file_range()->offset;
    TensorStorageMetadata stored{
        .key = part.leaf.name,
        .properties = {.dtype = tensor.dtype(), .requires_grad = tensor.requires_grad},
        .size = tensor.shape(),
        .chunks = BoxList(tensor.dim())};
    stored.chunks.push_back(whole(tensor.shape()));
    stored.places.push_back(
        {.file = place.file, .offset = offset, .length = extent, .crc = place.crc});
    metadata.tensors.push_back(std::move(stored));
    tensors_.push_back({archive,
                        {.offset = offset,
                         .dtype = tensor.dtype(),
                         .strides = tensor.strides(),
                         .contiguous = tensor.is_contiguous(),
                         .record = exact_record(contents.records, offset, extent)}});
  }
  keys_.push_back(object.key);
  archives_.push_back({metadata.files[place.file], place.offset, place.length, contents.content_crc,
                       std::move(contents.records)});
}

const ChunkPayload& OpenedObjects::payload(std::size_t tensor) const {
  return tensors_.at(tensor - first_tensor_).payload;
}

Bytes OpenedObjects::object_bytes(std::size_t object) const {
  const OpenedObject& opened = objects_.at(object - first_object_);
  const Archive& archive = archives_[opened.archive];
  const auto file = storage_->open(archive.file);
  return save_torch_file(replace_tensors(opened.value, [&](const Tensor& tensor) {
    return read_lazy_tensor(tensor, *file, archive.records);
  }));
}

std::uint32_t OpenedObjects::tensor_crc(std::size_t tensor) const {
  return archives_[tensors_.at(tensor - first_tensor_).archive].content_crc;
}

std::uint32_t OpenedObjects::object_crc(std::size_t object) const {
  return archives_[objects_.at(object - first_object_).archive].content_crc;
}

bool OpenedObjects::check_tensor(std::size_t tensor) const {
  return check(tensors_.at(tensor - first_tensor_).archive);
}

bool OpenedObjects::check_object(std::size_t object) const {
  return check(objects_.at(object - first_object_).archive);
}

bool OpenedObjects::check(std::size_t index) const {
  Check& check = checks_[index];
  const std::scoped_lock lock(check.mutex);
  if (!check.has_checksums) {
    const Archive& archive = archives_[index];
    check.has_checksums =
        check_torch_file(*storage_->open(archive.file), archive.offset, archive.length);
  }
  return *check.has_checksums;
}

}  // namespace dckpt
