#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strategies/storage/storage.h"

namespace dckpt {

/// Passes everything through to another file: the base of decorators of written files. They see all
/// bytes front to back, since there are no sections unless a decorator has its own.
class ForwardingFile : public WritableFile {
 public:
  explicit ForwardingFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

  const std::string& name() const noexcept override { return file_->name(); }
  using WritableFile::append;
  void append(std::span<const ByteView> parts) override { file_->append(parts); }
  std::uint64_t position() const noexcept override { return file_->position(); }
  void sync() override { file_->sync(); }
  void close() override { file_->close(); }
  IoEngine engine() const noexcept override { return file_->engine(); }

 protected:
  const std::unique_ptr<WritableFile> file_;
};

/// Passes everything through to another storage: the base of decorators that change a part.
/// Subtrees are views of the decorator.
class ForwardingStorage : public Storage {
 public:
  explicit ForwardingStorage(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}

  StorageCapabilities capabilities() const override { return storage_->capabilities(); }
  std::string display_path(const std::string& name) const override {
    return storage_->display_path(name);
  }
  std::vector<FileInfo> list(const std::string& directory) const override {
    return storage_->list(directory);
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    return storage_->stat(name);
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return storage_->open(name);
  }
  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    return storage_->create(name, options);
  }
  void make_directory(const std::string& name) override { storage_->make_directory(name); }
  void rename(const std::string& from, const std::string& to) override {
    storage_->rename(from, to);
  }
  bool exchange(const std::string& a, const std::string& b) override {
    return storage_->exchange(a, b);
  }
  void remove_all(const std::string& name) override { storage_->remove_all(name); }
  void sync_directory(const std::string& directory) override {
    storage_->sync_directory(directory);
  }
  std::string absolute(const std::string& name) const override { return storage_->absolute(name); }
  std::optional<FileInfo> stat_target(const std::string& name) const override {
    return storage_->stat_target(name);
  }
  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    return storage_->lock(name, owner);
  }
  /// Goes through the functions above if the storage can rename, so that the decorator sees the
  /// steps.
  void put(const std::string& name, ByteView content) override {
    if (capabilities().rename)
      Storage::put(name, content);
    else
      storage_->put(name, content);
  }
  std::optional<std::uint64_t> available_space() const override {
    return storage_->available_space();
  }

 protected:
  const std::shared_ptr<Storage> storage_;
};

}  // namespace dckpt
