#include "dist_checkpointing/integrity.h"

#include <string_view>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/text.h"
#include "strategies/storage/hashed_file.h"

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
  return read_integrity_manifest(read_file(*storage.open(kIntegrityFile), kMaxManifestBytes),
                                 storage.describe(kIntegrityFile));
}

std::vector<std::string> files_of(const CheckpointReader& reader) {
  std::vector<std::string> files = reader.info().index_files;
  if (reader.info().common_file) files.push_back(*reader.info().common_file);
  files.insert(files.end(), reader.metadata().files.begin(), reader.metadata().files.end());
  return files;
}

IntegrityManifest entries_of(const IntegrityManifest& manifest,
                             std::span<const std::string> files) {
  constexpr std::size_t kMostNamed = 10;
  std::unordered_map<std::string_view, const IntegrityManifest::Entry*> listed;
  for (const IntegrityManifest::Entry& entry : manifest.files) listed.emplace(entry.name, &entry);
  IntegrityManifest entries;
  std::string unlisted;
  std::size_t count = 0;
  for (const std::string& file : files) {
    const auto found = listed.find(file);
    if (found != listed.end()) {
      entries.files.push_back(*found->second);
    } else if (++count <= kMostNamed) {
      unlisted += (count > 1 ? ", " : "") + quoted(file);
    }
  }
  if (count == 0) return entries;
  if (count > kMostNamed) unlisted += " and " + grouped(count - kMostNamed) + " more";
  throw CheckpointError(
      ErrorCode::kCorrupt,
      "integrity.json does not list " + unlisted +
          ", so nothing shows whether what is read there is what was saved; was the file added "
          "later, or a removal of keys interrupted, which can be repeated?",
      {.file = kIntegrityFile});
}

void compare_digests(const Storage& storage, const IntegrityManifest& manifest, int rank, int ranks,
                     int threads) {
  IntegrityManifest share;
  for (auto i = static_cast<std::size_t>(rank); i < manifest.files.size();
       i += static_cast<std::size_t>(ranks))
    share.files.push_back(manifest.files[i]);
  std::unordered_map<std::string, std::optional<std::string>> digests;
  for (const IntegrityManifest::Entry& entry : share.files) digests[entry.name];
  parallel_for(share.files.size(), threads, [&](std::size_t i) {
    digests.find(share.files[i].name)->second = digest_of(storage, share.files[i].name);
  });
  check_integrity(share, [&](const std::string& name) { return digests.at(name); });
}

void verify_integrity(const CheckpointReader& reader, int rank, int ranks, int threads) {
  const Storage& storage = reader.storage();
  const std::optional<IntegrityManifest> manifest = find_integrity_manifest(storage);
  if (!manifest) {
    throw CheckpointError(
        ErrorCode::kIncomplete,
        "the load is to verify the checkpoint's integrity, but it has no integrity.json; save it "
        "with integrity: sha256, or load it with load.verify: crc",
        {.file = storage.describe(kIntegrityFile)});
  }
  entries_of(*manifest, files_of(reader));
  compare_digests(storage, *manifest, rank, ranks, threads);
}

}  // namespace dckpt
