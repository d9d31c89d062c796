#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/memory.h"

namespace dckpt {

/// Behaves like an object store behind a network: every request takes some time, nothing can be
/// renamed or locked, a file appears when it is closed unless another got there first, and lists
/// are late.
class ObjectStore final : public ForwardingStorage {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Pace {
    Milliseconds request{0};  ///< duration of each request
    Milliseconds late{0};     ///< delay until a list shows what was made or removed
    int concurrency = 1;      ///< requests that are served at once
  };

  explicit ObjectStore(Pace pace, std::shared_ptr<Storage> objects = memory_storage("objects:"))
      : ForwardingStorage(std::move(objects)), pace_(pace) {}

  /// Returns how often operations were attempted that capabilities() excludes.
  int forbidden() const { return forbidden_; }
  /// Returns the largest number of reads that went on at the same time.
  int most_reads_at_once() const { return most_; }

  StorageCapabilities capabilities() const override {
    return {.rename = false,
            .exchange = false,
            .locks = false,
            .cheap_gap = 1U << 16,
            .concurrency = pace_.concurrency};
  }
  std::unique_ptr<StorageLock> lock(const std::string&, const std::string&) override {
    return nullptr;
  }

  void rename(const std::string&, const std::string&) override { forbid(); }
  bool exchange(const std::string&, const std::string&) override {
    forbid();
    return false;
  }

  std::vector<FileInfo> list(const std::string& directory) const override {
    wait();
    std::vector<FileInfo> entries = storage_->list(directory);
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    std::erase_if(entries, [&](const FileInfo& entry) {
      const auto made = made_.find(join_name(directory, entry.name));
      return made != made_.end() && now < made->second + pace_.late;
    });
    for (const auto& [name, removed] : removed_) {
      const bool is_shown = parent_name(name) == directory && now < removed.when + pace_.late &&
                            !storage_->stat(name);
      if (is_shown) entries.push_back(removed.info);
    }
    std::ranges::sort(entries, {}, &FileInfo::name);
    return entries;
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    wait();
    std::optional<FileInfo> found = storage_->stat(name);
    const std::lock_guard lock(mutex_);
    const auto changed = changed_.find(name);
    if (found && changed != changed_.end())
      found->modified = changed->second.time_since_epoch().count();
    return found;
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    wait();
    return std::make_unique<Object>(storage_->open(name), *this);
  }
  std::unique_ptr<WritableFile> create(const std::string& name, const CreateOptions&) override {
    wait();
    if (storage_->stat(name)) exists(name);
    if (const std::string parent = parent_name(name); !parent.empty()) {
      storage_->list(parent);  // throws if the parent does not exist
    }
    return std::make_unique<Upload>(name, *this);
  }
  void make_directory(const std::string& name) override {
    wait();
    storage_->make_directory(name);
  }
  void remove_all(const std::string& name) override {
    wait();
    const auto info = storage_->stat(name);
    storage_->remove_all(name);
    const std::lock_guard lock(mutex_);
    made_.erase(name);
    if (info && info->kind == FileInfo::Kind::kRegular) removed_[name] = {*info, Clock::now()};
  }
  void put(const std::string& name, ByteView content) override {
    wait();
    name_components(name);
    const std::lock_guard lock(mutex_);
    storage_->put(name, content);
    changed_[name] = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Removed {
    FileInfo info;
    Clock::time_point when;
  };

  class Object final : public ReadableFile {
   public:
    Object(std::unique_ptr<ReadableFile> file, const ObjectStore& store)
        : file_(std::move(file)), store_(store) {}
    const std::string& name() const noexcept override { return file_->name(); }
    std::uint64_t size() const noexcept override { return file_->size(); }
    void read(std::uint64_t offset, MutableByteView into) const override {
      const int now = ++store_.reading_;
      for (int most = store_.most_; most < now && !store_.most_.compare_exchange_weak(most, now);) {
      }
      store_.wait();
      file_->read(offset, into);
      --store_.reading_;
    }
    void prefetch(std::uint64_t, std::uint64_t) const override {}

   private:
    std::unique_ptr<ReadableFile> file_;
    const ObjectStore& store_;
  };

  /// A file that appears all at once when it is closed.
  class Upload final : public WritableFile {
   public:
    Upload(std::string name, ObjectStore& store)
        : name_(std::move(name)), path_(store.display_path(name_)), store_(store) {}
    const std::string& name() const noexcept override { return path_; }
    std::uint64_t position() const noexcept override { return content_.size(); }
    void append(std::span<const ByteView> parts) override {
      for (const ByteView part : parts) content_.insert(content_.end(), part.begin(), part.end());
    }
    void sync() override {}
    void close() override {
      store_.wait();
      store_.finish(name_, content_);
    }

   private:
    const std::string name_;
    const std::string path_;
    ObjectStore& store_;
    Bytes content_;
  };

  void wait() const {
    if (pace_.request.count() > 0) std::this_thread::sleep_for(pace_.request);
  }

  [[noreturn]] void exists(const std::string& name) const {
    throw CheckpointError(ErrorCode::kAlreadyExists, "cannot create the object: it exists",
                          {.file = display_path(name)});
  }

  void finish(const std::string& name, ByteView content) {
    const std::lock_guard lock(mutex_);
    if (storage_->stat(name)) exists(name);
    const auto file = storage_->create(name, {});
    file->append(content);
    file->close();
    removed_.erase(name);
    made_[name] = changed_[name] = Clock::now();
  }

  void forbid() {
    ++forbidden_;
    throw CheckpointError(ErrorCode::kInternal, "a storage without rename was asked for one");
  }

  const Pace pace_;
  std::atomic<int> forbidden_{0};
  mutable std::atomic<int> reading_{0}, most_{0};
  mutable std::mutex mutex_;
  std::map<std::string, Clock::time_point> made_;
  std::map<std::string, Clock::time_point> changed_;
  std::map<std::string, Removed> removed_;
};

}  // namespace dckpt
