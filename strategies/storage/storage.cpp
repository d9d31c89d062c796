#include "strategies/storage/storage.h"

#include <atomic>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/staged_file.h"

namespace dckpt {
namespace {

/// The directory `root` of another storage.
class Subtree final : public Storage {
 public:
  Subtree(std::shared_ptr<Storage> storage, std::string root)
      : storage_(std::move(storage)), root_(std::move(root)) {}

  StorageCapabilities capabilities() const override { return storage_->capabilities(); }
  std::string display_path(const std::string& name) const override {
    return storage_->display_path(within(name));
  }
  std::string absolute(const std::string& name) const override {
    return storage_->absolute(within(name));
  }
  std::vector<FileInfo> list(const std::string& directory) const override {
    directory_components(directory);
    return storage_->list(within(directory));
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    return storage_->stat(inside(name));
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return storage_->open(inside(name));
  }
  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    const std::string full = inside(name);
    make_root();
    return storage_->create(full, options);
  }
  void make_directory(const std::string& name) override {
    directory_components(name);
    make_root();
    storage_->make_directory(within(name));
  }
  void rename(const std::string& from, const std::string& to) override {
    storage_->rename(inside(from), inside(to));
  }
  bool exchange(const std::string& a, const std::string& b) override {
    return storage_->exchange(inside(a), inside(b));
  }
  void remove_all(const std::string& name) override { storage_->remove_all(inside(name)); }
  void sync_directory(const std::string& directory) override {
    directory_components(directory);
    storage_->sync_directory(within(directory));
  }
  std::optional<FileInfo> stat_target(const std::string& name) const override {
    directory_components(name);
    return storage_->stat_target(within(name));
  }
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    name_components(name);
    return storage_->subtree(within(name));
  }
  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    return storage_->lock(inside(name), owner);
  }
  void put(const std::string& name, ByteView content) override {
    const std::string full = inside(name);
    make_root();
    storage_->put(full, content);
  }
  std::optional<std::uint64_t> available_space() const override {
    return storage_->available_space();
  }

 private:
  std::string within(const std::string& name) const {
    return name.empty() ? root_ : join_name(root_, name);
  }
  /// Returns the full name of `name`, which must not be the root itself.
  std::string inside(const std::string& name) const {
    name_components(name);
    return within(name);
  }

  void make_root() {
    if (made_) return;
    storage_->make_directory(root_);
    for (std::string above = root_; !above.empty();)
      storage_->sync_directory(above = parent_name(above));
    made_ = true;
  }

  std::shared_ptr<Storage> storage_;
  std::string root_;
  std::atomic<bool> made_{false};  ///< by this object, and therefore durable
};

}  // namespace

std::optional<FileInfo> Storage::stat_target(const std::string& name) const {
  if (name.empty()) return FileInfo{.kind = FileInfo::Kind::kDirectory};
  return stat(name);
}

std::shared_ptr<Storage> Storage::subtree(const std::string& name) {
  name_components(name);
  return std::make_shared<Subtree>(shared_from_this(), name);
}

std::unique_ptr<StorageLock> Storage::lock(const std::string&, const std::string&) {
  return nullptr;
}

void Storage::put(const std::string& name, ByteView content) {
  name_components(name);
  if (!capabilities().rename)
    throw_error(ErrorCode::kInternal, {.file = display_path(name)},
                "this storage cannot rename, and does not implement Storage::put()");
  StagedFile(*this, name, content).commit();
}

}  // namespace dckpt
