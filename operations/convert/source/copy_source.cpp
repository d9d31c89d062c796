#include "operations/convert/source/copy_source.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "operations/convert/reshard.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kLargestPiece = std::uint64_t{16} << 20;
constexpr std::uint64_t kSmallestPiece = std::uint64_t{64} << 10;
constexpr std::uint64_t kWriteBuffer = std::uint64_t{1} << 20;
constexpr std::uint64_t kDirectBlocks = std::uint64_t{12} << 20;
constexpr std::uint64_t kDecoder = std::uint64_t{4}
                                   << 20;  // with its window, as zstd has by default

bool has_compressed_tensors(const Metadata& metadata) {
  return std::ranges::any_of(metadata.tensors, [](const TensorStorageMetadata& tensor) {
    return std::ranges::any_of(tensor.places, [](const StorageInfo& place) {
      return place.codec != StorageCodec::kPlain;
    });
  });
}

}  // namespace

CopyMemory share_memory(const WriteOptions& io, std::uint64_t limit, std::uint64_t staging,
                        const Metadata& source) {
  CopyMemory memory{.io = io};
  int& threads = memory.io.threads;
  threads = std::max(threads, 1);
  if (memory.io.engine == IoEngine::kAuto &&
      limit / static_cast<std::uint64_t>(threads) < 2 * kDirectBlocks)
    memory.io.engine = IoEngine::kBuffered;
  const std::uint64_t buffers = kWriteBuffer +
                                (memory.io.engine == IoEngine::kBuffered ? 0 : kDirectBlocks) +
                                (has_compressed_tensors(source) ? kDecoder : 0);
  const std::uint64_t least = buffers + 2 * kSmallestPiece;
  if (limit < least) {
    throw_error(ErrorCode::kInvalidArgument,
                "a conversion takes at least {} of memory (--max-memory), got {}",
                human_bytes(least), human_bytes(limit));
  }
  threads =
      static_cast<int>(std::min<std::uint64_t>(limit / least, static_cast<std::uint64_t>(threads)));
  const auto writers = static_cast<std::uint64_t>(threads);
  memory.piece = std::min((limit / writers - buffers) / 2, kLargestPiece);
  memory.staging = std::clamp(staging / writers, kSmallestPiece, memory.piece);
  return memory;
}

CopySource::CopySource(const CheckpointReader& reader, const CopyContents& contents,
                       SourceCheck& check, const SaveStrategyEntry& format,
                       const CopyMemory& memory, Progress progress, std::uint64_t total,
                       std::function<void()> go_on)
    : reader_(reader),
      contents_(contents),
      check_(check),
      format_(format),
      memory_(memory),
      progress_(std::move(progress), total),
      go_on_(std::move(go_on)) {}

Bytes CopySource::object(const WriteItem& item) {
  const ObjectSource& object = contents_.object_of[item.source];
  progress_.add(item.nbytes);
  if (object.bytes) return *object.bytes;
  if (object.record) return record_bytes(*object.record);
  return reader_.info().format == format_.name
             ? reader_.object_bytes(object.position)
             : stored_object(reader_.object(object.position), format_.conventions);
}

Bytes CopySource::record_bytes(const StorageInfo& place) {
  const auto file = check_.open(reader_.metadata().files[place.file]);
  Bytes bytes(place.length);
  file->read(place.offset, bytes);
  if (check_.checksums()) check_torch_bytes(bytes, file->name());
  return bytes;
}

void CopySource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  const std::size_t size = item_size(item.properties.dtype);
  const std::int64_t elements = numel(item.chunk.sizes);
  const auto step = std::max<std::int64_t>(1, static_cast<std::int64_t>(memory_.piece / size));
  Bytes buffer(std::min<std::uint64_t>(item.nbytes, static_cast<std::uint64_t>(step) * size));
  for (std::int64_t begin = 0; begin < elements; begin += step) {
    go_on_();
    const std::int64_t count = std::min(step, elements - begin);
    WantedShard wanted = wanted_for(contents_.metadata, item, begin, count);
    wanted.tensor = static_cast<std::uint32_t>(contents_.tensor_of[item.source]);
    const Tensor part(item.properties.dtype, Shape{count}, Shape{1}, buffer.data(), nullptr);
    const auto items = plan_reads(reader_.metadata(), {&wanted, 1});
    read_tensors(reader_, items, {&part, 1},
                 {.threads = 1,
                  .staging = memory_.staging,
                  .verify = check_.checksums(),
                  .cast = true,
                  .checks = &check_.records(),
                  .open = [&](const std::string& name) { return check_.open(name); }});
    sink(part.bytes());
    progress_.add(part.nbytes());
  }
}

std::vector<ReadItem> CopySource::reads_of(const WriteItem& item) const {
  WantedShard wanted = wanted_for(contents_.metadata, item, 0, numel(item.chunk.sizes));
  wanted.tensor = static_cast<std::uint32_t>(contents_.tensor_of[item.source]);
  return plan_reads(reader_.metadata(), {&wanted, 1});
}

std::optional<std::vector<StorageInfo>> CopySource::written(const PlannedFile& file) {
  const auto finished = copy_ != nullptr ? copy_->find(file.name) : std::nullopt;
  if (!finished) return std::nullopt;
  for (const std::size_t i : file.items) {
    const WriteItem& item = file.plan[i];
    progress_.add(item.nbytes);
    if (finished->source_checked || item.kind != WriteItem::Kind::kTensor) continue;
    for (const ReadItem& read : reads_of(item))  // left to check_rest()
      check_.records().want({read.tensor, read.chunk}, 1);
  }
  return finished->places;
}

bool CopySource::checked(const PlannedFile& file) {
  return std::ranges::all_of(file.items, [&](std::size_t i) {
    return file.plan[i].kind != WriteItem::Kind::kTensor ||
           std::ranges::all_of(reads_of(file.plan[i]), [&](const ReadItem& read) {
             return check_.records().checked({read.tensor, read.chunk});
           });
  });
}

void CopySource::wrote(const PlannedFile& file, std::span<const StorageInfo> places) {
  check_.require_unchanged_since_last();
  if (copy_ != nullptr) copy_->wrote(file.name, places, checked(file));
}

}  // namespace dckpt
