#include "strategies/formats/torch_archive/tensor_blob.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/windowed_file.h"
#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/pickle/value.h"
#include "strategies/formats/pickle/writer.h"
#include "strategies/formats/torch_archive/tensor_rebuild.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/formats/torch_archive/torch_layout.h"
#include "strategies/formats/torch_archive/zip_format.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxBlobPickle = std::uint64_t{1} << 20;
constexpr std::size_t kMaxCachedPickle = 4096;
constexpr std::size_t kMaxCachedEntries = std::size_t{1} << 16;
constexpr std::uint64_t kMaxCachedBlob = std::uint64_t{4} << 10;
constexpr std::size_t kMaxCachedBlobs = std::size_t{1} << 12;
constexpr std::size_t kMaxAlike =
    64;  // of one length: the padding that aligns the elements differs

void write_extents(pickle::PickleWriter& writer, ShapeView extents) {
  if (extents.empty()) {
    writer.empty_tuple();  // which is not remembered
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

/// The pickle of a row-major tensor with a storage of its own, opcode for opcode as torch writes
/// it.
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

/// What a blob's pickle says: all but the place of the storage in the file.
struct PickledTensor {
  TensorBlob tensor;  // offsets relative to the storage
  std::string storage_key;
  std::uint64_t storage_size = 0;
  std::uint64_t storage_item = 1;
};

PickledTensor parse_tensor_pickle(const Bytes& pickle, const std::string& what) {
  PickledTensor result;
  std::unordered_map<std::string, StorageId> storages;
  pickle::ValueHooks hooks;
  hooks.persistent = [&storages](const Value& id) -> Value {
    StorageId storage = parse_storage_id(id);
    // Only described, with the key in the place of a file name: so the tensor will tell which
    // storage it is a view of.
    Tensor elements =
        Tensor::in_file(storage.dtype, Shape(1, storage.numel), Shape(1, 1), {storage.key, 0});
    TorchStorage value{
        .type = storage.type, .location = storage.location, .elements = std::move(elements)};
    const auto [known, added] = storages.try_emplace(storage.key, storage);
    if (!added && (known->second.type != storage.type || known->second.numel != storage.numel)) {
      throw CheckpointError(
          ErrorCode::kCorrupt,
          str_format("storage {} is used with two types or sizes", quote(storage.key)));
    }
    return value;
  };
  hooks.known = [](const Opaque& object) -> std::optional<Value> {
    if (std::optional<Tensor> tensor = rebuild_tensor(object)) return Value(std::move(*tensor));
    return std::nullopt;
  };
  const pickle::Graph graph = pickle::read_graph(pickle, what);
  const std::optional<Tensor> tensor = tensor_of(pickle::value_from_graph(graph, std::move(hooks)));
  if (!tensor || tensor->file_range() == nullptr) {
    throw CheckpointError(ErrorCode::kUnsupported, "the stored object is not a plain tensor");
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

/// A small blob that was understood already. One of the same dtype and shape that is written in the
/// same manner differs from it only in the elements, the serialization id, which nobody reads, and
/// the CRCs of both: it is understood by comparing bytes.
class KnownBlob {
 public:
  /// `tensor` is what `archive`, whose bytes are given, holds in the member `storage`. Throws
  /// CheckpointError if its other members cannot be read.
  KnownBlob(ByteView bytes, const ZipArchive& archive, const ZipMember& storage, TensorBlob tensor)
      : bytes_(bytes.begin(), bytes.end()), base_(archive.base()), tensor_(std::move(tensor)) {
    add(archive, storage);
    for (const ZipMember& member : archive.members()) {
      if (member.name.ends_with("/.data/serialization_id")) add(archive, member);
    }
    std::vector<Range> others;
    for (const Member& member : members_) {
      others.insert(
          others.end(),
          {crc_at(member.local), {member.data, member.data + member.size}, crc_at(member.entry)});
      if (member.descriptor != 0) others.push_back(crc_at(member.descriptor));
    }
    std::ranges::sort(others, {}, &Range::begin);
    std::size_t at = 0;
    for (const Range& other : others) {
      same_.push_back({at, other.begin});
      at = other.end;
    }
    same_.push_back({at, bytes_.size()});
  }

  bool matches(ByteView blob) const {
    const auto equal = [&](const Range& range) {
      return std::memcmp(bytes_.data() + range.begin, blob.data() + range.begin,
                         range.end - range.begin) == 0;
    };
    return blob.size() == bytes_.size() && std::ranges::all_of(same_, equal) &&
           std::ranges::all_of(members_,
                               [&](const Member& member) { return agrees(blob, member); });
  }

  /// The tensor of a blob that matches and lies at `base`.
  TensorBlob at(std::uint64_t base, ByteView blob) const {
    TensorBlob tensor = tensor_;
    tensor.offset += base - base_;
    tensor.storage_offset += base - base_;
    if (tensor.crc) tensor.crc = load_le<std::uint32_t>(blob, members_.front().entry);
    return tensor;
  }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// Where its CRCs and its data stand.
  struct Member {
    std::size_t local = 0;
    std::size_t data = 0;
    std::size_t size = 0;
    std::size_t descriptor = 0;  // 0: it has none
    std::size_t entry = 0;
  };

  static Range crc_at(std::size_t offset) { return {offset, offset + sizeof(std::uint32_t)}; }

  void add(const ZipArchive& archive, const ZipMember& member) {
    const std::size_t data = archive.data_offset(member) - base_;
    const bool described = (member.flags & zip::kFlagDescriptor) != 0;
    members_.push_back({member.header_offset + 14, data, member.size,
                        described ? data + member.size + 4 : 0, member.entry_offset + 16});
  }

  /// What all readers of zip archives demand of the CRCs.
  static bool agrees(ByteView blob, const Member& member) {
    const auto crc = load_le<std::uint32_t>(blob, member.entry);
    const auto local = load_le<std::uint32_t>(blob, member.local);
    if (member.descriptor == 0) return local == crc;
    return (local == crc || local == 0) && load_le<std::uint32_t>(blob, member.descriptor) == crc;
  }

  Bytes bytes_;
  std::uint64_t base_;
  TensorBlob tensor_;
  std::vector<Member> members_;  // the storage first
  std::vector<Range> same_;      // what must be equal
};

}  // namespace

TensorBlobWriter::TensorBlobWriter(DType dtype, ShapeView shape, const TensorBlobOptions& options) {
  const std::optional<std::int64_t> count =
      shape.size() <= kMaxDims ? checked_numel(shape) : std::nullopt;
  const auto nbytes =
      count ? checked_mul(*count, static_cast<std::int64_t>(item_size(dtype))) : std::nullopt;
  if (!nbytes)
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "cannot write a tensor of shape " + to_string(shape));
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

struct TensorBlobCache::Impl {
  std::shared_mutex mutex;
  std::unordered_map<std::string, PickledTensor> known;  // by the bytes of data.pkl
  std::unordered_map<std::uint64_t, std::vector<std::shared_ptr<const KnownBlob>>>
      blobs;  // by their length
  std::size_t blob_count = 0;

  std::shared_ptr<const KnownBlob> find_like(ByteView blob) {
    const std::shared_lock lock(mutex);
    const auto alike = blobs.find(blob.size());
    if (alike == blobs.end()) return nullptr;
    const auto found = std::ranges::find_if(
        alike->second, [&](const auto& candidate) { return candidate->matches(blob); });
    return found == alike->second.end() ? nullptr : *found;
  }

  void keep(ByteView bytes, const ZipArchive& archive, const ZipMember& storage,
            const TensorBlob& tensor) {
    std::shared_ptr<const KnownBlob> blob;
    try {
      blob = std::make_shared<const KnownBlob>(bytes, archive, storage, tensor);
    } catch (const CheckpointError&) {
      return;  // a member that nobody asked for is odd
    }
    const std::unique_lock lock(mutex);
    auto& alike = blobs[bytes.size()];
    if (blob_count == kMaxCachedBlobs || alike.size() == kMaxAlike) return;
    alike.push_back(std::move(blob));
    ++blob_count;
  }

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
  Bytes whole;
  if (cache != nullptr && length <= kMaxCachedBlob && range_fits(base, length, file.size())) {
    whole.resize(length);
    file.read(base, whole);
    if (const auto known = cache->impl_->find_like(whole)) return known->at(base, whole);
  }
  const WindowedFile window(file, base, whole);
  const TorchArchive archive(window, base, length);
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
  if (!whole.empty()) cache->impl_->keep(whole, archive.zip(), storage, result);
  return result;
}

bool check_tensor_blob(const ReadableFile& file, std::uint64_t base, std::uint64_t length) {
  return check_torch_file(file, base, length);
}

}  // namespace dckpt
