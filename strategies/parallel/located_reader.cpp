#include "strategies/parallel/located_reader.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

// A chunk's entry in an answer. The first number is kStrided if the elements are not row-major or
// have to be decoded, else 1 + their offset in bytes in the chunk's place. The others are the
// offset of its record there, the record's length (0: none) and its CRC.
constexpr std::uint64_t kStrided = 0;

const StorageInfo& place_of(const Metadata& metadata, const ChunkNumber& chunk) {
  return metadata.tensors[chunk.tensor].places[chunk.chunk];
}

}  // namespace

Bytes LocatedReader::look_for(const CheckpointReader& base, std::span<const SplitChunk> chunks,
                              std::uint32_t rank) {
  std::vector<std::uint32_t> mine;
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].reader == rank) mine.push_back(i);
  }
  // Files are visited one by one, and each is opened once.
  const Metadata& metadata = base.metadata();
  std::vector<std::uint32_t> order = mine;
  const auto file_of = [&](std::uint32_t i) { return place_of(metadata, chunks[i].chunk).file; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return file_of(a) < file_of(b); });
  std::vector<std::array<std::uint64_t, 4>> found(chunks.size());
  std::unique_ptr<ReadableFile> file;
  std::uint32_t open = 0;
  for (const std::uint32_t i : order) {
    const ChunkNumber& chunk = chunks[i].chunk;
    const StorageInfo& place = place_of(metadata, chunk);
    if (place.codec != StorageCodec::kPlain) continue;  // kStrided: one rank decodes all of it
    with_context({.key = metadata.tensors[chunk.tensor].key}, [&] {
      if (!file || open != place.file) file = base.storage().open(metadata.files[place.file]);
      open = place.file;
      const ChunkPayload payload =
          with_context({.file = file->name(), .offset = place.offset},
                       [&] { return base.locate(chunk.tensor, chunk.chunk, *file); });
      if (!payload.contiguous || payload.decoded || payload.offset < place.offset)
        return;  // kStrided
      const RecordedCrc record = payload.record.value_or(RecordedCrc{place.offset});
      found[i] = {payload.offset - place.offset + 1, record.offset - place.offset, record.length,
                  record.crc};
    });
  }
  Bytes answer;
  WireWriter writer(answer);
  for (const std::uint32_t i : mine) {
    for (const std::uint64_t number : std::span(found[i]).first(found[i][0] == kStrided ? 1 : 4))
      writer.number(number);
  }
  return answer;
}

std::vector<ChunkNumber> LocatedReader::learn(std::span<const SplitChunk> chunks,
                                              std::span<const Bytes> answers) {
  std::vector<WireReader> readers;
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    readers.emplace_back(answers[rank], str_format("rank {}'s places of chunks", rank));
  std::vector<ChunkNumber> strided;
  for (const auto& [chunk, rank] : chunks) {
    WireReader& reader = readers[rank];
    const std::uint64_t answer = reader.number();
    if (answer == kStrided) {
      strided.push_back(chunk);
      continue;
    }
    const std::uint64_t record = reader.number();
    const std::uint64_t length = reader.number();
    const auto crc = static_cast<std::uint32_t>(reader.number(UINT32_MAX));
    const TensorStorageMetadata& tensor = metadata().tensors[chunk.tensor];
    const StorageInfo& place = place_of(metadata(), chunk);
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(numel(tensor.chunks.sizes(chunk.chunk))) *
        item_size(tensor.properties.dtype);
    if (!range_fits(answer - 1, bytes, place.length) || !range_fits(record, length, place.length) ||
        !checked_add(place.offset, answer))
      reader.malformed("a chunk's elements lie outside the chunk");
    known_.push_back(chunk);
    found_.push_back({place.offset + answer - 1,
                      length == 0
                          ? std::nullopt
                          : std::optional(RecordedCrc{place.offset + record, length, crc})});
  }
  for (const WireReader& reader : readers) reader.finish();
  return strided;
}

ChunkPayload LocatedReader::locate(std::size_t tensor, std::size_t chunk,
                                   const ReadableFile& file) const {
  const ChunkNumber wanted{static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(chunk)};
  const auto found = std::lower_bound(known_.begin(), known_.end(), wanted);
  if (found == known_.end() || *found != wanted)
    return ForwardingReader::locate(tensor, chunk, file);
  const TensorStorageMetadata& stored = metadata().tensors[tensor];
  const auto& [offset, record] = found_[static_cast<std::size_t>(found - known_.begin())];
  return {offset, stored.properties.dtype, row_major_strides(stored.chunks.sizes(chunk)), true,
          record};
}

}  // namespace dckpt
