#include "strategies/contract/parsed_checkpoint.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {

std::uint32_t ParsedCheckpoint::file_number(const std::string& name) {
  const auto [entry, is_new] =
      numbers_.try_emplace(name, static_cast<std::uint32_t>(metadata.files.size()));
  if (is_new) {
    metadata.files.push_back(name);
    files_.emplace_back().size = storage_->open(name)->size();
  }
  return entry->second;
}

ParsedCheckpoint::File& ParsedCheckpoint::load(const std::string& name) {
  File& file = files_[file_number(name)];
  if (file.is_torch) return file;
  file.value = load_torch_file(*storage_->open(name), {.lazy = true, .records = &file.records});
  file.is_torch = true;
  std::ranges::sort(file.records, {}, &RecordedCrc::offset);
  return file;
}

const Value& ParsedCheckpoint::torch_file(const std::string& name) {
  return load(name).value;
}

std::size_t ParsedCheckpoint::add_tensor(TensorStorageMetadata tensor) {
  metadata.tensors.push_back(std::move(tensor));
  payloads_.emplace_back();
  return payloads_.size() - 1;
}

void ParsedCheckpoint::add_chunk(std::size_t tensor, const std::string& file, const Tensor& stored,
                                 const Box& box, ShapeView local_offsets) {
  const std::uint32_t number = file_number(file);
  TensorStorageMetadata& entry = metadata.tensors[tensor];
  const std::uint64_t size = item_size(stored.dtype());
  // A tensor without elements may lack its place.
  std::uint64_t offset = stored.file_range() == nullptr ? 0 : stored.file_range()->offset;
  std::uint64_t last = 0;  // from the first to the last element
  // A flattened chunk has leading axes of extent 1 that the stored tensor lacks, as have those of
  // prepended axes.
  const std::size_t leading = box.dims() - stored.dim();
  Shape strides(box.dims(), 0);
  const bool empty = numel(box.sizes) == 0;
  for (std::size_t axis = 0; axis < stored.dim() && !empty; ++axis) {
    const auto step = static_cast<std::uint64_t>(stored.strides()[axis]);
    offset += static_cast<std::uint64_t>(local_offsets[axis]) * step * size;
    last += static_cast<std::uint64_t>(box.sizes[leading + axis] - 1) * step;
    strides[leading + axis] = stored.strides()[axis];
  }
  const bool contiguous = is_row_major(box.sizes, strides);
  const std::uint64_t length = empty ? 0 : (last + 1) * size;
  entry.chunks.push_back(box);
  entry.places.push_back({.file = number, .offset = offset, .length = length});
  payloads_[tensor].push_back({.offset = offset,
                               .dtype = stored.dtype(),
                               .strides = std::move(strides),
                               .contiguous = contiguous,
                               .record = exact_record(files_[number].records, offset, length)});
}

void ParsedCheckpoint::add_object(std::string key, const std::string& file, Value value) {
  const std::uint32_t number = file_number(file);
  const std::uint64_t size = torch_file_size(replace_tensors(
      value, [](const Tensor& tensor) { return Tensor::meta(tensor.dtype(), tensor.shape()); }));
  metadata.objects.push_back(
      {std::move(key), {.file = number, .length = std::min(size, files_[number].size)}});
  objects_.push_back({std::move(value)});
}

void ParsedCheckpoint::add_file_object(std::string key, const std::string& file,
                                       std::uint64_t limit) {
  const std::uint32_t number = file_number(file);
  metadata.objects.push_back({std::move(key), {.file = number, .length = files_[number].size}});
  objects_.push_back({.limit = limit});
}

class ParsedCheckpoint::Reader final : public CheckpointReader {
 public:
  explicit Reader(ParsedCheckpoint checkpoint)
      : checkpoint_(std::move(checkpoint)),
        checks_(std::make_unique<Check[]>(checkpoint_.files_.size())) {
    for (File& file : checkpoint_.files_) file.value = {};
  }

  const CheckpointInfo& info() const noexcept override { return checkpoint_.info; }
  const Metadata& metadata() const noexcept override { return checkpoint_.metadata; }
  const Storage& storage() const noexcept override { return *checkpoint_.storage_; }

  Value common_state() const override { return checkpoint_.common; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk, const ReadableFile&) const override {
    return checkpoint_.payloads_.at(tensor).at(chunk);
  }

  Bytes object_bytes(std::size_t object) const override {
    return stored_object(this->object(object), info().conventions);
  }

  Value object(std::size_t object) const override {
    const std::uint32_t number = metadata().objects.at(object).place.file;
    const Object& stored = checkpoint_.objects_.at(object);
    std::unique_ptr<ReadableFile> file;
    const auto open = [&]() -> const ReadableFile& {
      if (!file) file = storage().open(metadata().files[number]);
      return *file;
    };
    if (stored.limit) return Value::bytes(read_file(open(), *stored.limit));
    return replace_tensors(stored.value, [&](const Tensor& tensor) {
      return read_lazy_tensor(tensor, open(), checkpoint_.files_[number].records);
    });
  }

  Value decode_object(std::size_t object, ByteView stored) const override {
    const Value value = load_torch_bytes(stored, metadata().objects.at(object).key);
    return info().conventions.objects_in_lists ? unwrap_object(value) : value;
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile&) const override {
    return check(metadata().tensors.at(tensor).places.at(chunk).file);
  }

  bool check_object(std::size_t object) const override {
    return check(metadata().objects.at(object).place.file);
  }

 private:
  /// The result of checking one file. A CRC covers a whole storage, which tensors may share, and
  /// the pickle matters to all of them, so the first question about a file checks all of it.
  struct Check {
    std::mutex mutex;
    std::optional<bool> has_checksums;
  };

  bool check(std::uint32_t number) const {
    if (!checkpoint_.files_[number].is_torch) return false;
    Check& check = checks_[number];
    const std::scoped_lock lock(check.mutex);
    if (!check.has_checksums) {
      const auto file = storage().open(metadata().files[number]);
      check.has_checksums = check_torch_file(*file, 0, file->size());
    }
    return *check.has_checksums;
  }

  ParsedCheckpoint checkpoint_;
  std::unique_ptr<Check[]> checks_;
};

std::unique_ptr<CheckpointReader> ParsedCheckpoint::reader(ParsedCheckpoint checkpoint) {
  return std::make_unique<Reader>(std::move(checkpoint));
}

}  // namespace dckpt
