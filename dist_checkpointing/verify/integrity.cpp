#include "dist_checkpointing/verify/integrity.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "mapping/planning/rearrange.h"
#include "strategies/storage/hashed_file.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;  // about 1,500,000 files

IntegrityManifest share_of(const IntegrityManifest& manifest, int rank, int ranks) {
  IntegrityManifest share;
  for (auto i = static_cast<std::size_t>(rank); i < manifest.files.size();
       i += static_cast<std::size_t>(ranks))
    share.files.push_back(manifest.files[i]);
  return share;
}

}  // namespace

void write_manifest(Storage& storage, const std::string& directory,
                    const std::map<std::string, FileDigest>& digests, bool sync) {
  IntegrityManifest manifest;
  for (const auto& [name, digest] : digests)
    manifest.files.push_back({name, digest.sha256, digest.size});
  const std::string json = write_integrity_manifest(manifest);
  const auto file = storage.create(join_name(directory, kIntegrityFile),
                                   {.size_hint = json.size(), .durable = sync});
  file->append(as_bytes(json));
  if (sync) file->sync();
  file->close();
}

std::optional<IntegrityManifest> find_integrity_manifest(const Storage& storage) {
  if (!storage.stat(kIntegrityFile)) return std::nullopt;
  return read_integrity_manifest(read_file(*storage.open(kIntegrityFile), kMaxManifestBytes),
                                 storage.display_path(kIntegrityFile));
}

std::vector<std::string> files_of(const CheckpointReader& reader) {
  std::vector<std::string> files = reader.info().index_files;
  if (reader.info().common_file) files.push_back(*reader.info().common_file);
  std::ranges::copy_if(reader.metadata().files, std::back_inserter(files), is_stored_file);
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
      unlisted += (count > 1 ? ", " : "") + quote(file);
    }
  }
  if (count == 0) return entries;
  if (count > kMostNamed) unlisted += str_format(" and {} more", grouped(count - kMostNamed));
  throw_error(ErrorCode::kCorrupt, {.file = kIntegrityFile},
              "integrity.json does not list {}, so nothing shows whether what "
              "is read there is what was saved; was the file added later, or "
              "a removal of keys interrupted, which can be repeated?",
              unlisted);
}

IntegrityManifest require_manifest(const CheckpointReader& reader) {
  const Storage& storage = reader.storage();
  std::optional<IntegrityManifest> manifest = find_integrity_manifest(storage);
  if (!manifest) {
    throw_error(ErrorCode::kIncomplete, {.file = storage.display_path(kIntegrityFile)},
                "cannot verify the checkpoint's integrity: it has no integrity.json; save it with "
                "integrity: sha256, or load it with load.verify: crc");
  }
  entries_of(*manifest, files_of(reader));
  return std::move(*manifest);
}

IntegrityManifest sizes_to_compare(const CheckpointReader& reader, Findings& findings) {
  std::optional<IntegrityManifest> manifest;
  try {
    manifest = find_integrity_manifest(reader.storage());
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kCorrupt && error.code() != ErrorCode::kUnsupported) throw;
    warn(findings, {FindingCode::kManifestUnusable,
                    str_format("nothing is compared with integrity.json, which cannot be used: {}",
                               error.what()),
                    {},
                    kIntegrityFile});
  }
  if (!manifest) return {};
  const std::vector<std::string> read = files_of(reader);
  const std::set<std::string_view> names(read.begin(), read.end());
  std::erase_if(manifest->files, [&](const IntegrityManifest::Entry& entry) {
    return !entry.size || !names.contains(entry.name);
  });
  return std::move(*manifest);
}

void compare_sizes(const Storage& storage, const IntegrityManifest& manifest, int rank, int ranks) {
  check_sizes(share_of(manifest, rank, ranks), [&](const std::string& name) {
    const std::optional<FileInfo> file = storage.stat(name);
    return file ? std::optional(file->size) : std::nullopt;
  });
}

ManifestCheck::ManifestCheck(const Storage& storage, IntegrityManifest manifest)
    : storage_(storage), manifest_(std::move(manifest)) {
  for (const IntegrityManifest::Entry& entry : manifest_.files) hashes_[entry.name];
}

std::unique_ptr<ReadableFile> ManifestCheck::open(const std::string& name) {
  std::unique_ptr<ReadableFile> file = storage_.open(name);
  const auto hash = hashes_.find(name);
  if (hash == hashes_.end()) return file;
  return std::make_unique<HashedFile>(std::move(file), hash->second);
}

void ManifestCheck::finish(int threads) {
  std::map<std::string, std::optional<std::string>> digests;
  for (const auto& [name, hash] : hashes_) digests[name];
  std::vector<std::string> names;
  for (const auto& [name, hash] : hashes_) names.push_back(name);
  parallel_for(names.size(), threads, [&](std::size_t i) {
    try {
      digests.at(names[i]) = hashes_.at(names[i]).finish_hex(*storage_.open(names[i]));
    } catch (const CheckpointError&) {  // the message says that the file cannot be read
    }
  });
  check_integrity(manifest_, [&](const std::string& name) { return digests.at(name); });
}

void compare_digests(const Storage& storage, const IntegrityManifest& manifest, int rank, int ranks,
                     int threads) {
  ManifestCheck(storage, share_of(manifest, rank, ranks)).finish(threads);
}

void verify_integrity(const CheckpointReader& reader, int rank, int ranks, int threads) {
  compare_digests(reader.storage(), require_manifest(reader), rank, ranks, threads);
}

}  // namespace dckpt
