#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/fields.h"
#include "mapping/planning/metadata.h"
#include "operations/convert/conversion_facts.h"
#include "strategies/storage/storage.h"

// The notes of a conversion: what is done of it. Each process appends to a file of its own; a
// record is its checksum, its length and a message. Everything after an incomplete record is lost.
namespace dckpt {

/// A unit of work that is done, with its data file if it has one.
struct FinishedUnit {
  std::string path{};  ///< in the directory of the copy; empty for a unit without a file
  std::uint64_t size = 0;
  std::int64_t modified = 0;          ///< as FileInfo::modified
  std::string digest{};               ///< SHA-256 if there will be a manifest, else CRC-32
  std::vector<StorageInfo> places{};  ///< places passed to ItemSource::wrote()
  bool source_checked = false;        ///< all copied data agreed with its checksums
  std::int64_t at = 0;                ///< when it was noted, by the clock of a shared pool
};
constexpr auto fields(const FinishedUnit*) {
  using F = FinishedUnit;
  return std::tuple(Field(&F::path), Field(&F::size), Field(&F::modified), Field(&F::digest),
                    Field(&F::places), Field(&F::source_checked), Field(&F::at));
}

/// A file that is about to become visible, as it is found again afterwards.
struct PublishedFile {
  std::string name;  ///< in the checkpoint
  std::uint64_t size = 0;
  std::int64_t modified = 0;
  friend bool operator==(const PublishedFile&, const PublishedFile&) = default;
};
constexpr auto fields(const PublishedFile*) {
  using F = PublishedFile;
  return std::tuple(Field(&F::name), Field(&F::size), Field(&F::modified));
}

/// A record, which usually has one of these.
struct PoolNote {
  ConversionFacts facts{};                     ///< of a conversion that one process alone began
  std::map<std::string, FinishedUnit> done{};  ///< by unit
  std::map<std::string, FinishedUnit> gone{};  ///< those whose files are not as they were noted
  NamePairs renamed{};  ///< from, to, in the directory of the copy: about to be carried out
  std::vector<PublishedFile> commitment{};  ///< all files but the marker
};
constexpr auto fields(const PoolNote*) {
  using N = PoolNote;
  return std::tuple(Field(&N::facts), Field(&N::done), Field(&N::gone), Field(&N::renamed),
                    Field(&N::commitment));
}

/// The notes of all processes.
struct PoolNotes {
  ConversionFacts facts;
  std::map<std::string, FinishedUnit> done;
  std::set<std::pair<std::string, std::int64_t>> gone;  ///< paths and times of noted files
  NamePairs renamed;
  std::vector<std::vector<PublishedFile>> commitments;
  std::map<std::string, std::uint64_t> read;  ///< bytes read of each file of notes

  void add(PoolNote note);
};

/// Returns the record of a message in a file of notes.
Bytes note_record(ByteView message);

/// Adds the records that `bytes` begins with, and returns their size. Throws CheckpointError
/// (corrupt) for records that nobody writes. `file` is for messages.
std::size_t parse_notes(ByteView bytes, const std::string& file, PoolNotes& notes);

/// Returns the name of the `number`-th file of notes that a process writes, by its token.
std::string notes_name(const std::string& token, int number);
bool is_notes(std::string_view name);

/// Adds what the files of notes among `entries`, the files of `pool`, have got since they were
/// read.
void read_notes(const Storage& pool, std::span<const FileInfo> entries, PoolNotes& notes);

}  // namespace dckpt
