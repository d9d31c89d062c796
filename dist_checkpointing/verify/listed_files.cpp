#include "dist_checkpointing/verify/listed_files.h"

#include <memory>
#include <optional>

#include "mapping/base/error.h"
#include "strategies/storage/hashed_file.h"

namespace dckpt {

ListedFiles::ListedFiles(const CheckpointReader& reader, Problems& problems) : reader_(reader) {
  const Storage& storage = reader_.storage();
  std::optional<IntegrityManifest> manifest;
  attempt(problems, {.file = kIntegrityFile}, [&] { manifest = find_integrity_manifest(storage); });
  manifest_ = manifest.value_or(IntegrityManifest{});
  for (const IntegrityManifest::Entry& entry : manifest_.files) {
    const std::optional<FileInfo> file = storage.stat(entry.name);
    sizes_.push_back(file ? file->size : 0);
    listed_.insert(entry.name);
  }
  if (manifest)
    attempt(problems, {.file = kIntegrityFile}, [&] { entries_of(manifest_, files_of(reader_)); });
}

std::vector<std::uint64_t> ListedFiles::unread(bool deep) const {
  std::vector<std::uint64_t> bytes = sizes_;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (!deep || digests_.contains(manifest_.files[i].name)) bytes[i] = 0;
  return bytes;
}

void ListedFiles::check(std::size_t index, bool deep, SharedWork& work, Problems& problems) const {
  const IntegrityManifest::Entry& entry = manifest_.files[index];
  attempt(problems, {.file = entry.name}, [&] {
    const std::unique_ptr<ReadableFile> file = reader_.storage().open(entry.name);
    if (entry.size && *entry.size != file->size())
      throw_error(ErrorCode::kCorrupt,
                  "size mismatch: integrity.json expects {} bytes, the file has {}",
                  grouped(*entry.size), grouped(file->size()));
    if (!deep) return;
    const auto known = digests_.find(entry.name);
    const std::string found = known == digests_.end() ? file_sha256(*file) : known->second;
    work.add(file->size());
    if (found == entry.sha256) return;
    throw_error(ErrorCode::kCorrupt,
                "hash mismatch: integrity.json expects SHA-256 {}…, the file has {}…",
                entry.sha256.substr(0, 16), found.substr(0, 16));
  });
}

}  // namespace dckpt
