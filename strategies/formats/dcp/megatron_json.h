#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"

namespace dckpt {

inline constexpr const char* kConfigFile = "metadata.json";
inline constexpr const char* kIntegrityFile = "integrity.json";

/// The content of metadata.json, which marks a directory as one of Megatron's distributed
/// checkpoints.
struct CheckpointingConfig {
  std::string sharded_backend = "torch_dist";
  int sharded_backend_version = 1;
  std::optional<std::string> common_backend{};  ///< "torch": the common state is in common.pt (up
                                                ///< to Megatron 0.18); absent later
  std::optional<int> common_backend_version{};
  friend bool operator==(const CheckpointingConfig&, const CheckpointingConfig&) = default;
};

/// Reads metadata.json. Unknown fields are skipped, as Megatron from 0.19 on does; a missing
/// version is 1. Throws CheckpointError (corrupt) for broken JSON, a missing sharded_backend and
/// values of another type.
CheckpointingConfig read_checkpointing_config(ByteView json,
                                              const std::string& file_name = kConfigFile);

/// Throws CheckpointError (unsupported) for a common backend that this library does not read:
/// Megatron has only ever had "torch" version 1.
void check_common_backend(const CheckpointingConfig& config,
                          const std::string& file_name = kConfigFile);

/// Returns byte for byte what Megatron writes: two fields, or four if there is a common backend.
/// Readers up to 0.18 refuse further fields.
std::string write_checkpointing_config(const CheckpointingConfig& config);

/// The content of integrity.json (Megatron from 0.18 on): the SHA-256 of each plain file of the
/// checkpoint except integrity.json. Megatron lists the files directly in the checkpoint; this
/// library also lists those in folders, and their sizes.
struct IntegrityManifest {
  struct Entry {
    std::string name;
    std::string sha256;  ///< 64 hexadecimal digits, lower case
    std::optional<std::uint64_t> size{};
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> files;
  friend bool operator==(const IntegrityManifest&, const IntegrityManifest&) = default;
};

/// Throws CheckpointError: (unsupported) for an algorithm other than sha256, (corrupt) for broken
/// JSON, malformed digests and sizes, and names that cannot be files in the checkpoint.
IntegrityManifest read_integrity_manifest(ByteView json,
                                          const std::string& file_name = kIntegrityFile);

/// Returns byte for byte what Megatron writes, followed by `sizes`, which Megatron ignores, if
/// there are any. Entries are in name order whatever their order in `manifest`.
std::string write_integrity_manifest(const IntegrityManifest& manifest);

/// Throws CheckpointError (corrupt), "Checkpoint integrity verification failed for N file(s)" and a
/// line for each file that differs, in Megatron's words: "__0_0.distcp: hash mismatch (expected
/// 0123456789abcdef..., got …)" or "…: file missing or unreadable". `digest` returns the SHA-256 of
/// a file in the checkpoint as lower-case hexadecimal, or nothing if the file can't be read.
void check_integrity(
    const IntegrityManifest& manifest,
    const std::function<std::optional<std::string>(const std::string& name)>& digest);

/// Does the same for the sizes in the manifest: "common.pt: size mismatch (expected 812, got 900)".
/// `size` returns nothing for a file that is not to be compared.
void check_sizes(const IntegrityManifest& manifest,
                 const std::function<std::optional<std::uint64_t>(const std::string& name)>& size);

}  // namespace dckpt
