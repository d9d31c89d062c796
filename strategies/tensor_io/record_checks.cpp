#include "strategies/tensor_io/record_checks.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostRecordPieces = 4096;  // per record; more are not worth their memory
constexpr std::uint64_t kStep = std::uint64_t{1} << 20;  // stays in the cache between read and CRC

}  // namespace

RecordChecks::Place RecordChecks::place(ChunkNumber chunk) const {
  const StorageInfo& place = metadata_.tensors[chunk.tensor].places[chunk.chunk];
  return {place.file, place.offset};
}

std::size_t RecordChecks::shard_of(const Place& place) noexcept {
  return (place.first + (place.second >> 20)) % kShards;
}

/// The hint is the end, since most callers ask for the entries in their order.
RecordChecks::Entry& RecordChecks::entry(Shard& shard, const Place& place, ChunkNumber chunk) {
  return shard.entries.try_emplace(shard.entries.end(), place, Entry{.chunk = chunk})->second;
}

bool RecordChecks::checked(ChunkNumber chunk) const {
  const Place place = this->place(chunk);
  const Shard& shard = shards_[shard_of(place)];
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.entries.find(place);
  return found != shard.entries.end() && found->second.checked;
}

void RecordChecks::want(ChunkNumber chunk, std::uint64_t bytes) {
  const Place place = this->place(chunk);
  Shard& shard = shards_[shard_of(place)];
  const std::lock_guard lock(shard.mutex);
  entry(shard, place, chunk).wanted += bytes;
}

void RecordChecks::add(ChunkNumber chunk, const RecordedCrc& record, const Piece& piece) {
  if (piece.begin == piece.end) return;
  const Place place = this->place(chunk);
  Shard& shard = shards_[shard_of(place)];
  const std::lock_guard lock(shard.mutex);
  Entry& entry = RecordChecks::entry(shard, place, chunk);
  if (entry.checked) return;
  if (piece.begin == record.offset && piece.end - piece.begin == record.length) {
    entry.checked = true;
    entry.incomplete.reset();
    return compare(chunk, record, piece.crc);
  }
  if (entry.incomplete == nullptr) entry.incomplete = std::make_unique<Incomplete>();
  entry.incomplete->record = record;
  auto& pieces = entry.incomplete->pieces;
  if (pieces.size() > kMostRecordPieces) return;
  auto next = pieces.lower_bound(piece.begin);
  const auto before = next == pieces.begin() ? pieces.end() : std::prev(next);
  if (next != pieces.end() && next->second.begin < piece.end) return;
  if (before != pieces.end() && before->second.end > piece.begin) return;

  Piece joined = piece;
  const auto append = [](Piece& front, const Piece& back) {
    front = {front.begin, back.end, crc32_combine(front.crc, back.crc, back.end - back.begin)};
  };
  if (next != pieces.end() && next->second.begin == joined.end) {
    append(joined, next->second);
    next = pieces.erase(next);
  }
  if (before != pieces.end() && before->second.end == joined.begin) {
    append(before->second, joined);
    joined = before->second;
  } else {
    pieces.emplace_hint(next, joined.begin, joined);
  }
  if (joined.begin != record.offset || joined.end - joined.begin != record.length) return;
  entry.incomplete.reset();
  entry.checked = true;
  compare(chunk, record, joined.crc);
}

void RecordChecks::compare(ChunkNumber chunk, const RecordedCrc& record, std::uint32_t crc) const {
  if (crc == record.crc) return;
  const TensorStorageMetadata& tensor = metadata_.tensors[chunk.tensor];
  throw_error(
      ErrorCode::kCorrupt,
      {.key = tensor.key,
       .file = metadata_.files[tensor.places[chunk.chunk].file],
       .offset = record.offset},
      "the stored elements do not match the CRC-32 recorded with them: they were damaged after "
      "writing; restore the file from another copy (load.verify: none, or --trust-source of dckpt "
      "convert, takes what is there)");
}

std::uint64_t RecordChecks::unchecked_bytes() const {
  std::uint64_t bytes = 0;
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    for (const auto& [place, entry] : shard.entries) bytes += entry.checked ? 0 : entry.wanted;
  }
  return bytes;
}

std::vector<ChunkNumber> RecordChecks::unchecked() const {
  std::vector<ChunkNumber> chunks;
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    for (const auto& [place, entry] : shard.entries) {
      if (!entry.checked && entry.wanted > 0) chunks.push_back(entry.chunk);
    }
  }
  std::ranges::sort(chunks);
  return chunks;
}

Bytes RecordChecks::incomplete() const {
  Bytes entries;
  WireWriter writer(entries);
  std::uint64_t count = 0;
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    for (const auto& [place, entry] : shard.entries) {
      if (entry.incomplete == nullptr) continue;
      const auto& [record, pieces] = *entry.incomplete;
      for (const std::uint64_t number :
           {std::uint64_t{entry.chunk.tensor}, std::uint64_t{entry.chunk.chunk}, record.offset,
            record.length, std::uint64_t{record.crc}, std::uint64_t{pieces.size()}}) {
        writer.number(number);
      }
      for (const auto& [begin, piece] : pieces) {
        writer.number(begin - record.offset);
        writer.number(piece.end - begin);
        writer.number(piece.crc);
      }
      ++count;
    }
  }
  Bytes out;
  WireWriter(out).number(count);
  out.insert(out.end(), entries.begin(), entries.end());
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
