#include "strategies/storage/hashing.h"

#include <utility>

#include "mapping/base/hash.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

class HashingFile final : public ForwardingFile {
 public:
  HashingFile(std::unique_ptr<WritableFile> file, std::string name,
              std::shared_ptr<FileDigests> digests)
      : ForwardingFile(std::move(file)), name_(std::move(name)), digests_(std::move(digests)) {}

  void append(std::span<const ByteView> parts) override {
    file_->append(parts);
    for (const ByteView part : parts) {
      hash_.update(part);
      size_ += part.size();
    }
  }

  void close() override {
    file_->close();
    digests_->add(name_, {hash_.finish_hex(), size_});
  }

 private:
  std::string name_;
  std::shared_ptr<FileDigests> digests_;
  Sha256 hash_;
  std::uint64_t size_ = 0;
};

class HashingStorage final : public ForwardingStorage {
 public:
  HashingStorage(std::shared_ptr<Storage> storage, std::shared_ptr<FileDigests> digests)
      : ForwardingStorage(std::move(storage)), digests_(std::move(digests)) {}

  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    return std::make_unique<HashingFile>(storage_->create(name, options), name, digests_);
  }

  void rename(const std::string& from, const std::string& to) override {
    storage_->rename(from, to);
    digests_->rename(from, to);
  }

  void remove_all(const std::string& name) override {
    storage_->remove_all(name);
    digests_->remove(name);
  }

 private:
  std::shared_ptr<FileDigests> digests_;
};

}  // namespace

void FileDigests::add(const std::string& name, FileDigest digest) {
  const std::lock_guard lock(mutex_);
  digests_[name] = std::move(digest);
}

void FileDigests::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, FileDigest> moved;
  for (const auto& [name, digest] : digests_) {
    if (name == from || name.starts_with(from + "/"))
      moved.emplace(to + name.substr(from.size()), digest);
  }
  std::erase_if(digests_, [&](const auto& entry) {
    return entry.first == from || entry.first.starts_with(from + "/") ||
           moved.contains(entry.first);
  });
  digests_.merge(moved);
}

void FileDigests::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(digests_, [&](const auto& entry) {
    return entry.first == name || entry.first.starts_with(name + "/");
  });
}

std::map<std::string, FileDigest> FileDigests::in(const std::string& directory) const {
  const std::string prefix = directory.empty() ? "" : directory + "/";
  std::map<std::string, FileDigest> found;
  const std::lock_guard lock(mutex_);
  for (auto entry = digests_.lower_bound(prefix);
       entry != digests_.end() && entry->first.starts_with(prefix); ++entry)
    found.emplace(entry->first.substr(prefix.size()), entry->second);
  return found;
}

std::shared_ptr<Storage> hashing_storage(std::shared_ptr<Storage> storage,
                                         std::shared_ptr<FileDigests> digests) {
  return std::make_shared<HashingStorage>(std::move(storage), std::move(digests));
}

}  // namespace dckpt
