#include "strategies/safetensors/hub_cache.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlobs = "../../blobs/";

/// The blobs that appear in the folder: name → blob.
using Blobs = std::map<std::string, FileInfo, std::less<>>;

class SnapshotFolder final : public ForwardingStorage {
 public:
  SnapshotFolder(std::shared_ptr<Storage> folder, std::shared_ptr<Storage> blobs, Blobs linked)
      : ForwardingStorage(std::move(folder)),
        blobs_(std::move(blobs)),
        linked_(std::move(linked)) {}

  std::vector<FileInfo> list(const std::string& directory) const override {
    std::vector<FileInfo> entries = storage_->list(directory);
    if (!directory.empty()) return entries;
    for (FileInfo& entry : entries) {
      if (const auto blob = linked_.find(entry.name); blob != linked_.end())
        entry = {entry.name, FileInfo::Kind::kRegular, blob->second.size};
    }
    return entries;
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    const auto blob = linked_.find(name);
    if (blob == linked_.end()) return storage_->stat(name);
    return FileInfo{name, FileInfo::Kind::kRegular, blob->second.size};
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    const auto blob = linked_.find(name);
    return blob == linked_.end() ? storage_->open(name) : blobs_->open(blob->second.name);
  }

 private:
  std::shared_ptr<Storage> blobs_;
  Blobs linked_;
};

/// Returns the blob that a link of the cache leads to; empty for any other link.
std::string blob_of(const fs::path& link) {
  std::error_code failed;
  const std::string target = fs::read_symlink(link, failed).string();
  if (failed || !target.starts_with(kBlobs)) return {};
  const std::string blob = target.substr(kBlobs.size());
  return blob.find('/') == std::string::npos ? blob : std::string();
}

}  // namespace

std::shared_ptr<const Storage> with_hub_cache(std::shared_ptr<const Storage> folder) {
  const std::vector<FileInfo> entries = folder->list("");
  const auto is_link = [&](const FileInfo& entry) {
    return entry.kind == FileInfo::Kind::kOther && folder->stat_target(entry.name);
  };
  if (std::ranges::none_of(entries, is_link)) return folder;
  std::error_code failed;
  const fs::path root = fs::canonical(folder->absolute(""), failed);
  const fs::path blobs = root.parent_path().parent_path() / "blobs";
  // This is false for other storages, too. The folder of blobs must not be a link out of the cache.
  const bool is_snapshot = !failed && root.parent_path().filename() == "snapshots";
  if (!is_snapshot || fs::symlink_status(blobs, failed).type() != fs::file_type::directory)
    return folder;
  const std::shared_ptr<Storage> storage = posix_storage(blobs);
  Blobs linked;
  for (const FileInfo& entry : entries) {
    if (!is_link(entry)) continue;
    const std::string name = blob_of(root / entry.name);
    if (name.empty() || name == "." || name == "..") continue;
    const std::optional<FileInfo> blob = storage->stat(name);
    if (blob && blob->kind == FileInfo::Kind::kRegular) linked.emplace(entry.name, *blob);
  }
  if (linked.empty()) return folder;
  return std::make_shared<SnapshotFolder>(std::const_pointer_cast<Storage>(folder), storage,
                                          std::move(linked));
}

}  // namespace dckpt
