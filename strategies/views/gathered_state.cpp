#include "strategies/views/gathered_state.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::string_view kObject = ".param_state/shard_";

bool is_gathered(std::string_view key) {
  return key.find("optimizer.distributed.dp_group_idx_") != std::string_view::npos &&
         key.find(kObject) != std::string_view::npos;
}

[[noreturn]] void throw_unexpected(const std::string& what) {
  throw_error(ErrorCode::kCorrupt,
              "gathered optimizer state is not as Megatron-Core writes it: " + what);
}

const Dict& dict_of(const Value& value, const char* what) {
  if (!value.is_dict()) throw_unexpected(str_format("{} is no dict", what));
  return value.as_dict();
}

/// Returns the dtypes of parameters and of gradients: "(torch.bfloat16, torch.float32)".
std::string dtypes_of(const Value& key) {
  std::string text;
  if (key.is(Value::Kind::kTuple)) {
    for (const Value& dtype : key.items()) {
      if (!dtype.is(Value::Kind::kGlobal)) throw_unexpected("a buffer's key is no tuple of dtypes");
      text += (text.empty() ? "" : ", ") + dtype.as_global().path();
    }
  }
  if (text.empty()) throw_unexpected("a buffer's key is no tuple of dtypes");
  return "(" + text + ")";
}

class GatheredState final : public ForwardingReader {
 public:
  explicit GatheredState(std::unique_ptr<CheckpointReader> source)
      : ForwardingReader(std::move(source)),
        info_(source_->info()),
        metadata_(source_->metadata()) {
    first_tensor_ = metadata_.tensors.size();
    info_.conventions.records = false;  // several tensors share one
    std::vector<BytesStorageMetadata> kept;
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const BytesStorageMetadata& object = metadata_.objects[i];
      if (!is_gathered(object.key)) {
        kept.push_back(object);
        objects_.push_back(i);
        continue;
      }
      opened_.push_back(i);
      const std::string file = storage().display_path(metadata_.files[object.place.file]);
      with_context({.key = object.key, .file = file, .offset = object.place.offset},
                   [&] { open(object); });
    }
    metadata_.objects = std::move(kept);
    checks_ = std::make_unique<Check[]>(opened_.size());
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    return tensor < first_tensor_ ? source_->locate(tensor, chunk, file)
                                  : tensors_[tensor - first_tensor_].payload;
  }
  Bytes object_bytes(std::size_t object) const override {
    return source_->object_bytes(objects_[object]);
  }
  Value decode_object(std::size_t object, ByteView stored) const override {
    return source_->decode_object(objects_[object], stored);
  }
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    if (tensor < first_tensor_) return source_->check_chunk(tensor, chunk, file);
    const std::size_t object = tensors_[tensor - first_tensor_].object;
    Check& check = checks_[object];
    const std::scoped_lock lock(check.mutex);
    if (!check.has_checksums) check.has_checksums = source_->check_object(opened_[object]);
    return *check.has_checksums;
  }
  bool check_object(std::size_t object) const override {
    return source_->check_object(objects_[object]);
  }

 private:
  struct Opened {
    std::size_t object = 0;  ///< position in `opened_`
    ChunkPayload payload;
  };
  struct Check {
    std::mutex mutex;
    std::optional<bool> has_checksums;  ///< empty: not compared yet
  };

  void open(const BytesStorageMetadata& object) {
    if (object.place.codec != StorageCodec::kPlain)
      throw_error(ErrorCode::kUnsupported,
                  "gathered optimizer state that is compressed cannot be read in pieces; "
                  "convert the checkpoint without compression first");
    const auto file = storage().open(metadata_.files[object.place.file]);
    std::vector<RecordedCrc> records;
    Value stored = load_torch_file(*file, object.place.offset, object.place.length,
                                   {.lazy = true, .records = &records});
    std::ranges::sort(records, {}, &RecordedCrc::offset);
    // Megatron stores a list that holds the object.
    if (stored.is_list() && stored.items().size() == 1) stored = Value(stored.items()[0]);
    const std::string group = object.key.substr(0, object.key.find(kObject));
    const Dict& buffers = dict_of(stored, "the object");
    const Value* const joined = buffers.find("buckets_coalesced");
    if (joined == nullptr || *joined != Value(true))
      throw_error(
          ErrorCode::kUnsupported,
          "gathered optimizer state of Megatron-Core 0.6 keeps its buckets apart; load and save it "
          "with 0.7 to 0.15 first");
    for (const auto& [buffer, by_dtype] : buffers.items()) {
      if (!buffer.is_int()) continue;
      for (const auto& [dtypes, states] : dict_of(by_dtype, "a buffer").items()) {
        for (const auto& [name, value] : dict_of(states, "the state of a buffer").items()) {
          if (const auto tensor = tensor_of(value); tensor && name.is_str())
            add(str_format("{}.gbuf_idx_{}.dtype_{}.{}", group, buffer.as_int(), dtypes_of(dtypes),
                           name.as_str()),
                *tensor, object, records);
        }
      }
    }
  }

  void add(std::string key, const Tensor& tensor, const BytesStorageMetadata& object,
           std::span<const RecordedCrc> records) {
    const std::uint64_t extent = extent_bytes(tensor);
    const std::uint64_t offset =  // a tensor without elements may lack it
        tensor.file_range() == nullptr ? object.place.offset : tensor.file_range()->offset;
    TensorStorageMetadata stored{.key = std::move(key),
                                 .properties = {.dtype = tensor.dtype()},
                                 .size = tensor.shape(),
                                 .chunks = BoxList(tensor.dim())};
    stored.chunks.push_back(whole(tensor.shape()));
    stored.places.push_back({.file = object.place.file, .offset = offset, .length = extent});
    metadata_.tensors.push_back(std::move(stored));
    tensors_.push_back({opened_.size() - 1,
                        {.offset = offset,
                         .dtype = tensor.dtype(),
                         .strides = tensor.strides(),
                         .contiguous = tensor.is_contiguous(),
                         .record = exact_record(records, offset, extent)}});
  }

  CheckpointInfo info_;
  Metadata metadata_;
  std::size_t first_tensor_ = 0;
  std::vector<Opened> tensors_;       // after those of the source
  std::vector<std::size_t> objects_;  // positions in the source
  std::vector<std::size_t> opened_;   // objects of the source that hold the tensors
  std::unique_ptr<Check[]> checks_;   // same order as opened_
};

}  // namespace

std::unique_ptr<CheckpointReader> open_gathered_state(std::unique_ptr<CheckpointReader> source) {
  const auto& objects = source->metadata().objects;
  if (std::ranges::none_of(objects, [](const auto& object) { return is_gathered(object.key); }))
    return source;
  return std::make_unique<GatheredState>(std::move(source));
}

}  // namespace dckpt
