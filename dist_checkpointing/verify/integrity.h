#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "strategies/contract/reader.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/hashed_file.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// Writes integrity.json into `directory` of the storage. `digests` is keyed by file name inside
/// the checkpoint.
void write_manifest(Storage& storage, const std::string& directory,
                    const std::map<std::string, FileDigest>& digests, bool sync);

/// Returns the content of a checkpoint's integrity.json; empty if it has none. Throws
/// CheckpointError (corrupt, unsupported) if it cannot be used.
std::optional<IntegrityManifest> find_integrity_manifest(const Storage& storage);

/// Returns the files that a checkpoint is read from, except integrity.json: indexes, the common
/// state, and all data files.
std::vector<std::string> files_of(const CheckpointReader& reader);

/// Returns the manifest's entries for `files`. Throws CheckpointError (corrupt) naming the files
/// that it does not list, since nothing protects them.
IntegrityManifest entries_of(const IntegrityManifest& manifest, std::span<const std::string> files);

/// Returns the manifest of a checkpoint, which must list every file that the checkpoint is read
/// from. Throws CheckpointError (incomplete) if there is none, and as entries_of does.
IntegrityManifest require_manifest(const CheckpointReader& reader);

/// Returns the manifest's entries, with sizes, of the files that the checkpoint is read from; none
/// if there is no manifest. An unusable manifest, such as one of another program, gets a warning,
/// which is added to `findings`.
IntegrityManifest sizes_to_compare(const CheckpointReader& reader, Findings& findings);

/// Compares the sizes of the existing files. If `ranks` ranks each call this, they share the files.
/// Throws CheckpointError (corrupt) naming every file of this rank's share that differs.
void compare_sizes(const Storage& storage, const IntegrityManifest& manifest, int rank, int ranks);

/// Compares files with a manifest, without rereading bytes that are read anyway.
class ManifestCheck {
 public:
  ManifestCheck(const Storage& storage, IntegrityManifest manifest);

  /// Opens a file. If it is listed, bytes read from it count for the check. The check must outlive
  /// the returned file. Safe to call from several threads.
  std::unique_ptr<ReadableFile> open(const std::string& name);

  /// Reads the bytes not read so far, with up to `threads` threads. Throws CheckpointError
  /// (corrupt) naming every file that differs or cannot be read. Call it once.
  void finish(int threads);

 private:
  const Storage& storage_;
  IntegrityManifest manifest_;
  std::map<std::string, PassingHash> hashes_;  // one entry per listed file
};

/// Reads the listed files with up to `threads` threads and compares their SHA-256. If `ranks` ranks
/// each call this, they share the files. Throws CheckpointError (corrupt) naming every file of this
/// rank's share that differs or cannot be read.
void compare_digests(const Storage& storage, const IntegrityManifest& manifest, int rank, int ranks,
                     int threads);

/// Does the same for every file that integrity.json lists; the list must include every file that
/// the checkpoint is read from. Also throws (incomplete) if there is no integrity.json.
void verify_integrity(const CheckpointReader& reader, int rank, int ranks, int threads);

}  // namespace dckpt
