#include "strategies/formats/torch_archive/torch_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/pickle/value.h"
#include "strategies/formats/torch_archive/storage_table.h"
#include "strategies/formats/torch_archive/tensor_rebuild.h"
#include "strategies/formats/torch_archive/torch_layout.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kStorageAlignment = 64;  // alignment of storages, as in torch
constexpr std::string_view kZipStart = "PK\3\4";
/// LONG1 with the ten bytes of 0x1950a86a20f9469cfc6c, then STOP. PROTO precedes it, and from
/// protocol 4 on possibly FRAME.
constexpr std::string_view kStreamMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr std::size_t kStreamStart = 2 + 9 + kStreamMagic.size();

/// A file of bytes that another object keeps.
class ViewFile final : public ReadableFile {
 public:
  ViewFile(ByteView bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return bytes_.size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), bytes_.size())) {
      throw_error(ErrorCode::kCorrupt, {.file = name_, .offset = offset},
                  "cannot read {} bytes: beyond the end", into.size());
    }
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

 private:
  ByteView bytes_;
  const std::string& name_;
};

Value load_archive(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                   const TorchFileOptions& options) {
  const TorchArchive archive(file, base, length);
  StorageTable table(file, options, [&archive](const StorageId& id) {
    const ZipMember& member = archive.storage(id.key, id.nbytes(), item_size(id.dtype));
    StorageTable::Located found{archive.zip().data_offset(member)};
    if (archive.zip().has_crcs()) found.record = {found.offset, member.size, member.crc};
    return found;
  });
  const Bytes pickle = archive.pickle(kMaxPickleBytes);
  const pickle::Graph graph = pickle::read_graph(pickle, file.name());
  return pickle::value_from_graph(graph, table.hooks());
}

struct PickledTensors {
  Bytes pickle;
  std::vector<TorchStorage> storages;  ///< in the order of their keys
};

/// Pickles a value. `check` throws for elements that cannot be saved.
PickledTensors pickle_tensors(const Value& value,
                              const std::function<void(const Tensor& elements)>& check) {
  PickledTensors pickled;
  pickle::WriteOptions write;
  write.reduce_tensor = reduce_tensor;
  write.persistent_id = [&](const TorchStorage& storage) {
    check(storage.elements);
    pickled.storages.push_back(storage);
    return make_storage_id(storage, std::to_string(pickled.storages.size() - 1));
  };
  pickled.pickle = pickle::write_pickle(value, write);
  return pickled;
}

}  // namespace

std::optional<TorchFileForm> detect_torch_file(const ReadableFile& file, std::uint64_t base,
                                               std::uint64_t length) {
  if (!range_fits(base, length, file.size())) return std::nullopt;
  std::array<std::byte, kStreamStart> start{};
  const std::size_t size = std::min<std::uint64_t>(length, start.size());
  file.read(base, MutableByteView(start).first(size));
  const std::string_view text = as_text(ByteView(start).first(size));
  if (text.starts_with(kZipStart)) return TorchFileForm::kZip;
  if (text.starts_with('\x80') && text.find(kStreamMagic) != std::string_view::npos)
    return TorchFileForm::kStream;
  return std::nullopt;
}

Value load_torch_file(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                      const TorchFileOptions& options) {
  return with_context({.file = file.name()}, [&] {
    const std::optional<TorchFileForm> form = detect_torch_file(file, base, length);
    if (!form) {
      throw_error(ErrorCode::kCorrupt,
                  "this is not a torch.save file: it starts neither like a zip archive "
                  "nor like the stream of torch before 1.6 (the tar form before 0.1.10 "
                  "is not supported); it may be damaged or truncated");
    }
    return *form == TorchFileForm::kZip ? load_archive(file, base, length, options)
                                        : load_torch_stream(file, base, length, options);
  });
}

Value load_torch_file(const ReadableFile& file, const TorchFileOptions& options) {
  return load_torch_file(file, 0, file.size(), options);
}

Value load_torch_bytes(ByteView bytes, const std::string& what, const TorchFileOptions& options) {
  TorchFileOptions read = options;
  read.lazy = false;
  return load_torch_file(ViewFile(bytes, what), read);
}

