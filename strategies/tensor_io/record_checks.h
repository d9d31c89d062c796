#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mapping/planning/load/distribution.h"
#include "mapping/planning/metadata.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Compares stored chunks with their recorded CRC-32 while they are read in pieces, by several
/// threads and in any order. Once the pieces form a complete record, its CRC is combined from
/// theirs. Chunks in the same place (of rearranged tensors) share a record. Safe to share between
/// threads.
class RecordChecks {
 public:
  /// The bytes [begin, end) of a file, and their CRC.
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t crc = 0;
  };

  explicit RecordChecks(const Metadata& metadata) : metadata_(metadata) {}

  /// Adds to the number of requested bytes of the chunk.
  void want(ChunkNumber chunk, std::uint64_t bytes);
  /// Returns whether the chunk's record has been read completely and compared.
  bool checked(ChunkNumber chunk) const;
  /// Adds a piece of the chunk's record that was read. Throws CheckpointError (corrupt) if the
  /// record is now complete and has another CRC. Bytes that were read before are not counted twice.
  void add(ChunkNumber chunk, const RecordedCrc& record, const Piece& piece);

  /// Returns the requested bytes whose records were not read completely or have no CRC.
  std::uint64_t unchecked_bytes() const;
  /// Returns the wanted chunks that unchecked_bytes() counts, ascending; one for each place.
  std::vector<ChunkNumber> unchecked() const;

  /// incomplete() returns the pieces read of incomplete records; take() adds those of another rank.
  /// take() throws as add() does.
  Bytes incomplete() const;
  void take(ByteView pieces, const std::string& from);

 private:
  struct Incomplete {
    RecordedCrc record{};
    std::map<std::uint64_t, Piece> pieces{};  ///< by their beginnings; not adjacent
  };
  struct Entry {
    ChunkNumber chunk{};
    std::uint64_t wanted = 0;
    bool checked = false;
    std::unique_ptr<Incomplete> incomplete{};  ///< null for most records, which arrive whole
  };
  using Place = std::pair<std::uint32_t, std::uint64_t>;  ///< file and offset
  /// Threads read places far from each other and therefore rarely want the same lock.
  struct Shard {
    mutable std::mutex mutex;
    std::map<Place, Entry> entries;
  };
  static constexpr std::size_t kShards = 64;

  Place place(ChunkNumber chunk) const;
  static std::size_t shard_of(const Place& place) noexcept;
  static Entry& entry(Shard& shard, const Place& place, ChunkNumber chunk);
  void compare(ChunkNumber chunk, const RecordedCrc& record, std::uint32_t crc) const;

  const Metadata& metadata_;
  std::array<Shard, kShards> shards_;
};

/// Computes the CRC of the bytes that one thread reads of a chunk's record, from front to back
/// where it can.
class PassingRecord {
 public:
  /// Computes nothing if `checks` is null or there is no record.
  PassingRecord(RecordChecks* checks, ChunkNumber chunk, const std::optional<RecordedCrc>& record)
      : checks_(record ? checks : nullptr),
        chunk_(chunk),
        record_(record.value_or(RecordedCrc{})) {}

  /// Fills `into` from the file. Throws as ReadableFile::read and RecordChecks::add do.
  void read(const ReadableFile& file, std::uint64_t offset, MutableByteView into);
  /// Does the same for bytes that were read in another way.
  void pass(std::uint64_t offset, ByteView bytes);
  /// Call after the last read. Throws as RecordChecks::add does.
  void finish();
  /// Stops computing.
  void give_up() noexcept { checks_ = nullptr; }

 private:
  RecordChecks* checks_;
  ChunkNumber chunk_;
  RecordedCrc record_;
  RecordChecks::Piece piece_;
};

}  // namespace dckpt
