#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// What decides the bytes of a conversion, as names and values for people: the files of its source,
/// its options, its plan.
using ConversionFacts = std::vector<std::pair<std::string, std::string>>;

/// A data file that is complete and durable.
struct FinishedFile {
  std::uint64_t size = 0;
  std::string digest;               ///< SHA-256 if there will be a manifest, else CRC-32
  std::vector<StorageInfo> places;  ///< as ItemSource::wrote() was told
  bool source_checked = false;      ///< all that was copied agreed with its checksums
};

/// What an attempt has noted so far.
struct JournalContent {
  ConversionFacts facts;
  std::map<std::string, FinishedFile> files;
  std::vector<std::pair<std::string, std::string>> renamed;  ///< from, to: begun at least
};

/// What is written is a line per record, each with its checksum. What follows a line that is
/// incomplete is lost. Throws CheckpointError (corrupt) for lines that no journal has.
JournalContent parse_journal(ByteView bytes, const std::string& name);

/// A record as it stands in a journal: with its checksum before it and a newline behind.
std::string journal_line(std::string_view record);

/// What all attempts have noted in `directory`; empty if there is no journal with facts.
std::optional<JournalContent> read_journals(const Storage& storage, const std::string& directory);

/// What a conversion has finished, noted beside the files in the hidden directory where they wait
/// to be published. Safe to use from several threads.
class ConversionJournal {
 public:
  /// Begins one that goes on with `kept`. `sync`: records are durable.
  ConversionJournal(std::shared_ptr<Storage> storage, std::string directory,
                    const ConversionFacts& facts, std::map<std::string, FinishedFile> kept,
                    bool manifest, bool sync);
  ~ConversionJournal();

  /// To write through: knows the digests of files when they are told to wrote(), and notes what is
  /// renamed.
  const std::shared_ptr<Storage>& storage() const noexcept { return noting_; }

  /// A file that is there; empty if it has yet to be written.
  std::optional<FinishedFile> find(const std::string& file) const;
  /// See ItemSource; `source_checked` as in FinishedFile.
  void wrote(const std::string& file, std::span<const StorageInfo> places, bool source_checked);

  /// SHA-256 of the data files, if there will be a manifest.
  ManifestDigests digests() const;
  /// Removes the journals of all attempts.
  void remove();

 private:
  class NotingStorage;
  class NotedFile;
  void note(const std::string& json);

  const std::shared_ptr<Storage> storage_;
  const std::string directory_;
  const bool manifest_;
  const bool sync_;
  mutable std::mutex mutex_;
  std::map<std::string, FinishedFile> files_;   ///< kept and wrote()
  std::map<std::string, FinishedFile> closed_;  ///< by full name: not told to wrote() yet
  std::unique_ptr<WritableFile> file_;
  std::shared_ptr<Storage> noting_;
};

/// What an interrupted conversion has left in `directory`, made ready to go on: files that it was
/// about to rename have their names back, those that are as they were noted are returned, and
/// everything else is removed. `threads` read them.
std::map<std::string, FinishedFile> keep_finished(Storage& storage, const std::string& directory,
                                                  const JournalContent& journal, bool manifest,
                                                  int threads);

}  // namespace dckpt
