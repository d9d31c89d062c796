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

/// metadata.json, which marks a directory as one of Megatron's distributed checkpoints.
struct CheckpointingConfig {
  std::string sharded_backend = "torch_dist";
  int sharded_backend_version = 1;
  std::optional<std::string> common_backend{};  ///< "torch": the common state is in common.pt (up
                                                ///< to Megatron 0.18); absent later
  std::optional<int> common_backend_version{};
  friend bool operator==(const CheckpointingConfig&, const CheckpointingConfig&) = default;
};

/// Unknown fields are skipped, as Megatron from 0.19 on does; a missing version is 1. Throws
/// CheckpointError (corrupt) for broken JSON, a missing sharded_backend and values of another type.
CheckpointingConfig read_checkpointing_config(ByteView json,
                                              const std::string& file_name = kConfigFile);

/// Throws CheckpointError (unsupported) for a common backend that this version does not read:
/// Megatron has only ever had "torch" version 1.
void check_common_backend(const CheckpointingConfig& config,
                          const std::string& file_name = kConfigFile);

/// Byte for byte what Megatron writes: two fields, or four when there is a common backend. Readers
/// up to 0.18 refuse further fields.
std::string write_checkpointing_config(const CheckpointingConfig& config);

/// integrity.json (Megatron from 0.18 on): SHA-256 of each plain file of the checkpoint, but not of
/// integrity.json. Megatron lists those directly in it, this library also those in folders, and
/// their sizes.
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

/// Throws CheckpointError: (unsupported) for another algorithm than sha256, (corrupt) for broken
/// JSON, digests and sizes that are none, and names that are no file in the checkpoint.
IntegrityManifest read_integrity_manifest(ByteView json,
                                          const std::string& file_name = kIntegrityFile);

/// Byte for byte what Megatron writes, and behind it `sizes`, which Megatron does not look at, if
/// there are any; entries in name order whatever their order in `manifest`.
std::string write_integrity_manifest(const IntegrityManifest& manifest);

/// Throws CheckpointError (corrupt), "Checkpoint integrity verification failed for N file(s)" and a
/// line for each file that differs, in Megatron's words:
/// "__0_0.distcp: hash mismatch (expected 0123456789abcdef..., got …)" or "…: file missing or
/// unreadable". `digest` gives the SHA-256 of a file in the checkpoint as lower-case hexadecimal,
/// or nothing if it can't be read.
void check_integrity(
    const IntegrityManifest& manifest,
    const std::function<std::optional<std::string>(const std::string& name)>& digest);

/// The same for the sizes that it has: "common.pt: size mismatch (expected 812, got 900)". `size`
/// gives nothing for a file that is not to be compared.
void check_sizes(const IntegrityManifest& manifest,
                 const std::function<std::optional<std::uint64_t>(const std::string& name)>& size);

}  // namespace dckpt
