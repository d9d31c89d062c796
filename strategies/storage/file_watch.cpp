#include "strategies/storage/file_watch.h"

#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

/// Shares the storage below all watches, which would own each other in turn, if it is owned by a
/// shared_ptr; otherwise its owner must keep it.
std::shared_ptr<const Storage> held(const Storage& storage);

}  // namespace

std::optional<FileInfo> FileWatch::note(const Storage& storage, const std::string& name) {
  const std::string key = storage.absolute(name);
  {
    const std::lock_guard lock(mutex_);
    const auto known = files_.find(key);
    if (known != files_.end()) return known->second.info;
  }
  Seen seen{held(storage), name, storage.stat_target(name)};  // may take long in a network
  const std::lock_guard lock(mutex_);
  return files_.try_emplace(key, std::move(seen)).first->second.info;
}

void FileWatch::compare(const Storage& storage, const std::string& name) {
  note(storage, name);
  const std::string key = storage.absolute(name);
  const std::lock_guard lock(mutex_);
  files_.at(key).is_read = true;
  recent_.insert(key);
}

void FileWatch::require_unchanged(const Seen& file, std::string_view advice) {
  const std::optional<FileInfo> now = file.storage->stat_target(file.name);
  const bool same =
      now.has_value() == file.info.has_value() &&
      (!now || (now->size == file.info->size && now->modified == file.info->modified));
  if (same) return;
  throw_error(ErrorCode::kAborted, {.file = file.storage->display_path(file.name)},
              "the file {} while it was being read; {}",
              now ? "was changed or replaced" : "was removed", advice);
}

void FileWatch::require_unchanged(std::string_view advice) const {
  std::vector<Seen> files;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, file] : files_) {
      if (file.is_read) files.push_back(file);
    }
  }
  for (const Seen& file : files) require_unchanged(file, advice);
}

void FileWatch::require_unchanged_since_last(std::string_view advice) {
  std::vector<Seen> files;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : std::exchange(recent_, {})) files.push_back(files_.at(key));
  }
  for (const Seen& file : files) require_unchanged(file, advice);
}

class WatchedStorage final : public ForwardingStorage {
 public:
  WatchedStorage(std::shared_ptr<Storage> storage, std::shared_ptr<FileWatch> watch)
      : ForwardingStorage(std::move(storage)), watch_(std::move(watch)) {}

  const Storage& inner() const noexcept { return *storage_; }

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    watch_->compare(*storage_, name);
    return storage_->open(name);
  }
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return std::make_shared<WatchedStorage>(storage_->subtree(name), watch_);
  }

 private:
  const std::shared_ptr<FileWatch> watch_;
};

namespace {

std::shared_ptr<const Storage> held(const Storage& storage) {
  if (const auto* const watched = dynamic_cast<const WatchedStorage*>(&storage))
    return held(watched->inner());
  auto shared = storage.weak_from_this().lock();
  return shared ? shared : std::shared_ptr<const Storage>(std::shared_ptr<void>(), &storage);
}

}  // namespace

std::shared_ptr<Storage> watched_storage(std::shared_ptr<Storage> storage,
                                         std::shared_ptr<FileWatch> watch) {
  return std::make_shared<WatchedStorage>(std::move(storage), std::move(watch));
}

}  // namespace dckpt
