#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dist_checkpointing/verify/integrity.h"
#include "operations/convert/copy_contents.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/file_watch.h"
#include "strategies/tensor_io/record_checks.h"

namespace dckpt {

/// Returns the manifest's entries that a conversion compares: with `integrity` those of all files,
/// which must have a manifest; else with `checksums` those of the files with copied data, if there
/// is a manifest. Throws CheckpointError for a manifest that cannot be used.
IntegrityManifest manifest_to_compare(const CheckpointReader& reader, const CopyContents& contents,
                                      bool checksums, bool integrity);

/// Compares a checkpoint that is being copied with its checksums and its manifest, so that damage
/// does not get fresh, valid ones. Data read for the copy, through open() and with records(), is
/// not read a second time.
class SourceCheck {
 public:
  /// `checksums` checks the copied data, `manifest` the files that it lists. The reader must
  /// outlive it, and its files be opened under `watch`, as those of the other models.
  SourceCheck(const CheckpointReader& reader, bool checksums, IntegrityManifest manifest,
              std::shared_ptr<FileWatch> watch);

  bool checksums() const noexcept { return checksums_; }
  RecordChecks& records() noexcept { return records_; }

  /// Opens a data file. Safe to call from several threads.
  std::unique_ptr<ReadableFile> open(const std::string& name);

  /// Compares, once everything has been copied, the records that have not passed as a whole (cut
  /// finely during conversion, or with members that were not copied). `go_on` is called before each
  /// and may throw.
  void check_rest(int threads, const std::function<void()>& go_on);
  /// Compares the files with the manifest, if there is one. Call it last, once.
  void check_manifest(int threads);

  /// Throws CheckpointError (aborted) if a file was replaced after it was first seen: one that was
  /// opened since the previous call, or any.
  void require_unchanged_since_last();
  void require_unchanged() const;

 private:
  const CheckpointReader& reader_;
  const bool checksums_;
  RecordChecks records_;
  std::optional<ManifestCheck> manifest_;
  const std::shared_ptr<FileWatch> watch_;
};

}  // namespace dckpt
