#include "dist_checkpointing/integrity.h"

#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/parallel_for.h"
#include "strategies/formats/torch_archive/checksum.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;  // some 600,000 files

std::optional<std::string> digest_of(const Storage& storage, const std::string& name) {
  try {
    return file_sha256(*storage.open(name));
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<IntegrityManifest> find_integrity_manifest(const Storage& storage) {
  if (!storage.stat(kIntegrityFile)) return std::nullopt;
  return read_integrity_manifest(read_file(*storage.open(kIntegrityFile), kMaxManifestBytes), storage.describe(kIntegrityFile));
}

void verify_integrity(const Storage& storage, int rank, int ranks, int threads) {
  const std::optional<IntegrityManifest> manifest = find_integrity_manifest(storage);
  if (!manifest) {
    throw CheckpointError(ErrorCode::kIncomplete, "the load is to verify the checkpoint's integrity, but it has no integrity.json; save it with integrity: sha256, or load it without verify_integrity",
                          {.file = storage.describe(kIntegrityFile)});
  }
  IntegrityManifest share;
  for (auto i = static_cast<std::size_t>(rank); i < manifest->files.size(); i += static_cast<std::size_t>(ranks)) share.files.push_back(manifest->files[i]);
  std::unordered_map<std::string, std::optional<std::string>> digests;
  for (const IntegrityManifest::Entry& entry : share.files) digests[entry.name];
  parallel_for(share.files.size(), threads, [&](std::size_t i) { digests.find(share.files[i].name)->second = digest_of(storage, share.files[i].name); });
  check_integrity(share, [&](const std::string& name) { return digests.at(name); });
}

}  // namespace dckpt
