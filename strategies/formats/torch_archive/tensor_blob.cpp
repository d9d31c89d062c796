#include "strategies/formats/torch_archive/tensor_blob.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/pickle/value.h"
#include "strategies/formats/pickle/writer.h"
#include "strategies/formats/torch_archive/known_blobs.h"
#include "strategies/formats/torch_archive/tensor_rebuild.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/formats/torch_archive/torch_layout.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxBlobPickle = std::uint64_t{1} << 20;
constexpr std::uint64_t kMemberAlignment = 64;  // alignment of members that are not storages
constexpr std::size_t kMaxKeptWriters = std::size_t{1} << 12;  // of about 2 KiB each
constexpr std::size_t kMaxCachedPickle = 4096;
constexpr std::size_t kMaxCachedEntries = std::size_t{1} << 16;

void write_extents(pickle::PickleWriter& writer, ShapeView extents) {
  if (extents.empty()) {
    writer.empty_tuple();  // not remembered
    return;
  }
  if (extents.size() > 3) writer.mark();
  for (const std::int64_t extent : extents) writer.integer(extent);
  if (extents.size() > 3) {
    writer.tuple();
  } else {
    writer.tuple(static_cast<int>(extents.size()));
  }
  writer.put();
}

/// Returns the pickle of a row-major tensor with a storage of its own, opcode for opcode as torch
/// writes it.
Bytes tensor_pickle(DType dtype, ShapeView shape, std::int64_t numel, bool requires_grad) {
  const std::string type(storage_class(dtype));
  const bool untyped = type == "UntypedStorage";
  pickle::PickleWriter writer;
  writer.global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  writer.mark();
  writer.mark();
  writer.text("storage");
  writer.global(untyped ? "torch.storage" : "torch", type);
  writer.text("0");
  writer.text("cpu");
  writer.integer(untyped ? numel * static_cast<std::int64_t>(item_size(dtype)) : numel);
  writer.tuple();
  writer.put();
  writer.persistent_id();
  writer.integer(0);
  write_extents(writer, shape);
  write_extents(writer, row_major_strides(shape));
  writer.boolean(requires_grad);
  writer.global("collections", "OrderedDict");
  writer.empty_tuple();
  writer.reduce();
  writer.put();
  if (untyped) writer.global("torch", to_string(dtype));
  writer.tuple();
  writer.put();
  writer.reduce();
  writer.put();
  return writer.finish();
}

/// The content of a blob's pickle: everything except the position of the storage in the file.
struct PickledTensor {
  TensorBlob tensor;  // offsets relative to the storage
  std::string storage_key;
  std::uint64_t storage_size = 0;
  std::uint64_t storage_item = 1;
};

/// Returns a description of the value stored in place of a plain tensor, and what to save instead.
std::pair<std::string, const char*> describe(const Value& value) {
  if (!value.is(Value::Kind::kOpaque)) return {to_string(value.kind()), "a tensor"};
  const Opaque& object = value.as_opaque();
  std::string path = object.class_path();
  if (path.starts_with("torch._utils._rebuild_qtensor"))
    return {"a quantized tensor", "its dequantize()"};
  if (path.starts_with("torch._utils._rebuild_tensor_v"))
    return {"a conjugate or negative view, or a tensor with hooks", "its resolve_conj().detach()"};
  // Matches _rebuild_from_type_v2(function, class, …) and _rebuild_wrapper_subclass(class, …).
  if (path.starts_with("torch._") && object.args.is(Value::Kind::kTuple)) {
    for (const Value& argument : object.args.items()) {
      if (argument.is(Value::Kind::kGlobal) && !argument.as_global().module.starts_with("torch._"))
        path = argument.as_global().path();
    }
  }
  return {path.empty() ? std::string("an object") : "of the class " + quote(path),
          "its elements as a plain tensor (dequantize(), or the tensors that it wraps)"};
}

PickledTensor parse_tensor_pickle(const Bytes& pickle, const std::string& what) {
  PickledTensor result;
  std::unordered_map<std::string, StorageId> storages;
  pickle::ValueHooks hooks;
  hooks.persistent = [&storages](const Value& id) -> Value {
    StorageId storage = parse_storage_id(id);
    // The elements are only described, with the key in place of a file name, so that the tensor
    // tells which storage it is a view of.
    Tensor elements =
        Tensor::in_file(storage.dtype, Shape(1, storage.numel), Shape(1, 1), {storage.key, 0});
    TorchStorage value{
        .type = storage.type, .location = storage.location, .elements = std::move(elements)};
    const auto [known, added] = storages.try_emplace(storage.key, storage);
    if (!added && (known->second.type != storage.type || known->second.numel != storage.numel)) {
      throw_error(ErrorCode::kCorrupt, "storage {} is used with two types or sizes",
                  quote(storage.key));
    }
    return value;
  };
  hooks.known = [](const Opaque& object) -> std::optional<Value> {
    if (std::optional<Tensor> tensor = rebuild_tensor(object)) return Value(std::move(*tensor));
    return std::nullopt;
  };
  const pickle::Graph graph = pickle::read_graph(pickle, what);
  const Value value = pickle::value_from_graph(graph, std::move(hooks));
  const std::optional<Tensor> tensor = tensor_of(value);
  if (!tensor || tensor->file_range() == nullptr) {
    throw_error(ErrorCode::kUnsupported,
                "the stored object is {}, not a plain tensor: have the "
                "trainer save {}, or leave the key out (--exclude)",
                describe(value).first, describe(value).second);
  }
  const StorageId& storage = storages.at(tensor->file_range()->file);
  result.tensor.dtype = tensor->dtype();
  result.tensor.shape = tensor->shape();
  result.tensor.strides = tensor->strides();
  result.tensor.offset = tensor->file_range()->offset;
  result.tensor.contiguous = tensor->is_contiguous();
  result.tensor.requires_grad = tensor->requires_grad;
  result.storage_key = storage.key;
  result.storage_size = storage.nbytes();
  result.storage_item = item_size(storage.dtype);
  return result;
}

}  // namespace