bool check_torch_file(const ReadableFile& file, std::uint64_t base, std::uint64_t length) {
  if (detect_torch_file(file, base, length) == TorchFileForm::kStream) return false;
  const TorchArchive archive(file, base, length);
  for (const ZipMember& member : archive.zip().members()) archive.zip().check(member);
  return archive.zip().has_crcs();
}

bool check_torch_bytes(ByteView bytes, const std::string& what) {
  const ViewFile file(bytes, what);
  return check_torch_file(file, 0, bytes.size());
}

std::uint32_t content_crc(const ReadableFile& file, std::uint64_t base, std::uint64_t length) {
  if (detect_torch_file(file, base, length) != TorchFileForm::kZip) return 0;
  try {
    const ZipArchive archive(file, base, length);
    Bytes crcs;
    for (const ZipMember& member : archive.members()) append_le(crcs, member.crc);
    return archive.has_crcs() ? crc32(crcs) : 0;
  } catch (const CheckpointError& error) {
    if (error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported) return 0;
    throw;
  }
}

std::uint32_t content_crc(ByteView bytes) {
  const std::string name = "an object";
  return content_crc(ViewFile(bytes, name), 0, bytes.size());
}

namespace {

/// Appends the archive's records to `records`, which `send` may take, and hands the elements to
/// `sink`.
void write_archive(const Value& value, const TensorElements& elements,
                   const TorchSaveOptions& options, Bytes& records,
                   const std::function<void()>& send, const std::function<void(ByteView)>& sink) {
  PickledTensors pickled = pickle_tensors(value, [&](const Tensor& tensor) {
    if (tensor.device().kind == Device::Kind::kCpu &&
        (tensor.has_data() || (elements && tensor.file_range() == nullptr)))
      return;
    throw_error(ErrorCode::kInvalidArgument,
                "cannot save a tensor of shape {} that has no data in CPU memory",
                to_string(tensor.shape()));
  });
  TorchArchiveWriter archive(options.prefix, std::move(pickled.pickle), kStorageAlignment,
                             {.crc = options.crc}, records);
  std::size_t without_data = 0;
  for (const TorchStorage& storage : pickled.storages) {
    const std::uint64_t size = storage.elements.nbytes();
    archive.begin_storage(size, records);
    send();
    std::uint32_t crc = 0;
    std::uint64_t delivered = 0;
    const auto deliver = [&](ByteView part) {
      if (options.crc) crc = crc32(part, crc);
      delivered += part.size();
      sink(part);
    };
    if (!storage.elements.has_data())
      elements(without_data++, deliver);
    else if (size > 0)
      deliver(storage.elements.contiguous().bytes());
    if (delivered != size)
      throw_error(ErrorCode::kInvalidArgument, "the source delivered {} bytes instead of {}",
                  delivered, size);
    archive.end_storage(crc, records);
  }
  archive.finish(records);
  send();
}

}  // namespace

void save_torch_file(const Value& value, const TensorElements& elements,
                     const std::function<void(ByteView)>& sink, const TorchSaveOptions& options) {
  Bytes records;
  const auto send = [&records, &sink] {
    sink(records);
    records = Bytes();
  };
  write_archive(value, elements, options, records, send, sink);
}

void save_torch_file(const Value& value, const std::function<void(ByteView)>& sink,
                     const TorchSaveOptions& options) {
  save_torch_file(value, nullptr, sink, options);
}

std::uint64_t torch_file_size(const Value& value, const TorchSaveOptions& options) {
  PickledTensors pickled = pickle_tensors(value, [](const Tensor& elements) {
    if (elements.file_range() == nullptr) return;
    throw_error(ErrorCode::kUnsupported,
                "a tensor that is a member of a set, or in the key of a dict, is still "
                "in its file");
  });
  Bytes records;
  std::uint64_t elements = 0;
  TorchArchiveWriter archive(options.prefix, std::move(pickled.pickle), kStorageAlignment,
                             {.crc = options.crc}, records);
  for (const TorchStorage& storage : pickled.storages) {
    const std::uint64_t size = storage.elements.nbytes();
    archive.begin_storage(size, records);
    archive.end_storage(0, records);
    elements += size;
  }
  archive.finish(records);
  return records.size() + elements;
}

Bytes save_torch_file(const Value& value, const TorchSaveOptions& options) {
  Bytes bytes;
  write_archive(
      value, nullptr, options, bytes, [] {},
      [&bytes](ByteView part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

}  // namespace dckpt
