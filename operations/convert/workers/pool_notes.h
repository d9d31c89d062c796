#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "operations/convert/conversion_facts.h"
#include "strategies/storage/storage.h"

// The notes of a conversion: what is done of it. Each process appends to a file of its own, one
// line for each record, with its checksum. Everything after an incomplete line is lost.
namespace dckpt {

/// A unit of work that is done, with its data file if it has one.
struct FinishedUnit {
  std::string path;  ///< in the directory of the copy; empty for a unit without a file
  std::uint64_t size = 0;
  std::int64_t modified = 0;        ///< as FileInfo::modified
  std::string digest;               ///< SHA-256 if there will be a manifest, else CRC-32
  std::vector<StorageInfo> places;  ///< places passed to ItemSource::wrote()
  bool source_checked = false;      ///< all copied data agreed with its checksums
  std::int64_t at = 0;              ///< when it was noted, by the clock of a shared pool
};

/// A file that is about to become visible, as it is found again afterwards.
struct PublishedFile {
  std::string name;  ///< in the checkpoint
  std::uint64_t size = 0;
  std::int64_t modified = 0;
  friend bool operator==(const PublishedFile&, const PublishedFile&) = default;
};

/// The notes of all processes.
struct PoolNotes {
  ConversionFacts facts;                     ///< of a conversion that one process alone began
  std::map<std::string, FinishedUnit> done;  ///< by unit
  std::set<std::pair<std::string, std::int64_t>> gone;  ///< files that are not as they were noted
  NamePairs renamed;  ///< from, to, in the directory of the copy: at least begun
  std::vector<std::vector<PublishedFile>> commitments;  ///< all files but the marker
  std::map<std::string, std::uint64_t> read;            ///< bytes read of each file of notes

  void add(const std::string& unit, FinishedUnit finished);
  /// Takes back that a unit is done.
  void take_back(const std::string& unit, const std::string& path, std::int64_t modified);
};

std::string note_of_facts(const ConversionFacts& facts);
std::string note_of_done(const std::string& unit, const FinishedUnit& finished);
std::string note_of_gone(const std::string& unit, const FinishedUnit& gone);
std::string note_of_rename(const std::string& from, const std::string& to);
std::string note_of_commitment(const std::vector<PublishedFile>& files);

/// Returns the line of a record in a file of notes.
std::string note_line(std::string_view record);

/// Adds the records of the complete lines that `text` begins with, and returns their size. Throws
/// CheckpointError (corrupt) for lines that nobody writes. `file` is for messages.
std::size_t parse_notes(std::string_view text, const std::string& file, PoolNotes& notes);

/// Returns the name of the `number`-th file of notes that a process writes, by its token.
std::string notes_name(const std::string& token, int number);
bool is_notes(std::string_view name);

/// Adds what the files of notes among `entries`, the files of `pool`, have got since they were
/// read.
void read_notes(const Storage& pool, std::span<const FileInfo> entries, PoolNotes& notes);

}  // namespace dckpt
