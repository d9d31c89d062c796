#include "strategies/torch_dist/opened_objects.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

/// What flattening makes of an object; nothing if it has no tensors to open it for, or names that
/// flattening refuses. Cells of Megatron's objects are one value each, wherever they are stored.
std::vector<FlatLeaf> leaves_of(const std::string& key, const Value& value) {
  if (mapping_items(value) == nullptr && !value.is_list()) return {};
  if (ShardedObject::is_unique_key(key)) return {};
  std::vector<FlatLeaf> leaves;
  try {
    leaves = flatten_state_dict(Value::dict({{key, value}}));
  } catch (const CheckpointError&) {
    return {};
  }
  const bool has_tensors = std::ranges::any_of(
      leaves, [](const FlatLeaf& leaf) { return tensor_of(leaf.value).has_value(); });
  return has_tensors ? leaves : std::vector<FlatLeaf>();
}

}  // namespace

OpenedObjects::OpenedObjects(Metadata& metadata, const Storage& storage)
    : storage_(&storage),
      first_tensor_(metadata.tensors.size()),
      first_object_(metadata.objects.size()) {
  if (!metadata.paths.empty()) return;
  struct Found {
    BytesStorageMetadata object;
    std::vector<FlatLeaf> leaves;
    std::vector<RecordedCrc> records;
  };
  std::vector<Found> found;
  std::vector<BytesStorageMetadata> closed;
  std::unordered_set<std::string> names;
  for (const TensorStorageMetadata& tensor : metadata.tensors) names.insert(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) {
    const StorageInfo& place = object.place;
    const auto file = storage.open(metadata.files[place.file]);
    std::vector<RecordedCrc> records;
    const Value value =
        with_context({.key = object.key, .file = file->name(), .offset = place.offset}, [&] {
          return load_torch_file(*file, place.offset, place.length,
                                 {.lazy = true, .records = &records});
        });
    std::vector<FlatLeaf> leaves = leaves_of(object.key, value);
    if (leaves.empty()) {
      closed.push_back(object);
      names.insert(object.key);
    } else {
      found.push_back({object, std::move(leaves), std::move(records)});
    }
  }
  // A name that something else has already ("a.b" beside {"a": {"b": …}}) leaves its object closed.
  std::erase_if(found, [&](const Found& entry) {
    const bool is_new = std::ranges::none_of(
        entry.leaves, [&](const FlatLeaf& leaf) { return names.contains(leaf.name); });
    if (is_new) {
      for (const FlatLeaf& leaf : entry.leaves) names.insert(leaf.name);
    } else {
      closed.push_back(entry.object);
    }
    return !is_new;
  });
  if (found.empty()) return;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    metadata.paths.emplace_back(tensor.key, KeyPath{tensor.key});
  for (const BytesStorageMetadata& object : closed)
    metadata.paths.emplace_back(object.key, KeyPath{object.key});
  metadata.objects = std::move(closed);
  first_object_ = metadata.objects.size();
  for (Found& entry : found) open(metadata, entry.object, entry.leaves, std::move(entry.records));
  checks_ = std::make_unique<Check[]>(archives_.size());
}

void OpenedObjects::open(Metadata& metadata, const BytesStorageMetadata& object,
                         const std::vector<FlatLeaf>& leaves, std::vector<RecordedCrc> records) {
  std::ranges::sort(records, {}, &RecordedCrc::offset);
  const StorageInfo& place = object.place;
  const std::size_t archive = archives_.size();
  for (const FlatLeaf& leaf : leaves) {
    metadata.paths.emplace_back(leaf.name, leaf.path);
    const auto tensor = tensor_of(leaf.value);
    if (!tensor) {
      const Value outline = replace_tensors(
          leaf.value, [](const Tensor& inner) { return Tensor::zeros(inner.dtype(), {0}); });
      const std::uint64_t size = save_torch_file(outline).size();
      metadata.objects.push_back(
          {leaf.name, {place.file, place.offset, std::min(size, place.length)}});
      objects_.push_back({archive, leaf.value});
      continue;
    }
    const std::uint64_t extent = extent_bytes(*tensor);
    const std::uint64_t offset =  // a tensor without elements may lack it
        tensor->file_range() == nullptr ? place.offset : tensor->file_range()->offset;
    TensorStorageMetadata stored{
        .key = leaf.name,
        .properties = {.dtype = tensor->dtype(), .requires_grad = tensor->requires_grad},
        .size = tensor->shape(),
        .chunks = BoxList(tensor->dim())};
    stored.chunks.push_back(whole(tensor->shape()));
    stored.places.push_back({.file = place.file, .offset = offset, .length = extent});
    metadata.tensors.push_back(std::move(stored));
    tensors_.push_back({archive,
                        {.offset = offset,
                         .dtype = tensor->dtype(),
                         .strides = tensor->strides(),
                         .contiguous = tensor->is_contiguous(),
                         .record = exact_record(records, offset, extent)}});
  }
  archives_.push_back({metadata.files[place.file], place.offset, place.length, std::move(records)});
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
