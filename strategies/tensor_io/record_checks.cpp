#include "strategies/tensor_io/record_checks.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostPieces = 4096;  // of a record; more are not worth their memory
constexpr std::uint64_t kStep = std::uint64_t{1} << 20;  // stays in the cache between read and CRC

}  // namespace

RecordChecks::Place RecordChecks::place(ChunkNumber chunk) const {
  const StorageInfo& place = metadata_.tensors[chunk.tensor].places[chunk.chunk];
  return {place.file, place.offset};
}

RecordChecks::Entry& RecordChecks::entry(ChunkNumber chunk) {
  return entries_.try_emplace(place(chunk), Entry{.chunk = chunk}).first->second;
}

bool RecordChecks::checked(ChunkNumber chunk) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(place(chunk));
  return found != entries_.end() && found->second.checked;
}

void RecordChecks::want(ChunkNumber chunk, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  entry(chunk).wanted += bytes;
}

void RecordChecks::add(ChunkNumber chunk, const RecordedCrc& record, const Piece& piece) {
  if (piece.begin == piece.end) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = this->entry(chunk);
  if (entry.checked || entry.pieces.size() > kMostPieces) return;
  entry.record = record;
  auto next = entry.pieces.lower_bound(piece.begin);
  const auto before = next == entry.pieces.begin() ? entry.pieces.end() : std::prev(next);
  if (next != entry.pieces.end() && next->second.begin < piece.end) return;
  if (before != entry.pieces.end() && before->second.end > piece.begin) return;

  Piece joined = piece;
  const auto append = [](Piece& front, const Piece& back) {
    front = {front.begin, back.end, crc32_combine(front.crc, back.crc, back.end - back.begin)};
  };
  if (next != entry.pieces.end() && next->second.begin == joined.end) {
    append(joined, next->second);
    next = entry.pieces.erase(next);
  }
  if (before != entry.pieces.end() && before->second.end == joined.begin) {
    append(before->second, joined);
    joined = before->second;
  } else {
    entry.pieces.emplace_hint(next, joined.begin, joined);
  }
  if (joined.begin != record.offset || joined.end - joined.begin != record.length) return;
  entry.pieces.clear();
  entry.checked = true;
  if (joined.crc == record.crc) return;
  const TensorStorageMetadata& tensor = metadata_.tensors[chunk.tensor];
  throw CheckpointError(
      ErrorCode::kCorrupt,
      "the stored elements do not match the CRC-32 recorded with them: they were damaged after "
      "writing; restore the file from another copy (load.verify: none loads what is there)",
      {.key = tensor.key,
       .file = metadata_.files[tensor.places[chunk.chunk].file],
       .offset = record.offset});
}

std::uint64_t RecordChecks::unchecked_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [place, entry] : entries_) bytes += entry.checked ? 0 : entry.wanted;
  return bytes;
}

std::vector<ChunkNumber> RecordChecks::unchecked() const {
  const std::lock_guard lock(mutex_);
  std::vector<ChunkNumber> chunks;
  for (const auto& [place, entry] : entries_) {
    if (!entry.checked && entry.wanted > 0) chunks.push_back(entry.chunk);
  }
  std::ranges::sort(chunks);
  return chunks;
}

Bytes RecordChecks::incomplete() const {
  const std::lock_guard lock(mutex_);
  Bytes out;
  WireWriter writer(out);
  writer.number(static_cast<std::uint64_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [](const auto& entry) { return !entry.second.pieces.empty(); })));
  for (const auto& [place, entry] : entries_) {
    if (entry.pieces.empty()) continue;
    for (const std::uint64_t number :
         {std::uint64_t{entry.chunk.tensor}, std::uint64_t{entry.chunk.chunk}, entry.record.offset,
          entry.record.length, std::uint64_t{entry.record.crc},
          std::uint64_t{entry.pieces.size()}}) {
      writer.number(number);
    }
    for (const auto& [begin, piece] : entry.pieces) {
      writer.number(begin - entry.record.offset);
      writer.number(piece.end - begin);
      writer.number(piece.crc);
    }
  }
  return out;
}

void RecordChecks::take(ByteView pieces, const std::string& from) {
  WireReader reader(pieces, from);
  for (std::size_t entries = reader.count(); entries > 0; --entries) {
    ChunkNumber chunk;
    chunk.tensor = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    chunk.chunk = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    if (chunk.tensor >= metadata_.tensors.size() ||
        chunk.chunk >= metadata_.tensors[chunk.tensor].places.size()) {
      reader.malformed("there is no such chunk");
    }
    RecordedCrc record;
    record.offset = reader.number();
    record.length = reader.number(UINT64_MAX - record.offset);
    record.crc = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    for (std::size_t count = reader.count(); count > 0; --count) {
      Piece piece;
      piece.begin = record.offset + reader.number(record.length);
      piece.end = piece.begin + reader.number(record.offset + record.length - piece.begin);
      piece.crc = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
      add(chunk, record, piece);
    }
  }
  reader.finish();
}

void PassingRecord::read(const ReadableFile& file, std::uint64_t offset, MutableByteView into) {
  if (checks_ == nullptr) return file.read(offset, into);
  while (!into.empty()) {
    const MutableByteView step = into.first(std::min<std::uint64_t>(into.size(), kStep));
    file.read(offset, step);
    pass(offset, step);
    offset += step.size();
    into = into.subspan(step.size());
  }
}

void PassingRecord::pass(std::uint64_t offset, ByteView bytes) {
  if (checks_ == nullptr) return;
  if (offset != piece_.end) finish();
  if (piece_.begin == piece_.end) piece_ = {offset, offset, 0};
  piece_.crc = crc32(bytes, piece_.crc);
  piece_.end += bytes.size();
}

void PassingRecord::finish() {
  if (checks_ == nullptr) return;
  const RecordChecks::Piece piece = std::exchange(piece_, {});
  if (piece.begin != piece.end) checks_->add(chunk_, record_, piece);
}

}  // namespace dckpt
