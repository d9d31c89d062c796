#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategies/contract/reader.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The content of a checkpoint's integrity.json; empty if it has none. Throws CheckpointError
/// (corrupt, unsupported) if it cannot be used.
std::optional<IntegrityManifest> find_integrity_manifest(const Storage& storage);

/// The files that a checkpoint is read from, beside integrity.json: what says what is stored, the
/// common state, and all data files.
std::vector<std::string> files_of(const CheckpointReader& reader);

/// The manifest's entries of `files`. Throws CheckpointError (corrupt), naming those that it does
/// not list: nothing protects them.
IntegrityManifest entries_of(const IntegrityManifest& manifest, std::span<const std::string> files);

/// Reads the files that are listed, with up to `threads` threads, and compares their SHA-256.
/// `ranks` ranks that each call this share the files. Throws CheckpointError (corrupt) naming every
/// file of this rank's share that differs or cannot be read.
void compare_digests(const Storage& storage, const IntegrityManifest& manifest, int rank, int ranks,
                     int threads);

/// The same for all that integrity.json lists, which must be all that the checkpoint is read from.
/// Throws, too, (incomplete) if there is no integrity.json.
void verify_integrity(const CheckpointReader& reader, int rank, int ranks, int threads);

}  // namespace dckpt
