#pragma once

#include <optional>

#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The content of a checkpoint's integrity.json; empty if it has none. Throws CheckpointError (corrupt, unsupported) if it cannot be used.
std::optional<IntegrityManifest> find_integrity_manifest(const Storage& storage);

/// Reads the files that integrity.json lists, with up to `threads` threads, and compares their SHA-256. `ranks` ranks that each call this share the files.
/// Throws CheckpointError: (corrupt) naming every file of this rank's share that differs or cannot be read, (incomplete) if the checkpoint has no integrity.json.
void verify_integrity(const Storage& storage, int rank, int ranks, int threads);

}  // namespace dckpt
