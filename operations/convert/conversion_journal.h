#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "operations/convert/noted_json.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Everything that determines the bytes of a conversion, as names and values for messages: the
/// files of its source, its options, its plan.
using ConversionFacts = NamePairs;

/// A data file that is complete and durable.
struct FinishedFile {
  std::uint64_t size = 0;
  std::string digest;               ///< SHA-256 if there will be a manifest, else CRC-32
  std::vector<StorageInfo> places;  ///< places passed to ItemSource::wrote()
  bool source_checked = false;      ///< all copied data agreed with its checksums
  std::int64_t modified = 0;        ///< as FileInfo::modified; 0 if the digest tells of changes
};

/// The records of an attempt so far.
struct JournalContent {
  ConversionFacts facts;
  std::map<std::string, FinishedFile> files;
  NamePairs renamed;  ///< from, to: at least begun
};

/// Parses a journal: one line per record, each with its checksum. Everything after an incomplete
/// line is lost. Throws CheckpointError (corrupt) for lines that no journal has. `name` is for
/// messages.
JournalContent parse_journal(ByteView bytes, const std::string& name);

/// Returns whether a file, by its name in the directory of a conversion, is a journal.
bool is_journal(std::string_view name);

/// Returns the record of a finished file.
std::string journal_record(const std::string& name, const FinishedFile& file);

/// Returns the line of a record in a journal: its checksum, the record, and a newline.
std::string journal_line(std::string_view record);

/// Returns the records of all attempts in `directory`; empty if there is no journal with facts.
std::optional<JournalContent> read_journals(const Storage& storage, const std::string& directory);

/// A journal lies in a directory of a storage, "" for its root.
struct JournalPlace {
  std::shared_ptr<Storage> storage{};
  std::string directory{};
};

/// Records the finished files of a conversion, by default beside these files in the hidden
/// directory where they wait to be published. Safe to use from several threads.
class ConversionJournal {
 public:
  /// Begins a journal that continues with `kept`. With `sync`, records are durable. The journal is
  /// in `directory` unless `place` says otherwise.
  ConversionJournal(std::shared_ptr<Storage> storage, std::string directory,
                    const ConversionFacts& facts, std::map<std::string, FinishedFile> kept,
                    bool manifest, bool sync, JournalPlace place = {});
  ~ConversionJournal();

  /// Returns the storage to write through: it knows the digests of files when wrote() is called,
  /// and records renames.
  const std::shared_ptr<Storage>& storage() const noexcept { return noting_; }

  /// Returns a finished file; empty if it has yet to be written.
  std::optional<FinishedFile> find(const std::string& file) const;
  /// Implements ItemSource::wrote(); `source_checked` as in FinishedFile.
  void wrote(const std::string& file, std::span<const StorageInfo> places, bool source_checked);

  /// Returns the SHA-256 of the data files, if there will be a manifest.
  ManifestDigests digests() const;
  /// Returns the renames through storage(), in their order.
  NamePairs renamed() const;
  /// Removes the journals of all attempts.
  void remove();

 private:
  class NotingStorage;
  class NotedFile;
  void note(const std::string& json);
  void note_renamed(std::string from, std::string to);

  const std::shared_ptr<Storage> storage_;
  const std::string directory_;
  const JournalPlace place_;
  const bool manifest_;
  const bool sync_;
  mutable std::mutex mutex_;
  std::map<std::string, FinishedFile> files_;   ///< kept ones and those passed to wrote()
  std::map<std::string, FinishedFile> closed_;  ///< by full name; not yet passed to wrote()
  NamePairs renamed_;
  std::unique_ptr<WritableFile> file_;
  std::shared_ptr<Storage> noting_;
};

/// Undoes renames in `directory`, the last one first, as far as they were carried out.
void undo_renames(Storage& storage, const std::string& directory, const NamePairs& renamed);

/// Removes everything in `directory` except the journals and `kept`.
void remove_others(Storage& storage, const std::string& directory,
                   const std::map<std::string, FinishedFile>& kept);

/// Prepares the leftovers of an interrupted conversion in `directory` to be continued: undoes
/// pending renames, returns the files that still match their journal entry, and deletes everything
/// else. Reads with `threads` threads.
std::map<std::string, FinishedFile> keep_finished(Storage& storage, const std::string& directory,
                                                  const JournalContent& journal, bool manifest,
                                                  int threads);

}  // namespace dckpt