TensorBlobWriter::TensorBlobWriter(DType dtype, ShapeView shape, const TensorBlobOptions& options) {
  const std::optional<std::int64_t> count =
      shape.size() <= kMaxDims ? checked_numel(shape) : std::nullopt;
  const auto nbytes =
      count ? checked_mul(*count, static_cast<std::int64_t>(item_size(dtype))) : std::nullopt;
  if (!nbytes)
    throw_error(ErrorCode::kInvalidArgument, "cannot write a tensor of shape " + to_string(shape));
  payload_size_ = static_cast<std::uint64_t>(*nbytes);
  const Bytes pickle = tensor_pickle(dtype, shape, *count, options.requires_grad);
  const ZipWriterOptions zip{.file_offset = options.file_offset, .crc = options.crc};
  TorchArchiveWriter archive("archive", pickle, options.alignment, zip, head_);
  archive.begin_storage(payload_size_, head_);
  archive_ = std::make_shared<const TorchArchiveWriter>(std::move(archive));
  tail_size_ = tail().size();
}

Bytes TensorBlobWriter::tail(std::uint32_t crc) const {
  TorchArchiveWriter archive = *archive_;
  Bytes out;
  archive.end_storage(crc, out);
  archive.finish(out);
  return out;
}

struct TensorBlobWriters::Impl {
  using Key = std::tuple<DType, Shape, std::uint64_t>;  // only the alignment of the offset counts

  TensorBlobOptions options;
  std::shared_mutex mutex;
  std::map<Key, std::shared_ptr<const TensorBlobWriter>> writers;
};

TensorBlobWriters::TensorBlobWriters(const TensorBlobOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
}
TensorBlobWriters::~TensorBlobWriters() = default;

std::shared_ptr<const TensorBlobWriter> TensorBlobWriters::at(DType dtype, ShapeView shape,
                                                              std::uint64_t file_offset) {
  TensorBlobOptions options = impl_->options;
  options.file_offset = file_offset % std::max(options.alignment, kMemberAlignment);
  const Impl::Key key{dtype, Shape(shape), options.file_offset};
  {
    const std::shared_lock lock(impl_->mutex);
    const auto known = impl_->writers.find(key);
    if (known != impl_->writers.end()) return known->second;
  }
  auto writer = std::make_shared<const TensorBlobWriter>(dtype, shape, options);
  const std::unique_lock lock(impl_->mutex);
  if (impl_->writers.size() < kMaxKeptWriters) impl_->writers.emplace(key, writer);
  return writer;
}

struct TensorBlobCache::Impl {
  std::shared_mutex mutex;
  std::unordered_map<std::string, PickledTensor> known;  // by the bytes of data.pkl
  KnownBlobs blobs;

  std::optional<PickledTensor> find(const std::string& pickle) {
    const std::shared_lock lock(mutex);
    const auto found = known.find(pickle);
    return found == known.end() ? std::nullopt : std::optional(found->second);
  }

  void keep(const std::string& pickle, const PickledTensor& parsed) {
    if (pickle.size() > kMaxCachedPickle) return;
    const std::unique_lock lock(mutex);
    if (known.size() < kMaxCachedEntries) known.emplace(pickle, parsed);
  }
};

TensorBlobCache::TensorBlobCache() : impl_(std::make_unique<Impl>()) {}
TensorBlobCache::~TensorBlobCache() = default;

TensorBlob locate_tensor_blob(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                              TensorBlobCache* cache) {
  if (cache != nullptr) {
    if (auto known = cache->impl_->blobs.find(file, base, length)) return *std::move(known);
  }
  const TorchArchive archive(file, base, length);
  const Bytes bytes = archive.pickle(kMaxBlobPickle);
  const std::string pickle(as_text(bytes));
  std::optional<PickledTensor> pickled =
      cache == nullptr ? std::nullopt : cache->impl_->find(pickle);
  if (!pickled) {
    pickled = with_context({.file = file.name(), .offset = base},
                           [&] { return parse_tensor_pickle(bytes, file.name()); });
    if (cache != nullptr) cache->impl_->keep(pickle, *pickled);
  }

  const ZipMember& storage =
      archive.storage(pickled->storage_key, pickled->storage_size, pickled->storage_item);
  TensorBlob result = std::move(pickled->tensor);
  result.storage_offset = archive.zip().data_offset(storage);
  result.storage_size = storage.size;
  result.offset += result.storage_offset;
  if (archive.zip().has_crcs()) result.crc = storage.crc;
  if (cache != nullptr) cache->impl_->blobs.keep(archive.zip(), storage, result);
  return result;
}

bool check_tensor_blob(const ReadableFile& file, std::uint64_t base, std::uint64_t length) {
  return check_torch_file(file, base, length);
}

}  // namespace dckpt
